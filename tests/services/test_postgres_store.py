"""The store of durable work in a real PostgreSQL."""

from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager

import pytest

from tests.services.batch_store_suite import BatchStoreSuite
from tests.services.job_store_machine import check_store
from tests.services.job_store_rig import JobStoreRig
from tests.services.job_store_suite import JobStoreSuite
from tests.services.postgres_rig import postgres_rig
from tests.services.postgres_server import PostgresServer, postgres_server

pytestmark = pytest.mark.sockets


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """One for all tests of this file."""
    with postgres_server() as running:
        yield running


class TestPostgresStore(JobStoreSuite, BatchStoreSuite):
    """The suite of all stores."""

    @pytest.fixture(autouse=True)
    def use_server(self, server: PostgresServer) -> None:
        self.server = server

    def open(self) -> AbstractAsyncContextManager[JobStoreRig]:
        return postgres_rig(self.server.url)


def test_postgres_random_calls_behave_as_the_model(server: PostgresServer) -> None:
    """Against a model of the store."""
    check_store(lambda: postgres_rig(server.url), n_examples=10)
