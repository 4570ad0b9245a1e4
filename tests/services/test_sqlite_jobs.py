"""The embedded store of jobs against everything that `JobStore` states."""

from contextlib import AbstractAsyncContextManager
from itertools import count
from pathlib import Path

import pytest
import uvloop

from tests.services.batch_store_suite import BatchStoreSuite
from tests.services.job_store_machine import check_store
from tests.services.job_store_rig import JobStoreRig
from tests.services.job_store_suite import JobStoreSuite
from tests.services.key_store_suite import KeySuite
from tests.services.report_store_suite import ReportSuite
from tests.services.sqlite_jobs_rig import opened_handover, opened_rig


class TestSqliteJobs(JobStoreSuite, BatchStoreSuite, ReportSuite, KeySuite):
    """With its threads, as a gateway has it."""

    folder: Path
    is_inline = False

    @pytest.fixture(autouse=True)
    def place(self, tmp_path: Path) -> None:
        """Where its file is."""
        self.folder = tmp_path / "jobs"

    def open(self) -> AbstractAsyncContextManager[JobStoreRig]:
        """An empty one."""
        return opened_rig(self.folder, is_inline=self.is_inline)


class TestInlineJobs(TestSqliteJobs):
    """Without threads, as a simulation has it."""

    is_inline = True


class TestHandedOverJobs(TestSqliteJobs):
    """Over the socket of the process that commits, on the loop of gateways."""

    run = staticmethod(uvloop.run)

    def open(self) -> AbstractAsyncContextManager[JobStoreRig]:
        """An empty one."""
        return opened_handover(self.folder)


def test_sqlite_jobs_equal_the_model(tmp_path: Path) -> None:
    """Random sequences of calls."""
    numbers = count()
    check_store(lambda: opened_rig(tmp_path / str(next(numbers)), is_inline=True))
