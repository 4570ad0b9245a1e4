"""Rows of stores, from calls and from what servers report."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.core.events import JobStoreCalled, StoreCallDone, StoreChanged
from stayfast.observe.snapshot.store_probes import (
    READ_EVERY_S,
    ServerMemory,
    StoreParts,
    StoreProbe,
    StoreSite,
    merge_stores,
)
from stayfast.testing import SimLoop, run

SITES = {"hot": StoreSite("redis", ("cache",)), "jobs": StoreSite("sqlite", ("jobs",))}


def probing(act: Callable[[StoreProbe, SimLoop], Awaitable[None]], **sites: StoreSite) -> StoreParts:
    """The parts after some acts."""
    async def main(loop: SimLoop) -> StoreParts:
        probe = StoreProbe(loop)
        probe.begin(sites or SITES)
        await act(probe, loop)
        return probe.collect(loop.now())

    return run(main)


def test_store_row_calls_and_failures_are_counted() -> None:
    async def act(probe: StoreProbe, loop: SimLoop) -> None:
        probe.note_calls([StoreCallDone("hot", "get", result, 0.002)
                          for result in ("hit", "miss", "local_hit", "timeout", "suspended")])

    (row,) = merge_stores([probing(act), probing(act)])
    assert (row.name, row.kind, row.purposes, row.n_calls, row.n_failed) == ("hot", "redis", ("cache",), 8, 4)
    assert row.call_s.p50 == pytest.approx(0.002, rel=0.012)
    assert (row.n_evicted, row.memory_ratio, row.is_open) == (None, None, True)


def test_store_row_of_jobs_exists_once_it_is_called() -> None:
    async def act(probe: StoreProbe, loop: SimLoop) -> None:
        probe.note_job_call(JobStoreCalled("claim", "unavailable", 0.1))

    rows = {row.name: row for row in merge_stores([probing(act)])}
    assert (rows["jobs"].n_calls, rows["jobs"].n_failed) == (1, 1)


def test_store_row_open_breaker_has_its_reason_until_it_closes() -> None:
    async def opens(probe: StoreProbe, loop: SimLoop) -> None:
        probe.note_change(StoreChanged("hot", "open", "5 look-ups without a reply"))

    async def closes(probe: StoreProbe, loop: SimLoop) -> None:
        await opens(probe, loop)
        probe.note_change(StoreChanged("hot", "closed", ""))

    assert [(row.is_open, row.why_not) for row in merge_stores([probing(closes), probing(opens)])] == [
        (False, "5 look-ups without a reply")]
    assert merge_stores([probing(closes)])[0].is_open


def test_store_row_evictions_are_those_of_the_window() -> None:
    async def act(probe: StoreProbe, loop: SimLoop) -> None:
        task = asyncio.create_task(probe.run())
        await asyncio.sleep(1000)
        task.cancel()

    counts = iter(range(0, 10_000, 10))

    async def read() -> ServerMemory:
        return ServerMemory(next(counts), "allkeys-lru", 900, 1000)

    (row,) = merge_stores([probing(act, hot=StoreSite("redis", ("cache",), read)),
                           probing(act, hot=StoreSite("redis", ("cache",)))])
    assert row.n_evicted == 300 / READ_EVERY_S * 10
    assert (row.eviction_policy, row.memory_ratio) == ("allkeys-lru", 0.9)


def test_store_row_restarted_server_counts_from_its_start() -> None:
    async def act(probe: StoreProbe, loop: SimLoop) -> None:
        await probe.read_servers()
        await probe.read_servers()

    counts = iter((500, 7))

    async def read() -> ServerMemory:
        return ServerMemory(next(counts), "noeviction", 5, 0)

    (row,) = merge_stores([probing(act, hot=StoreSite("redis", ("cache",), read))])
    assert (row.n_evicted, row.memory_ratio) == (7, None)


@given(st.lists(st.tuples(st.sampled_from(["hit", "miss", "timeout", "stored"]), st.floats(0, 10)), max_size=30),
       st.integers(1, 3))
def test_merge_stores_any_workers_counts_every_call(calls: list[tuple[str, float]], n_workers: int) -> None:
    def part(number: int) -> StoreParts:
        async def act(probe: StoreProbe, loop: SimLoop) -> None:
            probe.note_calls([StoreCallDone("hot", "get", result, seconds) for result, seconds in calls[number::n_workers]])

        return probing(act)

    (row,) = merge_stores([part(number) for number in range(n_workers)])
    assert row.n_calls == row.call_s.n == len(calls)
    assert row.n_failed == sum(result == "timeout" for result, _ in calls)
