"""The claim `overload` holds in virtual time, falls short without reserved places, and takes its figures over sockets."""

from dataclasses import replace
from math import isnan

import msgspec
import pytest

from stayfast.lab.claims import overload
from stayfast.lab.claims.overload import (
    ADMISSION,
    Overload,
    OverloadPhases,
    OverloadRun,
    late_reason,
    make_figures,
    run_in_virtual_time,
    run_over_sockets,
)
from stayfast.lab.harness.claim import Figure
from stayfast.lab.harness.virtual import run_virtual
from stayfast.lab.load.result import ClientHealth
from stayfast.lab.simulated import EngineModel
from stayfast.policy.admission.overload import AdmissionConfig
from tests.prove.running import run, short_of

SHORT = OverloadPhases(30.0, 40.0, 20.0, 10.0, 1.3)


def _falls_short(admission: AdmissionConfig) -> list[str]:
    run = run_virtual(run_in_virtual_time, SHORT, admission, 1)
    return [figure.name for figure in make_figures("", run, SHORT) if not figure.holds]


def test_overload_claim_virtual_time_holds() -> None:
    """Twenty seconds of five times the load."""
    assert _falls_short(ADMISSION) == []


def test_overload_claim_no_reserved_places_rejects_premium() -> None:
    short = _falls_short(replace(ADMISSION, reserved_share=0.0))
    assert any("premium: requests without an answer" in name for name in short)


def test_overload_claim_late_client_loop_spoils_run() -> None:
    late = [Figure("refusals: p99", 9.0, "ms", 5.0)]
    at_ease = run_virtual(run_in_virtual_time, SHORT, ADMISSION, 1)
    busy = {name: msgspec.structs.replace(result, health=ClientHealth(loop_lag_p99_s=0.004))
            for name, result in at_ease.by_tier.items()}
    assert late_reason(at_ease, late) is None
    assert late_reason(replace(at_ease, by_tier=busy), late) == "the client's own loop was 4.0 ms late at p99"
    assert late_reason(replace(at_ease, by_tier=busy), [Figure("refusals: p99", 1.0, "ms", 5.0)]) is None


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
    brief = OverloadPhases(6.0, 3.0, 4.0, 2.0, 1.5)
    finding = run(Overload(quick=brief, quick_virtual=SHORT))
    assert [figure.name for figure in finding.figures if isnan(figure.value)] == []
    assert [name for name in short_of(finding) if name.startswith("virtual time")] == []
