"""Validity of runs, the knee of a sweep, and the selftest."""

from array import array
from itertools import pairwise
from math import inf

import pytest
import uvloop

from stayfast.cli.bench import parse
from stayfast.cli.bench_options import make_job
from stayfast.core.clock import SystemClock
from stayfast.lab.load import selftest
from stayfast.lab.load.measure import judge_client
from stayfast.lab.load.result import Sample
from stayfast.lab.load.runner import TargetRecord
from stayfast.lab.load.schedule import MIN_STEP_REQUESTS
from stayfast.lab.load.sweep import Sweep, SweepStep, find_knee, format_sweep, parse_sweep, plan_at_load, should_stop


def record(late_s: list[float], ttft_s: float = 0.1) -> TargetRecord:
    """A run of requests 10 ms apart, with this lateness and TTFT."""
    found = TargetRecord(lateness_s=array("d", late_s))
    for n, late in enumerate(late_s):
        at_s = n * 0.01
        found.samples.add(Sample(n, at_s, sent_s=at_s + late, first_s=at_s + late + ttft_s))
        found.last_at_s, found.last_began_s = at_s, max(found.last_began_s, at_s + late)
    return found


@pytest.mark.parametrize(("late_s", "ttft_s", "is_valid"), [
    ([0.0] * 100, 0.1, True),
    ([0.004] * 100, 0.1, True),
    ([0.006] * 100, 0.1, False),
    ([0.006] * 100, 0.5, True),  # 2 % of 0.5 s are 10 ms
    ([0.011] * 100, 0.5, False),
    ([0.0] * 99 + [0.009], 0.1, True),  # one of a hundred is not p99
    ([0.0] * 98 + [0.009] * 2, 0.1, False),
])
def test_health_late_sends_make_a_run_invalid(late_s: list[float], ttft_s: float, is_valid: bool) -> None:
    """p99 of the lateness against the larger of 5 ms and 2 % of the median TTFT."""
    health = judge_client(record(late_s, ttft_s), [], n_scheduled=100, seconds=1.0)
    assert health.is_valid == is_valid


def test_health_lagging_loop_makes_a_run_invalid() -> None:
    """Timestamps were as late as the loop."""
    assert judge_client(record([0.0] * 100), [0.001] * 200, n_scheduled=100, seconds=1.0).is_valid
    [reason] = judge_client(record([0.0] * 100), [0.02] * 200, n_scheduled=100, seconds=1.0).verdict
    assert "lagged by 20.0 ms" in reason


def test_health_invalid_run_suggests_a_remedy() -> None:
    open_loop = judge_client(record([0.02] * 100), [0.02] * 200, n_scheduled=103, seconds=1.0).verdict
    assert len(open_loop) == 3
    assert [reason.endswith("(try a quieter machine or a lower rate)") for reason in open_loop] == [False, False, True]
    [closed] = judge_client(record([0.0] * 100), [0.02] * 200, n_scheduled=0, seconds=1.0).verdict
    assert closed.endswith("or fewer callers)")


def test_health_too_few_sends_make_a_run_invalid() -> None:
    """Over 1 % fewer requests a second than scheduled, unsent or spread over a longer time."""
    fine = judge_client(record([0.0] * 100), [], n_scheduled=101, seconds=1.0)
    assert (fine.requested_rps, fine.achieved_rps, fine.is_valid) == (101, 100, True)
    [reason] = judge_client(record([0.0] * 100), [], n_scheduled=103, seconds=1.0).verdict
    assert "100.0 requests/s of the 103.0" in reason
    behind = judge_client(record([n * 0.0005 for n in range(100)], ttft_s=10), [], n_scheduled=100, seconds=1.0)
    assert behind.achieved_rps == pytest.approx(100 / 1.0495)
    assert len(behind.verdict) == 1


def test_health_closed_loop_ignores_lateness() -> None:
    """Answers set the rate of a closed loop."""
    assert judge_client(record([0.02] * 100), [], n_scheduled=0, seconds=1.0).is_valid


def step(load: float, goodput_rps: float, p99_s: float, n_offered: int = 1000, *, offered: float | None = None,
         is_valid: bool = True) -> SweepStep:
    return SweepStep(load, goodput_rps, p99_s, p99_s, load if offered is None else offered, n_offered, is_valid)


STEPS = [step(1, 10, 0.1), step(2, 20, 0.1), step(4, 39, 0.12), step(8, 60, 0.2), step(16, 62, 0.25), step(32, 61, 0.25)]
CLOSED = Sweep(is_closed=True)


def test_knee_is_where_goodput_stops_rising() -> None:
    """16 gives 3 % more than 8 for twice the load, and 32 nothing."""
    assert find_knee(STEPS) == STEPS[3]
    assert [should_stop(STEPS[:n]) for n in range(7)] == [False] * 6 + [True]
    assert find_knee(STEPS[:4]) is None
    assert "knee: c=8 with 60.0" in format_sweep(CLOSED, STEPS)
    assert format_sweep(CLOSED, STEPS[:4]) == "knee: not reached"


def test_sweep_single_step_past_the_knee_is_noise() -> None:
    assert find_knee(STEPS[:5]) is None
    assert format_sweep(CLOSED, STEPS[:5]).startswith("knee: perhaps c=8")
    assert format_sweep(CLOSED, [*STEPS[:3], step(8, 60, 0.9), step(16, 100, 0.2)]) == "knee: not reached"


