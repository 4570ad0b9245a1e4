"""Every query of the board and of the rules, put to a real Prometheus that scrapes a real gateway under traffic.

Each must be understood and must have data.
"""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stayfast.lab.simulated.settings import KINDS
from stayfast.observe.alerts.files import all_groups
from stayfast.observe.alerts.files import prometheus_rules as rules_file
from stayfast.observe.alerts.rules import Recording, quote
from stayfast.settings import Settings, SettingsText, load_settings
from tests.services.running import Prometheus, gateway, prometheus
from tests.services.tools import tool
from tests.services.traffic import PROVIDER, SETTINGS, traffic
from tests.unit.observe.queries import BOARD

# The command line, but a beginning of prompts that has not come back is given up after seconds, not after a minute.
LAUNCH = """
import sys
from stayfast.cli import main
from stayfast.policy.prompt_cache import breakpoints
breakpoints.JUDGED_S = 5.0
sys.exit(main(sys.argv[1:]))
"""
PATIENCE_S = 240.0  # a busy machine takes a minute to look at all of them once
VARIABLES = {"$__rate_interval": "1m", "$route": ".*", "$upstream": ".*", "$job": ".*"}

pytestmark = pytest.mark.sockets


def settings() -> Settings:
    """What the gateway of these tests is told."""
    return load_settings(SettingsText("test", SETTINGS.replace("{provider}", "8081")), {}, kinds=KINDS)


def board_queries() -> list[str]:
    """What Grafana would ask with every variable set to All."""
    found = []
    for panel in BOARD["panels"]:
        for target in panel.get("targets", []):
            query = target["expr"]
            for name, value in VARIABLES.items():
                query = query.replace(name, value)
            found.append(query)
    return found


def rule_queries() -> list[str]:
    """What every rule records, and every single condition of the alerts without its line."""
    made = settings()
    found = []
    for group in all_groups({name: route.slo for name, route in made.routes.items()}, made.alerts):
        for rule in group.rules:
            if isinstance(rule, Recording):
                which = ",".join(f"{name}={quote(value)}" for name, value in rule.labels.items())
                found.append(f"{rule.name}{{{which}}}")
            else:
                found += [condition.value for condition in rule.conditions]
    return found


@pytest.fixture(scope="module")
def scraping(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A gateway under traffic, and the Prometheus that watches it."""
    program = tool("prometheus", "prometheus")
    folder: Path = tmp_path_factory.mktemp("prometheus")
    made = settings()
    rules = rules_file({name: route.slo for name, route in made.routes.items()}, made.alerts)
    other: Path = tmp_path_factory.mktemp("provider")
    with (gateway(other, PROVIDER) as provider,
          gateway(folder, SETTINGS.replace("{provider}", str(provider)), ("-c", LAUNCH)) as port,
          prometheus(program, folder, port, rules) as running, traffic(port)):
        yield running


@pytest.mark.parametrize("queries", [board_queries(), rule_queries()], ids=["board", "rules"])
def test_dashboard_queries_return_data(scraping: Prometheus, queries: list[str]) -> None:
    """Some only once rare things have happened; none that is merely well-formed."""
    missing = set(queries)
    assert missing
    give_up_at = time.monotonic() + PATIENCE_S
    while missing and time.monotonic() < give_up_at:
        time.sleep(1)
        missing -= {query for query in missing if scraping.values(query)}
    assert missing == set()


def test_dashboard_variables_have_values(scraping: Prometheus) -> None:
    """What the board's menus ask for: a metric that is there, with that label."""
    asked = [variable["definition"] for variable in BOARD["templating"]["list"] if variable["type"] == "query"]
    assert len(asked) == 3
    for definition in asked:
        metric, _, label = definition.removeprefix("label_values(").removesuffix(")").partition(", ")
        assert scraping.ask(f"label/{label}/values", **{"match[]": metric}), definition


def test_prometheus_rules_evaluate(scraping: Prometheus) -> None:
    """Prometheus evaluates each without an error, and the annotations' query parses."""
    made = scraping.ask("rules")["groups"]
    assert len(made) == len(all_groups({name: route.slo for name, route in settings().routes.items()}, settings().alerts))
    ill = [rule for group in made for rule in group["rules"] if rule["health"] == "err"]
    assert [(rule["name"], rule["lastError"]) for rule in ill] == []
    scraping.values(BOARD["annotations"]["list"][0]["expr"])


def test_slo_bounds_are_histogram_buckets(scraping: Prometheus) -> None:
    """Each promise is counted at exactly its bound: the settings' way into the gateway's histograms."""
    for name, route in settings().routes.items():
        for metric, latency in route.slo.latencies():
            bucket = f'stayfast_{metric}_seconds_bucket{{route="{name}",le="{float(latency.under_s)!r}"}}'
            give_up_at = time.monotonic() + PATIENCE_S
            while not (found := scraping.values(bucket)) and time.monotonic() < give_up_at:
                time.sleep(1)
            assert found, bucket
