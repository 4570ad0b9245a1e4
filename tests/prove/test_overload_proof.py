"""The claim `overload` holds in virtual time, falls short with a broken queue, and takes its figures over sockets."""

from dataclasses import replace
from functools import cache
from math import isnan
from typing import Any

import msgspec
import pytest

from stayfast.lab.claims import overload
from stayfast.lab.claims.overload import (
    DEFAULT_QUEUE,
    GOODPUT_GOAL,
    NO_QUEUE,
    Overload,
    OverloadCase,
    OverloadPhases,
    OverloadRun,
    late_reason,
    make_figures,
    run_in_virtual_time,
    run_over_sockets,
)
from stayfast.lab.harness.claim import ClaimResult, Figure
from stayfast.lab.harness.virtual import run_virtual
from stayfast.lab.load.result import ClientHealth
from stayfast.lab.simulated import EngineModel
from stayfast.policy.admission.overload import AdmissionConfig
from stayfast.policy.admission.priority import Points
from stayfast.policy.admission.queue import QueueConfig
from tests.prove.running import run, short_of

SHORT = OverloadPhases(30.0, 40.0, 30.0, 15.0)
NO_POINTS = Points(premium=0, realtime=0, retry=0, batch=0)


@cache
def _run(case: OverloadCase, seed: int = 1) -> OverloadRun:
    return run_virtual(run_in_virtual_time, SHORT, case.admission, seed)


def _figures(case: OverloadCase) -> tuple[Figure, ...]:
    return tuple(make_figures("", [_run(case)], SHORT, case, GOODPUT_GOAL))


def _broken(**changes: Any) -> list[str]:
    """The figures of the default queue that fall short with these admission settings."""
    return short_of(ClaimResult(_figures(replace(DEFAULT_QUEUE, admission=replace(DEFAULT_QUEUE.admission, **changes)))))


@pytest.mark.parametrize("case", [NO_QUEUE, DEFAULT_QUEUE], ids=lambda case: case.name)
def test_overload_claim_virtual_time_does_not_fall_short(case: OverloadCase) -> None:
    """Thirty seconds of five times the load are too few for a p99 of the premium tier, whose value is within its goal."""
    figures = _figures(case)
    assert short_of(ClaimResult(figures)) == []
    assert all(figure.value <= overload.P99_GOAL for figure in figures if "over that (n=" in figure.name)


def test_overload_claim_queue_without_priorities_falls_short() -> None:
    short = _broken(priority_points=NO_POINTS)
    assert any("premium: requests without an answer" in name for name in short)


def test_overload_claim_unbounded_queue_falls_short() -> None:
    """Nobody is rejected in time: the standing queue fills all places with requests that have waited for a minute."""
    short = _broken(queue=QueueConfig(max_queue=100_000, max_wait_s=3600.0, target_wait_s=3600.0), reserved_share=0.0)
    assert any("premium: TTFT p99" in name or "recovered after" in name or "without an answer" in name for name in short)


def test_overload_claim_queue_without_short_wait_rejects_too_late() -> None:
    """A standing queue in which each request waits 2 s."""
    short = _broken(queue=QueueConfig(max_wait_s=2.0, target_wait_s=2.0), overload_loop_lag_s=10.0)
    assert any("refusals: the latest" in name for name in short)


def test_overload_claim_no_reserved_places_without_queue_rejects_premium() -> None:
    """Few in so short a run, but no longer provably at most one in a hundred."""
    case = replace(NO_QUEUE, admission=replace(NO_QUEUE.admission, reserved_share=0.0))
    [lost] = [figure for figure in _figures(case) if "answer under overload" in figure.name]
    assert lost.value > NO_QUEUE.lost * 100
    assert not lost.holds


def test_overload_claim_other_seed_redraws_engine() -> None:
    first, other = (_run(DEFAULT_QUEUE, seed).by_tier["premium"].samples.floats["first_s"][:20] for seed in (1, 2))
    assert first != other


def test_overload_claim_late_client_loop_spoils_run() -> None:
    late = [Figure.exact("refusals: p99", 9.0, "ms", 5.0)]
    at_ease = _run(NO_QUEUE)
    busy = {name: msgspec.structs.replace(result, health=ClientHealth(loop_lag_p99_s=0.004))
            for name, result in at_ease.by_tier.items()}
    assert late_reason(at_ease, late) is None
    assert late_reason(replace(at_ease, by_tier=busy), late) == "the client's own loop was 4.0 ms late at p99"
    assert late_reason(replace(at_ease, by_tier=busy), [Figure.exact("refusals: p99", 1.0, "ms", 5.0)]) is None


@pytest.mark.sockets
def test_overload_claim_takes_every_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine has a quarter of the places, and takes a quarter of the time for an answer."""
    async def quickly(phases: OverloadPhases, admission: AdmissionConfig, seed: int) -> OverloadRun:
        n_places = overload.N_PLACES // 4
        monkeypatch.setattr(overload, "WARMUP_S", 2.0)
        monkeypatch.setattr(overload, "N_PLACES", n_places)
        engine = EngineModel(max_running=n_places, decode_step_s=overload.STEP_S / 4)
        monkeypatch.setattr(overload, "PROVIDER", replace(overload.PROVIDER, engine=engine))
        return await run_over_sockets(phases, replace(admission, max_in_flight=n_places), seed)

    monkeypatch.setattr(overload, "run_over_sockets", quickly)
    finding = run(Overload(quick=OverloadPhases(6.0, 3.0, 4.0, 2.0), quick_virtual=SHORT, cases=(DEFAULT_QUEUE,)))
    assert [figure.name for figure in finding.figures if isnan(figure.value)] == []
    assert [name for name in short_of(finding) if "virtual time" in name] == []
