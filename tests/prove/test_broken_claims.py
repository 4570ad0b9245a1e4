"""Each claim falls short of something broken."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
import uvloop

from stayfast.lab.claims import cancel, noisy, overhead
from stayfast.lab.claims.budget import DEADLINE_S, LEGS, BudgetClaim, Leg, make_finding
from stayfast.lab.claims.cancel import LEAVE_POINTS, Cancel
from stayfast.lab.claims.overhead import PROVIDER, Overhead
from stayfast.lab.claims.truth import (
    RATE_RPS,
    compare_with_each_other,
    compare_with_formula,
    compare_with_stall,
    run_in_virtual_time,
    run_with_stall,
)
from stayfast.lab.harness.claim import ClaimResult, Extent, Figure, Verdict
from stayfast.lab.harness.load import LoadSpec
from stayfast.lab.harness.processes import Processes, ServerProcess
from stayfast.lab.harness.virtual import run_virtual
from stayfast.lab.load.result import ClientHealth, Error, GapCounts, Mode, Result, Sample, Samples, Subject
from stayfast.lab.simulated import PRESETS
from tests.prove.running import N_TRIES, run, short_of

OTHER = PRESETS["gemini-flash-like"].ttft


async def deaf(processes: Processes, settings: Mapping[str, Any]) -> ServerProcess:
    """A proxy that keeps its upstream call when the client leaves."""
    return await processes.start("tests/prove/deaf.py", processes.write_file(settings))


async def refusing(processes: Processes, settings: Mapping[str, Any]) -> ServerProcess:
    """A gateway without the requested routes."""
    return await processes.start_gateway({**settings, "routes": {"other": {"upstreams": ["silent"]}}})


@pytest.mark.sockets
def test_cancel_claim_proxy_never_closes_upstream_falls_short() -> None:
    """Calls stay open and tokens are paid for in every state."""
    finding = run(Cancel(quick=Extent(3), start_front=deaf))
    assert [name.split(",")[0] for name in short_of(finding)] == [
        "calls not closed by the hang-up after 1 s", "longest time to the upstream's close",
        "tokens a client after it hung up"] * len(LEAVE_POINTS)


def test_cancel_claim_late_client_loop_spoils_run() -> None:
    late = (Figure.exact("longest time to the upstream's close", 60.0, "ms", 50.0), Figure.count("calls not closed", 0))
    assert cancel.make_finding(late, lag_ms=10.0).verdict is Verdict.FALLS_SHORT
    finding = cancel.make_finding(late, lag_ms=30.0)
    assert finding.spoiled == "the client's own loop stood still for 30 ms, which may explain the late closes"
    assert finding.verdict is Verdict.INCONCLUSIVE
    assert cancel.make_finding(late[1:], lag_ms=30.0).holds


@pytest.mark.sockets
def test_cancel_claim_without_upstream_calls_falls_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rejected request has no call to cancel, and must not count as cancelled."""
    monkeypatch.setattr(cancel, "VISIT_WITHIN_S", 0.3)
    monkeypatch.setattr(cancel, "SETTLED_AFTER_S", 0.1)
    finding = run(Cancel(quick=Extent(2), start_front=refusing))
    assert "clients that left in mid-stream" in short_of(finding)
    assert sum("not closed" in name for name in short_of(finding)) == len(LEAVE_POINTS)


@pytest.mark.sockets
def test_budget_claim_no_fallback_or_longer_deadline_falls_short() -> None:
    """Without fallbacks requests fail; with a longer deadline they outlive the claimed one."""
    finding = run(BudgetClaim(quick=Extent(real_s=1.0), routes={
        "alone": {"upstreams": ["hanging"], "deadline": DEADLINE_S + 0.5},
        "hanging": {"upstreams": ["hanging"], "deadline": DEADLINE_S},
        "jagged": {"upstreams": ["jagged"], "deadline": DEADLINE_S},
    }))
    short = short_of(finding)
    for stream in ("streams", "whole answers"):
        assert any(name.startswith(f"alone, {stream}: latest end") for name in short)
        assert f"hanging, {stream}: requests that failed although a fallback was there" in short
    assert "jagged, streams: requests that failed although a fallback was there" in short
    assert "calls to the fallback" in short


