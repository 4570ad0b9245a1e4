"""Batches on a real PostgreSQL: the coordinator that dies at every call."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from stayfast.core.clock import SystemClock
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
