"""Quotas of several gateways: one worker of a gateway exchanges slices with the store for all of them.

Problem: each worker with slices of its own would multiply the calls and divide the slices. Rule: the workers share the
numbers of each limit in memory (`policy.admission.leased_bucket`). The leader alone calls the store: every TICK_S it
observes the demand of active limits, releases what is pending, and sends the reports that are due in one trip. Another
worker leads after `lease_leader.LEADER_GONE_S` without a tick; it reports under a name of its own and starts with the
stock in shared memory, so only what was pending is lost. A worker with a request that finds too little wakes the leader
through a cell.

No request waits for the store, except one whose tenant has no slice yet, or not enough although the shared bucket has: it
waits for the next call, `slices.WAIT_S` at most. A store that fails is lost at once: requests no longer wait, and a call
is tried after `lease_leader.RETRY_S`, then after twice as long, up to MAX_RETRY_S.
When wrong: two workers that take over in the same tick both lead for one tick, under different names.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Final

from stayfast.core.clock import Clock, Rng
from stayfast.core.events import Sink
from stayfast.policy.admission.leased_bucket import OWN_CELLS, LeaseCells, LeasedBucket
from stayfast.policy.admission.quota import Bucket, QuotaConfig
from stayfast.policy.fleet.config import FleetConfig, OnLoss
from stayfast.policy.resilience.cross_process import Cells
from stayfast.stores.fleet.quota_calls import QuotaStore
from stayfast.workers.fleet.lease_leader import LeaderCells, LeaseLeader
from stayfast.workers.fleet.tenant_leases import LeaseState
from stayfast.workers.shared_memory import OutOfSlots, SharedCounters

TICK_S: Final = 0.025
POLL_S: Final = 0.005
SCAN_S: Final = 0.25
_FEW_RATIO: Final = 1e-9  # of the capacity
Limits = dict[str, LeasedBucket]


class LeaseMemory:
    """Numbers by name: those of all workers of this gateway, or of the only worker."""

    __slots__ = ("_counters", "_names", "_private", "cells", "n", "n_workers")

    def __init__(self, counters: SharedCounters | None = None, n: int = 0, n_workers: int = 1) -> None:
        self._counters = counters
        self._names: dict[str, int] = {}
        self._private: list[float] = []
        self.cells: Cells = counters.numbers if counters is not None else self._private
        self.n = n
        self.n_workers = n_workers

    def slot(self, name: str) -> int:
        """Raises OutOfSlots."""
        if self._counters is not None:
            return self._counters.slot(f"fleet {name}")
        found = self._names.get(name)
        if found is None:
            found = self._names[name] = len(self._private)
            self._private.append(0.0)
        return found


class QuotaLeases:
    """One worker's part, for the life of the process. Belongs to one loop."""

    def __init__(self, store: QuotaStore, gateway: str, memory: LeaseMemory, clock: Clock, sink: Sink, *,
                 rng: Rng) -> None:
        self._store = store
        self._memory = memory
        self._clock = clock
        self._on_loss: OnLoss = "local"
        self._quotas: Mapping[str, QuotaConfig] = {}
        self._buckets: dict[str, Limits] = {}
        self._wake_cells = [memory.slot(f"wake of {n}") for n in range(memory.n_workers)]
        self._woken = asyncio.Event()
        self._is_stopped = False
        self._task: asyncio.Task[None] | None = None
        self._lost = memory.slot("lost")
        self.leader = LeaseLeader(store, f"{gateway}.{rng.getrandbits(32):08x}", clock, sink, cells=memory.cells,
                                  index=LeaderCells(self._lost, memory.slot("leader"), memory.slot("led at")),
                                  mark=1 + memory.n)

    def configure(self, config: FleetConfig, quotas: Mapping[str, QuotaConfig]) -> None:
        """quotas: of all tenants, in the same order in all workers."""
        self._on_loss, self._quotas = config.on_loss, quotas
        self.leader.n_expected = config.expected_gateways
        for tenant, limits in self._buckets.items():
            for limit, bucket in limits.items():
                bucket.on_loss = self._on_loss_of(tenant, limit)

    def bucket(self, tenant: str, limit: str, capacity: float, per_s: float, now: float) -> Bucket:
        """One limit of a tenant; for this worker alone if no slot is left."""
        limits = self._buckets.setdefault(tenant, {})
        known = limits.get(limit)
        if known is not None and known.capacity == capacity:
            return known
        slot = f"{limit} {capacity!r} of tenant {tenant}"
        try:
            cells = [self._memory.slot(f"{slot} {name}") for name in OWN_CELLS]
        except OutOfSlots:
            return Bucket(capacity, per_s, now)
        bucket = limits[limit] = LeasedBucket(
            capacity, per_s, now, self._memory.cells, LeaseCells(self._lost, *cells),
            on_loss=self._on_loss_of(tenant, limit), wake=partial(self._wake, tenant))
        return bucket

    async def wait_for_grant(self, tenant: str, limit: str, cost: float, until: float) -> bool:
        """Wait for the next call if the shared bucket may have `cost`; whether it is here. Not longer than `until`."""
        bucket = self._buckets.get(tenant, {}).get(limit)
        if bucket is None or bucket.room(self._clock.now()) < cost:
            return False
        while self._clock.now() + POLL_S < until:
            if not bucket.is_known:
                self._wake(tenant)  # again: no worker may have led before
            await asyncio.sleep(POLL_S)
            now = self._clock.now()
            if bucket.has_room(cost, now):
                return True
            if bucket.room(now) < cost:
                return False
        return False

    def begin(self, spawn: Callable[[Coroutine[None, None, None]], asyncio.Task[None]]) -> None:
        """Begin to exchange slices, until `close`."""
        self._task = spawn(self.run())

    async def run(self) -> None:
        """Until `stop`."""
        scanned_at = self._clock.now()
        self.leader.lead(scanned_at)
        while not self._is_stopped:
            with suppress(TimeoutError):
                async with asyncio.timeout(TICK_S):
                    await self._woken.wait()
            self._woken.clear()
            now = self._clock.now()
            if not self.leader.lead(now):
                continue
            self._wake_for_others(now)
            if now - scanned_at >= SCAN_S:
                scanned_at = now
                self._find_unsettled(now)
            await self.leader.tick(now)

    async def stop(self) -> None:
        """Exchange nothing any more. A cancellation alone is not enough: clients of Redis may take it for a time-out."""
        self._is_stopped = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))

    async def close(self) -> None:
        """Give back what is held, and close the connection."""
        await self.stop()
        await self.leader.give_back()
        await self._store.close()

    def states(self) -> Iterator[LeaseState]:
        """The active limits, if this worker leads."""
        return self.leader.states(self._clock.now())

    def _on_loss_of(self, tenant: str, limit: str) -> OnLoss:
        quota = self._quotas.get(tenant)
        return quota.on_loss.get(limit, self._on_loss) if quota is not None else self._on_loss

    def _wake(self, tenant: str) -> None:
        if self.leader.is_leading:
            self.leader.activate(tenant, self._buckets[tenant], self._clock.now())
            self._woken.set()
        elif tenant in self._quotas:
            self._memory.cells[self._wake_cells[self._memory.n]] = 1 + list(self._quotas).index(tenant)

    def _wake_for_others(self, now: float) -> None:
        """Activate the tenants for which other workers woke this one."""
        cells = self._memory.cells
        for cell in self._wake_cells:
            n = int(cells[cell])
            if n:
                cells[cell] = 0.0
                tenant, quota = list(self._quotas.items())[min(n, len(self._quotas)) - 1]
                for limit, capacity, per_s in quota.limits():
                    self.bucket(tenant, limit, capacity, per_s, now)
                self.leader.activate(tenant, self._buckets[tenant], now)

    def _find_unsettled(self, now: float) -> None:
        """Activate the tenants with something to give back or to charge."""
        for tenant, limits in self._buckets.items():
            if any(abs(bucket.stock) > bucket.capacity * _FEW_RATIO for bucket in limits.values()):
                self.leader.activate(tenant, limits, now)

    def __repr__(self) -> str:
        return f"<QuotaLeases of {len(self._buckets)} tenants, {self.leader!r}>"
