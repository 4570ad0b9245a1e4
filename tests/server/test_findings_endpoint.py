"""/admin/findings: the checks over the snapshot of now, for admins; one diagnosis for all viewers."""

import asyncio
import json
from typing import cast

import msgspec
import pytest
import uvloop

from stayfast.core.findings import Evidence, Finding, FindingSite
from stayfast.core.snapshot import Snapshot, TrafficRow
from stayfast.policy.findings.registry import CHECKS
from stayfast.server.snapshot.findings import MAX_AGE_S, FindingsReader, make_page
from stayfast.server.snapshot.service import SnapshotService
from tests.server.fakes import FakeBackend, get, serving
from tests.server.keys import ADMIN, KEY, KEYS
from tests.unit.observe.fact_rig import FrozenClock

REPORTED = Finding("prompt.moving_prefix", "warn", FindingSite(route="m"), "A time moves.", "It is in the system prompt.",
                   (Evidence("tokens", 40.0, "tokens"),))
SNAPSHOT = Snapshot(at=7.0, reported=(REPORTED,),
                    traffic=(TrafficRow("m", "", 3600.0, n=3), TrafficRow("m", "u", 3600.0, n=3)))


class CountedSnapshots:
    """Snapshots that count how often they are read."""

    def __init__(self) -> None:
        self.n_read = 0

    async def snapshot(self) -> bytes:
        self.n_read += 1
        return msgspec.json.encode(SNAPSHOT)


def test_findings_page_has_findings_checks_and_requests() -> None:
    """What other parts reported is part of it; every check is named, so that none found means something."""
    page = json.loads(make_page(msgspec.json.encode(SNAPSHOT)))
    assert (page["at"], page["n_requests"]) == (7.0, 3)
    assert page["findings"][0]["id"] == "prompt.moving_prefix"
    assert {check.id for check in CHECKS} <= {check["id"] for check in page["checks"]}


def test_findings_reader_diagnoses_once_for_all_viewers() -> None:
    """Again after MAX_AGE_S."""
    async def main() -> None:
        clock, snapshots = FrozenClock(), CountedSnapshots()
        reader, service = FindingsReader(clock), cast("SnapshotService", snapshots)
        first, second = await asyncio.gather(reader.read(service), reader.read(service))
        assert first == second
        assert snapshots.n_read == 1
        clock.now_s += MAX_AGE_S
        await reader.read(service)
        assert snapshots.n_read == 2

    asyncio.run(main())


@pytest.mark.sockets
def test_findings_endpoint_needs_admin_key() -> None:
    """Names of other tenants' routes are not for every key."""
    async def main() -> None:
        backend = FakeBackend(KEYS, snapshots=cast("SnapshotService", CountedSnapshots()))
        async with serving(backend) as running:
            client = await running.connect()
            statuses = []
            for headers in ((), (f"x-api-key: {KEY}",), (f"x-api-key: {ADMIN}",)):
                client.send(get("/admin/findings", *headers))
                status, _, body = await client.answer()
                statuses.append(status)
            assert statuses == [401, 403, 200]
            assert json.loads(body)["findings"][0]["id"] == "prompt.moving_prefix"

    uvloop.run(main())
