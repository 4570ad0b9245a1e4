"""The worker of a gateway that calls the store of shared limits."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from stayfast.core.clock import Clock
from stayfast.core.events import Sink, StoreChanged
from stayfast.policy.admission.leased_bucket import LeasedBucket
from stayfast.policy.resilience.cross_process import Cells
from stayfast.stores.fleet.quota_calls import MAX_CALLS, QuotaStore, QuotaStoreLost
from stayfast.workers.fleet.tenant_leases import LeaseState, TenantLeases

LEADER_GONE_S: Final = 0.5
RETRY_S, MAX_RETRY_S = 0.25, 1.0


STORE: Final = "fleet"  # its name in events


class LeaderCells(NamedTuple):
    """Indices of the numbers that workers share. `led_at`: the leader's last tick."""

    lost: int
    leader: int
    led_at: int


class _Retry:
    """When a lost store is tried again."""

    __slots__ = ("at", "pause_s", "why")

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.at, self.pause_s, self.why = float("-inf"), RETRY_S, ""

    def postpone(self, now: float, why: str) -> None:
        self.at, self.why = now + self.pause_s, why
        self.pause_s = min(MAX_RETRY_S, 2 * self.pause_s)


class LeaseLeader:
    """Leads if no other worker does. Belongs to one loop. `calls`: calls by result, of tenants."""

    __slots__ = ("_active", "_cells", "_clock", "_gateway", "_index", "_mark", "_n_gateways", "_number", "_retry", "_sink",
                 "_store", "calls", "count_live", "is_leading", "n_expected")

    def __init__(self, store: QuotaStore, gateway: str, clock: Clock, sink: Sink, *, cells: Cells, index: LeaderCells,
                 mark: int) -> None:
        """mark: of this worker; not 0."""
        self._store = store
        self._gateway = gateway
        self._clock = clock
        self._sink = sink
        self._cells = cells
        self._index = index
        self._mark = mark
        self._active: dict[str, TenantLeases] = {}
        self._retry = _Retry()
        self._n_gateways = 0
        self._number = 0  # of the last call; the store's record of a tenant outlives its leases here
        self.n_expected = 1  # by the settings
        self.count_live: Callable[[], int] = lambda: 1  # by the gateways' heartbeats
        self.is_leading = False
        self.calls = {"ok": 0, "stale": 0, "error": 0}

    @property
    def why_lost(self) -> str:
        return self._retry.why

    @property
    def is_lost(self) -> bool:
        return self._cells[self._index.lost] > 0

    @property
    def n_gateways(self) -> int:
        """As far as known."""
        return max(self._n_gateways, self.count_live(), self.n_expected)

    def lead(self, now: float) -> bool:
        """Whether this worker leads now. One that takes over acts a tick later, unless another one was faster."""
        cells = self._cells
        if not cells[self._index.leader]:
            cells[self._index.leader] = self._mark
        if cells[self._index.leader] == self._mark:
            if not self.is_leading:
                self.is_leading = True
                self._active.clear()
            cells[self._index.led_at] = now
            return True
        self.is_leading = False
        if now - cells[self._index.led_at] > LEADER_GONE_S:
            cells[self._index.leader], cells[self._index.led_at] = self._mark, now
        return False

    def activate(self, tenant: str, limits: Mapping[str, LeasedBucket], now: float) -> None:
        """Observe a tenant from now on, until it is idle."""
        leases = self._active.get(tenant)
        if leases is None:
            leases = self._active[tenant] = TenantLeases(tenant, now)
        for limit, bucket in limits.items():
            if not leases.has_limit(limit, bucket):
                leases.add_limit(limit, bucket, now)

    async def tick(self, now: float) -> None:
        """Observe the active tenants, and make the calls that are due."""
        due = []
        for tenant, leases in list(self._active.items()):
            leases.observe(now)
            if self.is_lost and not leases.is_alone:
                leases.continue_alone(self.n_gateways, now)
            if leases.is_settled(now):
                leases.forget_rooms()
                del self._active[tenant]
            elif leases.is_due(now):
                due.append(leases)
        if due and now >= self._retry.at:
            await self._call(due[:MAX_CALLS])

    async def give_back(self) -> None:
        """The gateway ends: give back what it holds."""
        if self.is_leading and not self.is_lost:
            for leases in self._active.values():
                leases.end()
            for batch in _batches(self._active.values()):
                await self._call(batch)

    def states(self, now: float) -> Iterator[LeaseState]:
        if self.is_leading:
            for leases in self._active.values():
                yield from leases.states(self.n_gateways, now)

    async def _call(self, due: list[TenantLeases]) -> None:
        began_at = self._clock.now()
        self._number += 1
        calls = [leases.make_call(self._number, began_at) for leases in due]
        try:
            replies = await self._store.exchange(self._gateway, calls)
        except QuotaStoreLost as error:
            self.calls["error"] += len(calls)
            self._lose(str(error))
            return
        now = self._clock.now()
        if self.is_lost:
            self._sink.emit(StoreChanged(STORE, "closed", "it answers again"))
        self._cells[self._index.lost] = 0.0
        self._retry.reset()
        n_gateways = 0
        for leases, reply in zip(due, replies, strict=True):
            self.calls["ok" if reply is not None else "stale"] += 1
            if reply is not None and self._cells[self._index.leader] == self._mark:
                leases.take_reply(reply, now)
                n_gateways = max(n_gateways, leases.n_gateways)
        self._n_gateways = n_gateways

    def _lose(self, why: str) -> None:
        now = self._clock.now()
        if not self.is_lost:
            self._sink.emit(StoreChanged(STORE, "open", f"shared limits continue without it: {why}"))
        self._cells[self._index.lost] = 1.0
        self._retry.postpone(now, why)
        for leases in self._active.values():
            leases.continue_alone(self.n_gateways, now)

    def __repr__(self) -> str:
        return f"<LeaseLeader {self._gateway}: {len(self._active)} tenants, {'lost' if self.is_lost else 'connected'}>"


def _batches(leases: Iterable[TenantLeases]) -> Iterator[list[TenantLeases]]:
    every = list(leases)
    for at in range(0, len(every), MAX_CALLS):
        yield every[at:at + MAX_CALLS]