@pytest.mark.sockets
def test_overhead_claim_failed_requests_fall_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors are cheaper than answers, so figures with errors are invalid."""
    monkeypatch.setattr(Processes, "reserve_core", lambda *_: False)  # nothing is measured: no core of its own
    faulty = {**PROVIDER, "faults": [{"kind": "status", "status": 400, "rate": 0.3}]}
    finding = run(Overhead(quick=Extent(real_s=0.2), provider=faulty))
    assert "failed requests" in short_of(finding)


def test_overhead_claim_busy_machine_is_inconclusive() -> None:
    slow = (Figure("CPU", 9.0, "us", 5.0), Figure.count("failed requests", 0))
    assert overhead.judge_figures(slow, "", None).verdict is Verdict.FALLS_SHORT
    assert overhead.judge_figures(slow, "", "late").verdict is Verdict.INCONCLUSIVE
    failed_too = (*slow[:1], Figure.count("failed requests", 1))
    assert overhead.judge_figures(failed_too, "", "late").verdict is Verdict.FALLS_SHORT
    assert overhead.judge_figures(slow[1:], "", "late").holds


@pytest.mark.sockets
def test_truth_claim_closed_loop_hides_stall_and_falls_short() -> None:
    """Closed-loop callers send nothing during a stall, and report a good p99."""

    async def main(load: LoadSpec) -> tuple[Result, float]:
        async with Processes() as processes:
            sim = await processes.start_simulator({"fast": {"preset": "instant"}}, 1)
            return await run_with_stall(load, sim, f"{sim.url}/fast/v1", 0.6, 1)

    # one of more than a hundred waits
    _, p99, _ = compare_with_stall(*uvloop.run(main(LoadSpec(3.0, n_concurrent=1, n_output=2))))
    assert p99.verdict is not Verdict.HOLDS
    assert p99.value > 50
    for _ in range(N_TRIES):
        _, p99, _ = compare_with_stall(*uvloop.run(main(LoadSpec(2.0, RATE_RPS, n_output=2))))
        if p99.value < 20:
            break
    assert p99.value < 20


@pytest.mark.parametrize(("lag_s", "verdict"), [(0.02, Verdict.FALLS_SHORT), (0.2, Verdict.INCONCLUSIVE)])
def test_noisy_claim_late_client_loop_spoils_longer_waits(lag_s: float, verdict: Verdict) -> None:
    """Beside the noisy tenant all waits are twice as long."""
    alone, beside = (result_of([whole(n, took_s + n % 10 / 100) for n in range(500)]) for took_s in (1.0, 2.0))
    shed = result_of([failed(n, 0.1, 503) for n in range(10)], lag_s)
    figures, spoiled = noisy.judge_rounds([noisy.NoisyRound([alone], [beside], shed)])
    assert ClaimResult(figures, spoiled=spoiled).verdict is verdict
    assert noisy.judge_rounds([noisy.NoisyRound([alone], [alone], shed)])[1] is None


def test_truth_claim_other_mixture_falls_short() -> None:
    """One provider's answers, compared with the formula of another, and with slower answers."""
    result = run_virtual(run_in_virtual_time, 4.0, 1)
    figures = compare_with_formula("it", result, OTHER)
    assert [figure.verdict for figure in figures] == [Verdict.HOLDS, Verdict.FALLS_SHORT, Verdict.FALLS_SHORT]
    slower = result_of([msgspec.structs.replace(sample, first_s=sample.first_s + 0.5) for sample in result.samples])
    assert compare_with_each_other(result, slower, 1).verdict is Verdict.FALLS_SHORT


def test_truth_claim_without_answers_falls_short() -> None:
    """Missing answers fall short; quantiles of none show nothing."""
    nothing = result_of([Sample(n, 0.1 * n, error=Error.RESET) for n in range(50)])
    answered = result_of([whole(n, 1.0) for n in range(50)])
    unmeasured = [Verdict.FALLS_SHORT, Verdict.INCONCLUSIVE, Verdict.INCONCLUSIVE]
    assert [figure.verdict for figure in compare_with_formula("it", nothing, OTHER)] == unmeasured
    assert compare_with_each_other(nothing, answered, 1).verdict is Verdict.INCONCLUSIVE
    assert [figure.verdict for figure in compare_with_stall(nothing, 1.5)[:2]] == unmeasured[:2]


def whole(n: int, took_s: float, *, n_chunks: int = 40, status: int = 200, error: Error = Error.NONE) -> Sample:
    """A sample that ended `took_s` after its send."""
    at_s = 0.1 * n
    end_s = at_s + took_s
    return Sample(n, at_s, sent_s=at_s, headers_s=at_s, first_s=at_s + took_s / 2, last_s=end_s, ended_s=end_s, n_output=40,
                  n_chunks=n_chunks, status=status, error=error,
                  server_timing="admit;dur=0.1, call;dur=12.5;desc=\"of 2000\"")


