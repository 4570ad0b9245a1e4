"""The alert rules under the real promtool: each fires when it should, and is silent when it should be.

A case gives series (what /metrics would have said, minute by minute) and the alerts that must be firing at a minute: all
of them, so that every case also shows which others keep silent.
"""

import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from stayfast.observe.alerts.files import all_groups, prometheus_rules, sloth_specification
from stayfast.observe.alerts.rules import Alert, AlertsConfig
from stayfast.policy.slo import Latency, PercentileTargets, Slo
from tests.docs.pages import ROOT
from tests.services.tools import tool

PROMETHEUS = ROOT / "deploy" / "prometheus"

SLOS = {"chat": Slo(0.99, Latency(2.0, 0.95))}
TARGETS = {"chat": Slo(None, None, percentiles={"ttft": PercentileTargets(p95_s=2.0)},
                       stages={"call": PercentileTargets(p95_s=1.0), "retrieve": PercentileTargets(p50_s=0.1)})}
CONFIG = AlertsConfig()
HOUR, DAY = 60, 24 * 60

FAILED = 'stayfast_requests_total{route="chat",api="chat",status="503"}'
FINE = 'stayfast_requests_total{route="chat",api="chat",status="200"}'
ATTEMPTS = 'stayfast_attempts_total{route="chat",upstream="u",outcome="success",fault="",status=""}'


@dataclass(frozen=True)
class Case:
    """Series, a minute, and the alerts that fire then; those of a budget with their promise: name/slo."""

    what: str
    at: int
    fires: tuple[str, ...]
    series: dict[str, str] = field(default_factory=dict)
    step: int = 1  # minutes between two samples: long stories need no more


def histogram(name: str, labels: str, rates: dict[str, str]) -> dict[str, str]:
    """Buckets from `le` to their values."""
    return {f'{name}_bucket{{{labels},le="{le}"}}': values for le, values in rates.items()} | {
        f"{name}_count{{{labels}}}": rates["+Inf"]}


def times(metric: str, rates: dict[str, str]) -> dict[str, str]:
    """The answers of one route."""
    return histogram(f"stayfast_{metric}_seconds", 'route="chat",upstream="u",outcome="ok"', rates)


QUICK = {"1.0": "0+100x4500", "2.0": "0+100x4500", "4.0": "0+100x4500", "+Inf": "0+100x4500"}
BUSY = {FINE: "0+100x4500", ATTEMPTS: "0+100x4500", **times("ttft", QUICK), **times("usable", QUICK)}
UP = {'up{job="stayfast",instance="a"}': "1x4500"}
HEALTHY = {**UP, **BUSY}


def slow(metric: str, under_2s: int, under_4s: int) -> dict[str, str]:
    """Of 100 requests a minute, so many within 2 s, so many within 4 s, the rest later."""
    return times(metric, {"1.0": "0+20x4500", "2.0": f"0+{under_2s}x4500", "4.0": f"0+{under_4s}x4500", "8.0": "0+100x4500",
                          "+Inf": "0+100x4500"})


