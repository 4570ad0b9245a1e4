"""Durable jobs and batches."""

from typing import Any

import pytest

from stayfast.core.snapshot import JobRow, Snapshot, Spread, UpstreamRow
from tests.unit.policy.findings.check_rig import find, find_one, snapshot, spread, traffic

USUAL = spread(0.4, 0.7)


def jobs(settings: dict[str, Any] | None = None, *, live: Spread = USUAL, in_flight: int = 60,
         **fields: Any) -> Snapshot:
    row = JobRow("chat", **{"queued": 20, "running": 40, "oldest_s": 30.0, "n_ended": {"completed": 900},
                            "run_s": spread(5.0, 9.0, 12.0), **fields})
    return snapshot(settings, jobs=(row,), upstreams=(UpstreamRow("north", in_flight=in_flight),),
                    traffic=(traffic(300.0, n=300, ttft_s=live), traffic(3600.0, n=4000)))


IDLE: dict[str, Any] = {"queued": 300, "running": 0, "oldest_s": 4000.0, "n_ended": {}}
FAULTS = {
    "jobs.overdue": jobs(overdue_s=90.0),
    "jobs.unserved": jobs({"jobs": {"workers": "none"}}, **IDLE),
    "jobs.queue_deep": jobs(queued=50_000),
    "jobs.dead": jobs(n_ended={"completed": 200, "dead": 20}),
    "jobs.uneven_batches": jobs(batch_s=spread(600.0, 4000.0, 5000.0, 20), batch_deviation=0.9),
    "jobs.disturb_live": jobs(live=spread(0.7, 2.0, 3.0, 300)),
}


@pytest.mark.parametrize("check", FAULTS)
def test_troubled_work_is_found(check: str) -> None:
    assert find_one(check, FAULTS[check]).where.route == "chat"


@pytest.mark.parametrize(("check", "observed"), [
    ("jobs.overdue", jobs()),
    ("jobs.unserved", jobs({"jobs": {"windows": {"chat": "22:00-06:00 UTC"}}}, **IDLE)),  # it waits for the night
    ("jobs.unserved", jobs(**{**IDLE, "oldest_s": 20.0})),
    ("jobs.unserved", jobs(**{**IDLE, "oldest_s": 900.0, "n_ended": {"completed": 50}})),  # it gives way to live requests
    ("jobs.queue_deep", jobs(queued=5000)),  # done in six hours
    ("jobs.queue_deep", jobs(queued=500, n_ended={"completed": 1})),
    ("jobs.dead", jobs(n_ended={"completed": 900, "dead": 2})),  # single bad requests
    ("jobs.uneven_batches", jobs(batch_s=spread(600.0, 700.0, 800.0, 20), batch_deviation=0.2)),
    ("jobs.uneven_batches", jobs(batch_s=spread(600.0, 4000.0, 5000.0, 3), batch_deviation=0.9)),
    ("jobs.disturb_live", jobs()),  # jobs run, live requests are as always
    ("jobs.disturb_live", jobs(live=spread(0.7, 2.0, 3.0, 300), running=2)),  # slower for another reason
])
def test_look_alike_is_not_found(check: str, observed: Snapshot) -> None:
    assert find(check, observed) == []
