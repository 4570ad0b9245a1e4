"""observe.alerts.rules: rules use existing metrics, link to a runbook, and follow the settings."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from stayfast.observe.alerts.files import all_groups, prometheus_rules, sloth_specification
from stayfast.observe.alerts.rules import Alert, AlertsConfig, Recording, format_duration, format_percent
from stayfast.policy.slo import Latency, PercentileTargets, Slo
from tests.unit.observe.queries import labels, labels_by_metric, names

PAGE = Path(__file__).parents[3] / "docs" / "alerts.md"
EVERYTHING = Slo(0.999, Latency(1.0), Latency(1.0), Latency(20.0, 0.9), Latency(0.1))
TARGETS = Slo(percentiles={"ttft": PercentileTargets(0.5, 1, 2)}, stages={"call": PercentileTargets(p95_s=1),
                                                                         "retrieve": PercentileTargets(p99_s=1)})
SLOS = {"chat": EVERYTHING, "*": Slo(), "targets": TARGETS, 'a "b"': Slo(availability=None)}
CONFIG = AlertsConfig(e2e_p95_s=20, e2e_p99_s=60)
RULES = [rule for group in all_groups(SLOS, CONFIG) for rule in group.rules]
ALERTS = [rule for rule in RULES if isinstance(rule, Alert)]


def test_queries_use_existing_metrics_and_labels() -> None:
    """Metrics with their labels, recorded series, or what stands in the list of the awaited."""
    recorded = {rule.name for rule in RULES if isinstance(rule, Recording)}
    known = labels_by_metric()
    for rule in RULES:
        assert names(rule.expr) <= recorded | known.keys(), rule.expr
        assert [found for found in labels(rule.expr) if found[1] not in known.get(found[0], {found[1]})] == []


def test_query_with_unknown_metric_is_found() -> None:
    """The reading of queries that the tests here rest on."""
    query = 'sum by (nope, le) (rate(stayfast_x_bucket{route="r",no!="1"}[5m])) / ignoring (a) stayfast:y:p9 > up'
    assert names(query) == {"stayfast_x_bucket", "stayfast:y:p9", "up"}
    assert set(labels(query)) == {("stayfast_x_bucket", label) for label in ("nope", "le", "route", "no")}


def test_every_alert_has_its_heading_and_every_heading_its_alert() -> None:
    """The runbook link leads to docs/alerts.md#name, and the page says nothing of alerts that are no more."""
    headings = re.findall(r"^### (Stayfast\w+)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(set(headings)) == len(headings)
    assert set(headings) == {alert.name for alert in ALERTS}
    for alert in ALERTS:
        assert alert.to_yaml_dict("docs/alerts.md")["annotations"]["runbook_url"] == f"docs/alerts.md#{alert.name.lower()}"


def test_alerts_have_summary_and_action() -> None:
    """In whole sentences, without a brace that Go's templates would trip over."""
    for alert in ALERTS:
        assert len(alert.summary) > 15, alert.name
        assert alert.action.endswith((".", "?")), alert.name
        assert re.sub(r"\{\{ \$(value|labels\.\w+)( \| humanize\w*)? \}\}", "", alert.summary + alert.action).count("{") == 0


def test_only_budget_burns_and_down_are_pages() -> None:
    """Causes are tickets."""
    assert {alert.name for alert in ALERTS if alert.severity == "page"} == {"StayfastBudgetBurnPage", "StayfastDown"}


def test_groups_and_series_are_unique() -> None:
    """Prometheus refuses two groups of one name, and two rules that record the same series."""
    made = all_groups(SLOS, CONFIG)
    assert len({group.name for group in made}) == len(made)
    series = [(rule.name, tuple(rule.labels.items())) for rule in RULES if isinstance(rule, Recording)]
    assert len(set(series)) == len(series)


def test_sloth_names_of_routes_are_unique() -> None:
    """Names that sloth cannot take become plain, and stay apart."""
    document = yaml.safe_load(sloth_specification({name: Slo(ttft=None) for name in ("a/b", "a:b", "*", "gpt-4.1")}, CONFIG))
    made = [slo["name"] for slo in document["slos"]]
    assert len(set(made)) == len(made)
    assert all(re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name) for name in made)
    assert made[3] == "gpt-4.1-availability"
    assert document["slos"][0]["objective"] == 99.0


def test_bucket_label_matches_exposition() -> None:
    """A whole number has its .0, or no bucket is found."""
    assert 'le="1.0"' in prometheus_rules({"m": Slo(None, Latency(1))}, CONFIG)


def test_thresholds_come_from_the_settings() -> None:
    """A changed line is in the file, one of null is not."""
    text = prometheus_rules({}, AlertsConfig(ttft_p95_s=0.7, ttft_p99_s=None, queue_depth=17))
    assert "stayfast:ttft_seconds:p95_5m > 0.7" in text
    assert "StayfastTtftP99High" not in text
    assert "(stayfast_queue_depth) > 17" in text


@pytest.mark.parametrize(("make", "name"), [
    (lambda: AlertsConfig(truncated_ratio=1.5), "truncated_ratio"), (lambda: AlertsConfig(ttft_p95_s=0.0), "ttft_p95_s"),
    (lambda: AlertsConfig(retry_amplification=0.5), "retry_amplification"), (lambda: AlertsConfig(min_bad=0), "min_bad")])
def test_thresholds_outside_bounds_are_refused(make: Callable[[], AlertsConfig], name: str) -> None:
    """Named, with what they may be."""
    with pytest.raises(ValueError, match=name):
        make()


def test_formatting_of_durations_and_shares() -> None:
    """Durations and shares as Prometheus and people write them."""
    assert [format_duration(seconds) for seconds in (30, 300, 7200, 86_400 * 3)] == ["30s", "5m", "2h", "3d"]
    assert [format_percent(share) for share in (0.144, 0.01, 0.1, 0.00144)] == ["14.4 %", "1 %", "10 %", "0.144 %"]