def test_knee_is_where_p99_triples() -> None:
    """p99 over three times the upper end of the first step's interval, whatever the goodput."""
    steps = [*STEPS[:3], step(8, 78, 0.31), step(16, 156, 0.4)]
    assert find_knee(steps) == STEPS[2]
    lucky = [SweepStep(1, 10, 0.1, 0.14, 1, 200), *steps[1:]]
    assert find_knee(lucky) is None


def test_knee_steps_with_failures_are_past_it() -> None:
    """A first step that fails leaves no knee; a step without good requests needs no confirmation."""
    assert find_knee([STEPS[0], step(2, 20, inf), step(4, 20, inf)]) == STEPS[0]
    assert find_knee([step(1, 5, inf), step(2, 5, inf)]) is None
    assert "below the first step" in format_sweep(Sweep(is_closed=False), [step(1, 5, inf), step(2, 5, inf)])
    assert should_stop([step(1, 0, inf, 10)])
    assert find_knee([STEPS[0], step(2, 0, inf)]) == STEPS[0]


def test_knee_ignores_steps_with_few_requests() -> None:
    """With ten requests the p99 is the slowest one, and a factor of ten is noise."""
    steps = [step(1, 1.4, 0.5, 10), step(2, 1.5, 4.5, 20), step(4, 3, 4.5, 40)]
    assert find_knee(steps) is None
    assert not should_stop(steps)
    assert "not judged: 1/s, 2/s, 4/s" in format_sweep(Sweep(is_closed=False), steps)


def test_knee_uses_measured_rates() -> None:
    """Steps of 10/s and 20/s measured as 12/s and 14/s: a sixth more load, nearly all of it good."""
    steps = [step(10, 12, 0.1, offered=12), step(20, 14, 0.1, offered=14.2), step(40, 16, 0.1, offered=17)]
    nominal = [step(10, 12, 0.1), step(20, 14, 0.1), step(40, 16, 0.1)]
    assert format_sweep(Sweep(is_closed=False), steps) == "knee: not reached"
    assert find_knee(nominal) == nominal[0]


def test_knee_ignores_invalid_steps() -> None:
    """Invalid figures are the client's; auto stops there."""
    steps = [*STEPS[:3], step(8, 60, 9.0, is_valid=False), step(16, 60, 9.0, is_valid=False)]
    assert find_knee(steps) is None
    assert should_stop(steps[:4])
    assert format_sweep(CLOSED, steps[:4]).splitlines() == [
        "knee: not reached",
        "not judged: c=8, invalid: the client reached its limit before the target (auto stops there)"]


def test_sweep_slow_step_lasts_until_it_can_be_judged() -> None:
    """Unless a length is given. At 1/s, ten seconds are ten requests."""
    def limits(*words: str) -> list[tuple[float | None, int | None]]:
        job = make_job(parse(["--model", "m", "--sweep", "rate=auto", *words]), {})
        assert job.sweep is not None
        plans = [plan_at_load(job.sweep, job.plan, load, has_length=job.has_length) for load in (1.0, 64.0)]
        return [(plan.limit.until_s, plan.limit.n_requests) for plan in plans]

    assert limits() == [(None, MIN_STEP_REQUESTS), (10.0, None)]
    assert limits("--duration", "20s") == [(20.0, None)] * 2
    assert limits("--requests", "50") == [(None, 50)] * 2


@pytest.mark.parametrize(("text", "is_closed", "first"), [
    ("1,2,4", True, [1, 2, 4]), ("rate=0.5,20", False, [0.5, 20]), ("auto", True, [1, 2, 4]),
    ("rate=auto", False, [1, 2, 4])])
def test_parse_sweep_accepts_lists_and_auto(text: str, is_closed: bool, first: list[float]) -> None:
    """The default is concurrency."""
    sweep = parse_sweep(text)
    loads = list(sweep.steps())
    assert (sweep.is_closed, loads[: len(first)]) == (is_closed, first)
    assert all(a < b for a, b in pairwise(loads))


@pytest.mark.parametrize(("text", "expected"), [
    ("4,2", "rise"), ("0,1", "above 0"), ("x", "auto"), ("speed=1", "concurrency="), ("1.5,2", "whole"), ("", "auto"),
    ("rate=nan", "above 0")])
def test_parse_sweep_refuses_wrong_texts(text: str, expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        parse_sweep(text)


@pytest.mark.sockets
def test_selftest_compares_with_the_servers_times() -> None:
    """No piece has a timestamp before its write."""
    found = uvloop.run(selftest.run_selftest(SystemClock(), rate_rps=40, seconds=0.5))
    assert len(found.ttft_error_s) == len(found.end_error_s) == len(found.result.samples) > 5
    assert 0 <= found.ttft_error_s[0] <= found.ttft_error_s[len(found.ttft_error_s) // 2] < 0.05
    assert 0 < found.read_s_per_chunk < found.cpu_s_per_chunk * 5
    text = "\n".join(selftest.format_lines(found))
    assert "first piece  timestamp p50" in text
    assert "us of CPU a chunk" in text