PAGE, TICKET = "StayfastBudgetBurnPage/", "StayfastBudgetBurnTicket/"
OUTAGE = (PAGE + "availability", TICKET + "availability", TICKET + "ttft")  # who gets no answer gets no quick one
BURNS = (
    Case("all is well", 90, (), HEALTHY),
    Case("half of all requests fail for a quarter of an hour", 90, OUTAGE, {**HEALTHY, FAILED: "0x75 0+100x60"}),
    Case("two minutes of outage do not wake anybody", 4 * HOUR - 3, (), {**HEALTHY, FAILED: "0x234 0+100x2 200x60"}),
    Case("an outage that is over is only a ticket", 2 * HOUR + 40, OUTAGE[1:],
         {**HEALTHY, FAILED: "0x60 0+100x60 6000x60"}),
    Case("every second of few requests fails", 3 * HOUR, (), {**UP, FINE: "0+0.05x600", FAILED: "0+0.05x600"}),
    Case("a tenth of all requests fails for hours", 2 * HOUR, OUTAGE, {**HEALTHY, FAILED: "0+12x4500"}),
    Case("slow bleeding makes a ticket", 3 * DAY, (TICKET + "availability",), {**HEALTHY, FAILED: "0+2x4500"}, step=15),
    Case("within the budget nothing is told", 3 * DAY, (), {**HEALTHY, FAILED: "0+0.8x4500"}, step=15),
    Case("three quarters are too slow", 90, (PAGE + "ttft", TICKET + "ttft", "StayfastTtftP95High"),
         {**HEALTHY, **slow("ttft", 20, 99)}),
    Case("a template is no answer", 90, (PAGE + "ttft", TICKET + "ttft", "StayfastDegraded"),
         {**UP, FINE: "0+100x4500", 'stayfast_degraded_total{route="chat",kind="template"}': "0+90x4500",
          **times("ttft", {"1.0": "0+10x4500", "2.0": "0+10x4500", "+Inf": "0+10x4500"})}),
    Case("failing fast is not being quick", 90, (*OUTAGE, PAGE + "ttft"),
         {**UP, FINE: "0+10x4500", FAILED: "0+90x4500", ATTEMPTS: "0+100x4500",
          **times("ttft", {"1.0": "0+10x4500", "2.0": "0+10x4500", "+Inf": "0+10x4500"})}),
)


def attempts(of: str, n: float) -> dict[str, str]:
    """Calls to upstream u of one kind, beside the hundred good ones a minute."""
    return {f'stayfast_attempts_total{{route="chat",upstream="u",{of}}}': f"0+{n:g}x600"}


def own(name: str, labels: str, under_half: int) -> dict[str, str]:
    """Of 100 a minute, so many within 12.8 ms; the rest take up to 3.2 s."""
    return histogram(name, labels, {"0.0128": f"0+{under_half}x600", "3.2": "0+100x600", "+Inf": "0+100x600"})


def cache(n_hits: int) -> dict[str, str]:
    """So many of a hundred look-ups hit."""
    return {'stayfast_cache_requests_total{route="chat",result="hit"}': f"0+{n_hits}x600",
            'stayfast_cache_requests_total{route="chat",result="miss"}': f"0+{100 - n_hits}x600",
            'stayfast_cache_requests_total{route="chat",result="bypass"}': "0+900x600"}


def prefix_cache(n_read: int) -> dict[str, str]:
    """So many of a hundred tokens are read."""
    return {'stayfast_prefix_cache_tokens_total{route="chat",upstream="u",kind="read"}': f"0+{n_read}x600",
            'stayfast_prefix_cache_tokens_total{route="chat",upstream="u",kind="plain"}': f"0+{100 - n_read}x600"}


