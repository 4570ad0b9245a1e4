"""A store of jobs that is opened at its first use."""

import asyncio
from typing import cast

import pytest

from stayfast.core.events import JobStoreCalled
from stayfast.stores.base import StoreUnavailable
from stayfast.stores.jobs.base import FileBodies
from stayfast.stores.jobs.lazy import RETRY_S, LazyJobStore, OpenStores
from stayfast.testing import RecordingSink, SimLoop, run
from stayfast.testing.job_store import MemoryJobStore


def test_lazy_store_opens_once_at_the_first_of_many_calls() -> None:
    """However many come at once; each is measured."""
    async def main(loop: SimLoop) -> None:
        opened, sink = [], RecordingSink()

        async def open_stores() -> OpenStores:
            await asyncio.sleep(1)
            opened.append(1)
            return MemoryJobStore(loop).as_store(), cast("FileBodies", None)

        lazy = LazyJobStore(open_stores, loop, sink)
        assert opened == []
        await asyncio.gather(*[lazy.as_store().depths() for _ in range(5)])
        assert opened == [1]
        assert [(fact.what, fact.result) for fact in sink.facts_of(JobStoreCalled)] == [("depths", "ok")] * 5

    run(main)


def test_lazy_store_that_cannot_be_opened_is_tried_again_later_not_at_every_call() -> None:
    """With the first cause until then."""
    async def main(loop: SimLoop) -> None:
        tried = []

        async def open_stores() -> OpenStores:
            tried.append(loop.now())
            if len(tried) < 2:
                raise StoreUnavailable("read-only folder")
            return MemoryJobStore(loop).as_store(), cast("FileBodies", None)

        store = LazyJobStore(open_stores, loop, RecordingSink()).as_store()
        for _ in range(3):
            with pytest.raises(StoreUnavailable, match="read-only"):
                await store.depths()
        await asyncio.sleep(RETRY_S)
        assert await store.depths() == []
        assert tried == [0.0, RETRY_S]

    run(main)


def test_lazy_store_reports_the_result_of_failed_calls() -> None:
    """For metrics and the alert."""
    async def main(loop: SimLoop) -> None:
        sink, memory = RecordingSink(), MemoryJobStore(loop)

        async def open_stores() -> OpenStores:
            return memory.as_store(), cast("FileBodies", None)

        store = LazyJobStore(open_stores, loop, sink).as_store()
        await store.depths()
        memory.is_down = True
        with pytest.raises(StoreUnavailable):
            await store.depths()
        assert [fact.result for fact in sink.facts_of(JobStoreCalled)] == ["ok", "unavailable"]

    run(main)
