"""Batches on a real PostgreSQL: the coordinator dies at every call; gateway and server are killed in the middle."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from stayfast.core.clock import SystemClock
from stayfast.lab.claims.batch_run import BatchRunClaim
from stayfast.lab.harness.claim import Extent
from tests.prove.running import run, short_of
from tests.services.postgres_rig import START, PostgresRig
from tests.services.postgres_server import PostgresServer, postgres_server
from tests.unit.jobs.batch_rig import BatchRig, check_every_death

pytestmark = pytest.mark.sockets


class StoreClock(SystemClock):
    """Shows the instant at which the rig's store stands."""

    @staticmethod
    def wall() -> float:
        return START


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """One for all tests of this file."""
    with postgres_server() as running:
        yield running


def test_coordinator_killed_at_every_call_delivers_the_same_bytes_on_postgres(server: PostgresServer) -> None:
    """As on SQLite: no line lost, none twice."""
    @asynccontextmanager
    async def open_rig() -> AsyncIterator[BatchRig]:
        rig = PostgresRig(server.url)
        await rig.open()
        try:
            yield BatchRig(rig.store, rig.files, clock=StoreClock())
        finally:
            await rig.store.close()

    asyncio.run(check_every_death(open_rig))


@pytest.mark.serial
def test_batch_claim_on_postgres_that_is_killed_does_not_fall_short(server: PostgresServer) -> None:
    """The proof, with PostgreSQL killed and started again before each kill of the gateway."""
    def settings_of(run_number: int) -> dict[str, str]:
        name = f"batch{run_number}"
        server.execute(f"CREATE DATABASE {name}")
        return {"store": server.database_url(name)}

    def break_server() -> None:
        server.kill()
        server.start()

    finding = run(BatchRunClaim(quick=Extent(300), n_kills=2, jobs_of_run=settings_of, break_store=break_server))
    assert short_of(finding) == []
    assert "2 kills" in finding.notes[1]