def store(n_ill: int) -> dict[str, str]:
    """So many of a hundred look-ups in a store get no answer; those that memory answers do not count."""
    rates = {"unavailable": n_ill // 4, "suspended": n_ill - n_ill // 4, "miss": (100 - n_ill) // 2,
             "hit": (100 - n_ill) // 2, "local_hit": 900}
    return {f'stayfast_cache_store_requests_total{{store="hot",op="get",result="{result}"}}': f"0+{n}x600"
            for result, n in rates.items()}


def job_store(n_failed: int) -> dict[str, str]:
    """So many of a hundred calls to the store of jobs fail."""
    return {f'stayfast_job_store_calls_total{{op="submit",result="{result}"}}': f"0+{n}x600"
            for result, n in (("ok", 100 - n_failed), ("full", n_failed))}


def pair(name: str, bad: dict[str, str], good: dict[str, str], wait: int = 5, at: int = 40) -> tuple[Case, ...]:
    """It fires after its wait and not before; just inside the line it is silent; so it is with hardly any traffic."""
    return (
        Case(f"{name} fires", at, (name,), {**HEALTHY, **bad}),
        Case(f"{name} waits", wait - 1, (), {**HEALTHY, **bad}),
        Case(f"{name} is silent inside its line", at, (), {**HEALTHY, **good}),
    )


CAUSES = (
    *pair("StayfastTtftP95High", slow("ttft", 94, 99), slow("ttft", 96, 99)),
    *pair("StayfastTtftP99High", slow("ttft", 96, 98), slow("ttft", 96, 99)),
    *pair("StayfastUsableP95High", slow("usable", 90, 99), slow("usable", 96, 99)),
    *pair("StayfastUsableP99High", slow("usable", 96, 98), slow("usable", 96, 99)),
    Case("a percentile of a handful of requests is an accident", 40, (),
         {**UP, FINE: "0+1x600", **times("ttft", {"2.0": "0+0.5x600", "4.0": "0+1x600", "+Inf": "0+1x600"})}),
    *pair("StayfastSpikes", {'stayfast_spike_factor{route="chat"}': "9x600"},
          {'stayfast_spike_factor{route="chat"}': "7x600"}, 10),
    *pair("StayfastDegraded", {'stayfast_degraded_total{route="chat",kind="fallback"}': "0+20x600"},
          {'stayfast_degraded_total{route="chat",kind="fallback"}': "0+9x600"}),
    *pair("StayfastRetriesAmplify", {'stayfast_retries_total{route="chat",upstream="u"}': "0+30x600"},
          {'stayfast_retries_total{route="chat",upstream="u"}': "0+15x600"}),
    *pair("StayfastUpstreamFailing", attempts('outcome="dropped",fault="status",status="500"', 20),
          attempts('outcome="dropped",fault="status",status="500"', 10)),
    *pair("StayfastUpstreamRateLimited", attempts('outcome="ignored",fault="status",status="429"', 10),
          attempts('outcome="ignored",fault="status",status="429"', 5)),
    *pair("StayfastStreamsTruncated", {'stayfast_truncated_streams_total{upstream="u"}': "0+2x600"},
          {'stayfast_truncated_streams_total{upstream="u"}': "0+0.9x600"}),
    *pair("StayfastStreamsStall", {'stayfast_stalls_total{route="chat",upstream="u"}': "0+6x600"},
          {'stayfast_stalls_total{route="chat",upstream="u"}': "0+4x600"}),
    *pair("StayfastHandshakesSlow", own("stayfast_handshake_seconds", 'upstream="u"', 80),
          own("stayfast_handshake_seconds", 'upstream="u"', 97)),
    *pair("StayfastCacheHitsLow", cache(10), cache(30), 30),
    *pair("StayfastCacheStoreIll", store(60), store(40)),
    *pair("StayfastPrefixCacheCold", prefix_cache(20), prefix_cache(60), 30),
    *pair("StayfastPrefixMoves", {'stayfast_prefix_moving_tokens{route="chat",upstream="u"}': "900x600"},
          {'stayfast_prefix_moving_tokens{route="chat",upstream="u"}': "0x600"}, 10),
    *pair("StayfastBreakerOpen", {'stayfast_breaker_state{upstream="u"}': "2x600"},
          {'stayfast_breaker_state{upstream="u"}': "1x600"}),
    *pair("StayfastQueueDeep", {'stayfast_queue_depth{upstream="u",lane="short"}': "900x600",
                                'stayfast_queue_depth{upstream="u",lane="long"}': "200x600"},
          {'stayfast_queue_depth{upstream="u",lane="short"}': "900x600"}, 1),
    *pair("StayfastJobsDeep", {'stayfast_jobs{route="chat",state="queued"}': "1100x600"},
          {'stayfast_jobs{route="chat",state="queued"}': "900x600",
           'stayfast_jobs{route="chat",state="deferred"}': "9000x600"}, 10),
    *pair("StayfastJobsOverdue", {'stayfast_jobs_overdue_seconds{route="chat"}': "30x600"},
          {'stayfast_jobs_overdue_seconds{route="chat"}': "0x600"}, 1),
    *(Case(f"StayfastJobsDead fires for {metric}", 40, ("StayfastJobsDead",), {**HEALTHY, f"stayfast_{metric}": "0+1x600"})
      for metric in ('jobs_ended_total{route="chat",state="dead"}', 'jobs_swept_total{result="dead"}')),
    Case("StayfastJobsDead is silent for jobs that complete", 40, (),
         {**HEALTHY, 'stayfast_jobs_ended_total{route="chat",state="completed"}': "0+9x600"}),
    *pair("StayfastJobStoreFails", job_store(10), job_store(3)),
    *pair("StayfastInstanceDown", {'up{job="stayfast",instance="b"}': "0x600"},
          {'up{job="stayfast",instance="b"}': "1x600"}),
    Case("no gateway at all", 10, ("StayfastDown", "StayfastInstanceDown"), {'up{job="stayfast",instance="a"}': "0x600"}),
    Case("no job of that name", 10, ("StayfastDown",), {'up{job="other",instance="a"}': "1x600"}),
    *pair("StayfastWorkersMissing", {'stayfast_workers{instance="a",state="silent"}': "1x600"},
          {'stayfast_workers{instance="a",state="silent"}': "0x600"}),
    *pair("StayfastLoopLag", own("stayfast_loop_lag_seconds", 'instance="a"', 80),
          own("stayfast_loop_lag_seconds", 'instance="a"', 97)),
    *pair("StayfastQueueWait", own("stayfast_queue_wait_seconds", 'instance="a",route="chat"', 80),
          own("stayfast_queue_wait_seconds", 'instance="a",route="chat"', 97)),
)


def as_test(case: Case) -> dict[str, Any]:
    """A case in promtool's words."""
    firing = []
    for name, _, slo in (name.partition("/") for name in case.fires):
        firing.append({"labels": f'{{alertname="{name}"{f",slo={slo!r}" if slo else ""}}}'.replace("'", '"'), "value": 1})
    return {
        "name": case.what, "interval": f"{case.step}m",
        "input_series": [{"series": name, "values": stretched(values, case.step)} for name, values in case.series.items()],
        "promql_expr_test": [{"expr": 'group by (alertname, slo) (ALERTS{alertstate="firing"})', "eval_time": f"{case.at}m",
                              "exp_samples": firing}],
    }


def stretched(values: str, step: int) -> str:
    """A constant rate a minute, sampled every `step` minutes."""
    if step == 1 or "+" not in values:
        return values
    rate, n = values.removeprefix("0+").split("x")
    return f"0+{float(rate) * step:g}x{int(n) // step}"


def run(folder: Path, slos: dict[str, Slo], tests: list[dict[str, Any]], step: int = 1) -> None:
    """Put tests to promtool; its report is the failure's message."""
    (folder / "rules.yml").write_text(prometheus_rules(slos, CONFIG))
    made = {"rule_files": ["rules.yml"], "evaluation_interval": f"{step}m",
            "group_eval_order": [group.name for group in all_groups(slos, CONFIG)], "tests": tests}
    (folder / "tests.yml").write_text(yaml.safe_dump(made, sort_keys=False))
    promtool(folder, "test", "rules", "tests.yml")


def promtool(folder: Path, *arguments: str) -> None:
    """Run it; it must be content."""
    command = [tool("promtool", "prometheus"), *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("case", BURNS, ids=lambda case: case.what)
def test_alerts_error_budget_rules_fire(tmp_path: Path, case: Case) -> None:
    """Fast and slow burns, spikes, recoveries, thin traffic, failures that look quick."""
    run(tmp_path, SLOS, [as_test(case)], case.step)


def stage(seconds: str) -> dict[str, str]:
    """Stage `call` of route chat: 100 a minute up to so many seconds."""
    return histogram("stayfast_stage_seconds", 'route="chat",stage="call"', {
        "0.1": "0+0x600", seconds: "0+100x600", "+Inf": "0+100x600"})


def step(seconds: str) -> dict[str, str]:
    return histogram("stayfast_turn_step_seconds", 'upstream="u",step="retrieve"', {
        seconds: "0+100x600", "+Inf": "0+100x600"})


TARGET_CASES = (
    ("all is well", (), {**HEALTHY, **stage("0.5"), **step("0.05")}),
    ("the call is late", (("call", "p95"),), {**HEALTHY, **stage("4.0")}),
    ("a step of a turn is late", (("retrieve", "p50"),), {**HEALTHY, **step("0.8")}),
    ("the first token is late", (("ttft", "p95"),), {**HEALTHY, **slow("ttft", 20, 99)}),
    ("late, but hardly any requests", (), {**UP, FINE: "0+1x600", **stage("4.0")}),
)


@pytest.mark.parametrize(("what", "missed", "series"), TARGET_CASES, ids=[case[0] for case in TARGET_CASES])
def test_alerts_targets_fire_by_stage(tmp_path: Path, what: str, missed: tuple[tuple[str, str], ...],
                                      series: dict[str, str]) -> None:
    """Each target alone, with its route, stage and percentile."""
    head = 'alertname="StayfastTargetMissed",route="chat"'
    firing = [{"labels": f'{{{head},what="{name}",quantile="{quantile}"}}', "value": 1} for name, quantile in missed]
    expr = 'group by (alertname, what, quantile, route) (ALERTS{alertname="StayfastTargetMissed",alertstate="firing"})'
    run(tmp_path, TARGETS, [{
        "name": what, "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [{"expr": expr, "eval_time": "30m", "exp_samples": firing}]}])


def test_alerts_cause_rules_fire(tmp_path: Path) -> None:
    """Every plain alert: after its wait, not before it, not inside its line."""
    run(tmp_path, {}, [as_test(case) for case in CAUSES])


def test_alerts_each_rule_has_a_firing_and_a_silent_case() -> None:
    """A new alert without its cases fails here."""
    fired = {name.partition("/")[0] for case in (*BURNS, *CAUSES) for name in case.fires}
    alerts = {rule.name for group in all_groups(SLOS, CONFIG) for rule in group.rules if isinstance(rule, Alert)}
    assert fired == alerts


def test_alerts_annotation_texts(tmp_path: Path) -> None:
    """The words that reach a pager, whole."""
    labels = {"severity": "page", "route": "chat", "slo": "availability", "sloth_service": "stayfast",
              "sloth_slo": "chat-availability", "sloth_id": "stayfast-chat-availability"}
    expected = [{
        "exp_labels": {**labels, "long_window": long, "sloth_window": long},
        "exp_annotations": {
            "summary": f"Route chat: the availability budget burns {factor} times too fast",
            "description": f"More than {factor} % of its requests fail, over {long} and still over {short}; 1 % may over "
                           "30 days. Now: 20%. Which upstream or stage changed on the dashboard?",
            "runbook_url": "docs/alerts.md#stayfastbudgetburnpage",
        }} for factor, long, short in (("14.4", "1h", "5m"), ("6", "6h", "30m"))]
    case = as_test(Case("a fifth of all requests fails", 60, (), {**HEALTHY, FAILED: "0+25x600"}))
    del case["promql_expr_test"]
    alerts = [{"eval_time": "20m", "alertname": "StayfastBudgetBurnPage", "exp_alerts": expected}]
    run(tmp_path, SLOS, [{**case, "alert_rule_test": alerts}])


MANY = {"*": Slo(0.9, Latency(0.5), Latency(1), Latency(60), Latency(0.05)), 'odd "name"': Slo(), **TARGETS}


@pytest.mark.parametrize("slos", [{}, SLOS, MANY], ids=["no routes", "one", "many promises"])
def test_alerts_file_is_accepted_by_promtool(tmp_path: Path, slos: dict[str, Slo]) -> None:
    """`promtool check rules` finds nothing, whatever the settings."""
    (tmp_path / "rules.yml").write_text(prometheus_rules(slos, CONFIG))
    promtool(tmp_path, "check", "rules", "rules.yml")
    assert yaml.safe_load(sloth_specification(slos, CONFIG))["version"] == "prometheus/v1"


def test_alerts_shipped_rules_are_valid() -> None:
    """Prometheus takes the files in deploy/ as a clone has them: the rules that they name are there."""
    promtool(PROMETHEUS, "check", "config", "prometheus.yml")