def result_of(samples: list[Sample], lag_s: float = 0.0) -> Result:
    """A result with these samples."""
    rows = Samples()
    for sample in samples:
        rows.add(sample)
    return Result(label="it", subject=Subject("it", "", "chat", "m"), command="", machine={}, began_at_wall=0.0, seed=1,
                  mode=Mode.OPEN, workload={}, duration_s=10.0, offered_rps=5.0, samples=rows, gaps=GapCounts(),
                  health=ClientHealth(loop_lag_max_s=lag_s))


def failed(n: int, took_s: float, status: int = 504) -> Sample:
    """A sample that ended in an error."""
    return whole(n, took_s, n_chunks=0, status=status, error=Error.STATUS)


def fine(leg: Leg) -> list[Sample]:
    """Good samples of one leg of `budget`."""
    return [failed(n, DEADLINE_S + 0.002) if leg.route == "alone" else whole(n, 1.5) for n in range(10)]


STRUCK = {"hanging": {"n_asked": 40, "outcomes": {"hang": 40}}, "steady": {"n_asked": 25, "outcomes": {"completed": 25}},
          "jagged": {"n_asked": 20, "outcomes": {"completed": 15, "cancelled": 5}}}


def judged(leg: Leg, samples: list[Sample], lag_s: float = 0.0) -> ClaimResult:
    """The finding with these samples for one leg, and good samples for the others."""
    return make_finding({each: result_of(samples if each == leg else fine(each), lag_s) for each in LEGS}, STRUCK)


def test_budget_claim_good_samples_hold() -> None:
    """The reference for the next tests."""
    finding = judged(LEGS[0], fine(LEGS[0]))
    assert finding.holds
    assert finding.notes[1].endswith("took 2002.0 ms; by the gateway's own account, in ms: admit 0.1, call 12.5.")


def test_budget_claim_early_503_holds() -> None:
    """Without a working upstream a 503 may come early, but some requests must wait until the deadline."""
    alone = LEGS[0]
    assert judged(alone, [failed(0, DEADLINE_S + 0.002), failed(1, 0.01, 503)]).holds
    assert short_of(judged(alone, [failed(1, 0.01, 503)])) == ["alone, streams: waited until the deadline"]


@pytest.mark.parametrize(("route", "samples"), [
    ("alone", []),
    ("alone", [failed(0, DEADLINE_S + 0.06)]),
    ("alone", [failed(0, DEADLINE_S), failed(1, 0.1)]),
    ("alone", [failed(0, DEADLINE_S), failed(1, DEADLINE_S, 500)]),
    ("alone", [failed(0, DEADLINE_S), whole(1, DEADLINE_S, error=Error.RESET)]),
    ("hanging", []),
    ("hanging", [whole(0, 1.5), Sample(1, 0.1, sent_s=0.1, error=Error.UNSENT)]),
    ("hanging", [whole(0, 1.5), whole(1, 1.5, error=Error.TRUNCATED)]),
    ("jagged", [whole(0, 1.5), failed(1, 0.01, 503)]),
    ("jagged", [whole(0, 1.5), whole(1, DEADLINE_S + 0.06, n_chunks=3)]),
], ids=["nothing measured", "late", "504 too early", "another error", "no answer", "nothing served", "never sent", "cut",
        "refused", "one late end in part"])
def test_budget_claim_bad_samples_fall_short(route: str, samples: list[Sample]) -> None:
    finding = judged(next(leg for leg in LEGS if leg.route == route), samples)
    assert finding.verdict is (Verdict.FALLS_SHORT if samples or route == "alone" else Verdict.INCONCLUSIVE)
    assert finding.spoiled is None


@pytest.mark.parametrize("name", ["hanging", "jagged", "steady"])
def test_budget_claim_missing_upstream_calls_fall_short(name: str) -> None:
    """An upstream that was not called, or a fallback that was not needed, leaves the claim untested."""
    idle = {"n_asked": 0, "outcomes": {"completed": 0}}
    finding = make_finding({leg: result_of(fine(leg)) for leg in LEGS}, {**STRUCK, name: idle})
    assert len(short_of(finding)) == 1


def test_budget_claim_late_client_loop_spoils_run() -> None:
    late = [failed(0, DEADLINE_S + 0.06)]
    finding = judged(LEGS[0], late, lag_s=0.07)
    assert finding.spoiled == "the client's own loop stood still for 70 ms, which may explain the late requests"
    assert finding.verdict is Verdict.INCONCLUSIVE
    assert judged(LEGS[0], late).verdict is Verdict.FALLS_SHORT
    assert judged(LEGS[0], fine(LEGS[0]), lag_s=0.07).holds
