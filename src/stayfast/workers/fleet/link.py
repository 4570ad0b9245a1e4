"""One gateway's link to the others: heartbeats, hints about breakers, and purges.

One process speaks for a gateway: its first live worker. It writes the gateway's record every `heartbeat_s` and receives the
records of all others in the same call; it checks its breakers every WATCH_S, and publishes changes as events; it executes
the purges of other gateways in all workers. If it ends, the next worker takes over, and first reads the events of the last
OVERLAP_S again. Each worker lists gateways and sends purges itself.

Nothing here is on the path of requests. Without the server, each gateway continues alone: views of other breakers expire,
the number of gateways stays, and purges that could not be published are retried.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from stayfast.core.clock import Clock, Rng
from stayfast.core.findings import Finding
from stayfast.core.snapshot import FleetRow
from stayfast.policy.fleet.findings import find_differences
from stayfast.policy.fleet.fleet_size import FleetSize
from stayfast.policy.resilience.retry import backoff_s
from stayfast.stores.fleet.base import FleetStore, FleetUnavailable, LiveGateway
from stayfast.workers.fleet.breakers import BreakerExchange
from stayfast.workers.fleet.comparison import FleetOverview, compare
from stayfast.workers.fleet.records import (
    MAX_BREAKERS,
    MAX_RECORD_BYTES,
    BreakerHint,
    GatewayRecord,
    OpenBreaker,
    PurgeOrder,
    PurgeReply,
    decode_message,
    decode_reply,
    encode_message,
    read_record,
)

WATCH_S: Final = 0.2
OVERLAP_S: Final = 10.0
GONE_AFTER_BEATS: Final = 3
PURGE_WAIT_S: Final = 1.5  # for the other gateways to confirm
PURGE_POLL_S: Final = 0.02
REMEMBERED_S: Final = 60.0  # a restarted server lists the gateways one after another
UNKNOWN: Final = "(unknown)"  # gateways, before the first exchange
MAX_PENDING: Final = 100  # purges that wait for the server
RETRY_S, RETRY_MAX_S = 0.5, 5.0


class GatewayHost(Protocol):
    """This gateway, as its link needs it."""

    def is_speaker(self) -> bool:
        """Whether this process speaks for the gateway now."""

    async def describe(self) -> GatewayRecord:
        """The gateway without its breakers: all workers."""

    async def purge(self, what: bytes) -> bytes:
        """Execute a purge in all workers; returns its result."""


class RemotePurge(NamedTuple):
    """The result of a purge at the other gateways: encoded results; the gateways that did not confirm, and why."""

    results: list[bytes]
    unconfirmed: dict[str, str]


class FleetStatus(NamedTuple):
    """Gateways alive at the last exchange; its age, None before the first one; and why the last one failed, if it did."""

    n_alive: int
    age_s: float | None
    why: str


class FleetLink:
    """One process's link. Belongs to one loop."""

    def __init__(self, gateway: str, store: FleetStore, clock: Clock, rng: Rng, *, log: Callable[..., None],
                 heartbeat_s: float) -> None:
        self.id = gateway
        self.breakers = BreakerExchange()
        self._size = FleetSize()
        self._store = store
        self._clock = clock
        self._rng = rng
        self._log = log
        self._beat_s = heartbeat_s
        self._ttl_s = GONE_AFTER_BEATS * heartbeat_s
        self._others: dict[str, GatewayRecord] = {}
        self._seen_at: dict[str, float] = {}  # other gateways of the last REMEMBERED_S
        self._exchanged_at: float | None = None
        self._compared = FleetOverview()
        self._why = ""
        self._pending: deque[bytes] = deque(maxlen=MAX_PENDING)
        self._retrying: asyncio.Task[None] | None = None

    async def run(self, host: GatewayHost) -> None:
        """Exchange until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._beat_until_cancelled(host))
            group.create_task(self._watch_until_cancelled(host))
            group.create_task(self._listen_until_cancelled(host))

    async def close(self, host: GatewayHost) -> None:
        """Leave the fleet, if this process speaks for the gateway."""
        if self._retrying is not None:
            self._retrying.cancel()
        try:
            if host.is_speaker():
                await self._store.leave(self.id)
        except FleetUnavailable as error:
            self._log("fleet_left_unannounced", level="warning", detail=str(error))
        await self._store.close()

    @property
    def n_gateways(self) -> int | None:
        """The number of gateways for limits; None before the first exchange of this process."""
        return self._size.n if self._exchanged_at is not None else None

    def status(self) -> FleetStatus:
        age_s = self._clock.now() - self._exchanged_at if self._exchanged_at is not None else None
        return FleetStatus(1 + len(self._others), age_s, self._why)

    async def beat(self, host: GatewayHost) -> None:
        """Exchange records once. Raises FleetUnavailable."""
        record = await self._describe(host)
        live = await self._store.beat(self.id, _encode_record(record), self._ttl_s)
        now = self._clock.now()
        self._others = {one.id: read_record(one.id, one.record) for one in live if one.id != self.id}
        self._note_seen(live)
        for gateway, other in self._others.items():
            self.breakers.board.receive(gateway, other.views, other.sent_at, now)
        self.breakers.board.keep_only(frozenset(self._others))
        self._size.observe(1 + len(self._others), now)
        self._exchanged_at = self._clock.now()
        self._compared = compare([record, *self._others.values()], {one.id: one.seen_s_ago for one in live},
                                 self._compared, self._clock.wall())
        if self._why:
            self._why = ""
            self._log("fleet", detail="the server of shared state answers again")

    def findings(self) -> Sequence[Finding]:
        """Differences between the gateways; empty in a process that does not exchange records now."""
        return self._compared.findings if self._is_current() else ()

    def rows(self) -> list[FleetRow]:
        """All gateways, as `findings`."""
        return list(self._compared.rows) if self._is_current() else []

    def _is_current(self) -> bool:
        return self._exchanged_at is not None and self._clock.now() - self._exchanged_at <= self._ttl_s

    async def gateways(self, host: GatewayHost) -> dict[str, Any]:
        """All live gateways; without the server, this one, and why."""
        records: dict[str, tuple[GatewayRecord, float]] = {}
        why = ""
        try:
            listed = await self._store.list_gateways(self._ttl_s)
            self._note_seen(listed)
            for live in listed:
                records[live.id] = (read_record(live.id, live.record), live.seen_s_ago)
        except FleetUnavailable as error:
            why = f"the server of shared state is unavailable ({error}), so other gateways are unknown"
        if self.id not in records:
            records[self.id] = (await self._describe(host), 0.0)
        members = [record.as_member() for record, _ in records.values() if record.version]
        rows = [record.as_row(seen_s_ago, is_self=record.id == self.id)
                for record, seen_s_ago in sorted(records.values(), key=lambda item: item[0].id)]
        return {"object": "list", "data": rows, "why_alone": why or None,
                "findings": [finding.summary for finding in find_differences(members)]}

    async def purge_elsewhere(self, what: bytes) -> RemotePurge:
        """Execute a purge at all other gateways; waits PURGE_WAIT_S at most. Without the server it is retried."""
        call = f"{self._rng.getrandbits(64):016x}"
        order = PurgeOrder(self.id, call, what)
        try:
            waiting = {one.id for one in await self._store.list_gateways(self._ttl_s)} - {self.id}
            await self._store.publish(encode_message(order))
        except FleetUnavailable as error:
            self._pending.append(encode_message(msgspec.structs.replace(order, call="")))
            self._start_retrying()
            why = f"the server of shared state is unavailable ({error}); the purge is retried"
            return RemotePurge([], dict.fromkeys(sorted(self._seen_at) or [UNKNOWN], why))
        results, ends_at = [], self._clock.now() + PURGE_WAIT_S
        while waiting and self._clock.now() < ends_at:
            for reply in await self._take_replies(call):
                if reply.gateway in waiting:
                    waiting.discard(reply.gateway)
                    results.append(reply.result)
            if waiting:
                await asyncio.sleep(PURGE_POLL_S)
        return RemotePurge(results, dict.fromkeys(sorted(waiting), f"no confirmation in {PURGE_WAIT_S:g} s"))

    async def announce_epochs(self, epochs: Mapping[str, tuple[str, bytes]]) -> None:
        """The epochs of this gateway's routes, with the purge of each. A route whose epoch was another one in the fleet is
        purged at the other gateways. Raises FleetUnavailable.
        """
        for route, (epoch, what) in epochs.items():
            if await self._store.claim_epoch(route, epoch):
                self._log("fleet", detail=f"route {route} has a new epoch: its answers are purged at the other gateways")
                await self._store.publish(encode_message(PurgeOrder(self.id, "", what)))

    def _note_seen(self, live: Sequence[LiveGateway]) -> None:
        now = self._clock.now()
        self._seen_at = {gateway: at for gateway, at in self._seen_at.items() if at > now - REMEMBERED_S}
        self._seen_at.update({one.id: now for one in live if one.id != self.id})

    async def _take_replies(self, call: str) -> Sequence[PurgeReply]:
        try:
            return [decode_reply(data) for data in await self._store.take_replies(call)]
        except (FleetUnavailable, msgspec.DecodeError):
            return ()

    async def _describe(self, host: GatewayHost) -> GatewayRecord:
        described, now = await host.describe(), self._clock.now()
        views = self.breakers.views(now)
        names = {hinted.digest: hinted.label for hinted in self.breakers if hinted.digest in views}
        return msgspec.structs.replace(described, id=self.id, views=views, names=names, sent_at=now,
                                       breakers=tuple(self._open_breakers(now))[:MAX_BREAKERS])

    def _open_breakers(self, now: float) -> list[OpenBreaker]:
        return [OpenBreaker(hinted.name, hinted.health.model, hinted.health.breaker.state.value,
                            "quorum" if hinted.is_by_quorum else "own", hinted.health.breaker.why,
                            round(hinted.health.breaker.open_left_s(now), 1))
                for hinted in self.breakers if not hinted.is_closed]

    async def _beat_until_cancelled(self, host: GatewayHost) -> None:
        n_failed = 0
        while True:
            wait_s = self._beat_s
            if host.is_speaker():
                try:
                    await self.beat(host)
                    n_failed = 0
                except FleetUnavailable as error:
                    n_failed += 1
                    self._note_failure(str(error))
                    wait_s = max(wait_s, backoff_s(n_failed, RETRY_S, RETRY_MAX_S, self._rng, jitter=0.2))
            await asyncio.sleep(wait_s)

    def _note_failure(self, why: str) -> None:
        self._size.interrupt()
        if not self._why:
            self._log("fleet", level="warning", detail=f"the server of shared state is unavailable ({why}); this gateway "
                                                      "continues alone")
        self._why = why

    async def _watch_until_cancelled(self, host: GatewayHost) -> None:
        was_speaker = False
        while True:
            if host.is_speaker():
                was_speaker = True
                await self._exchange_breakers()
            elif was_speaker:
                was_speaker = False
                self.breakers.release()
            await asyncio.sleep(WATCH_S)

    async def _exchange_breakers(self) -> None:
        now = self._clock.now()
        self.breakers.consider(now)
        for digest, view in self.breakers.take_news(now).items():
            try:
                await self._store.publish(encode_message(BreakerHint(self.id, digest, view, now)))
            except FleetUnavailable as error:
                self._note_failure(str(error))  # the record of the next heartbeat has it, too
                return

    async def _listen_until_cancelled(self, host: GatewayHost) -> None:
        position, n_failed = "", 0
        while True:
            if not host.is_speaker():
                position = ""
                await asyncio.sleep(self._beat_s)
                continue
            try:
                if not position:
                    position = await self._store.position_before(OVERLAP_S)
                for event in await self._store.read_events(position):
                    position = event.position
                    await self._execute(event.data, host)
                n_failed = 0
            except FleetUnavailable:
                n_failed += 1
                await asyncio.sleep(backoff_s(n_failed, RETRY_S, RETRY_MAX_S, self._rng, jitter=0.2))

    async def _execute(self, data: bytes, host: GatewayHost) -> None:
        """Execute one event. Events of newer versions, or damaged ones, are ignored."""
        try:
            message = decode_message(data)
        except msgspec.DecodeError:
            return
        if message.gateway == self.id:
            return
        if isinstance(message, BreakerHint):
            self.breakers.receive(message, self._clock.now())
            return
        result = await host.purge(message.what)
        if message.call:
            await self._store.reply(message.call, encode_message(PurgeReply(self.id, result)))

    def _start_retrying(self) -> None:
        if self._retrying is None or self._retrying.done():
            self._retrying = asyncio.get_running_loop().create_task(self._retry_pending())

    async def _retry_pending(self) -> None:
        n_failed = 0
        while self._pending:
            try:
                await self._store.publish(self._pending[0])
                self._pending.popleft()
                n_failed = 0
            except FleetUnavailable:
                n_failed += 1
                await asyncio.sleep(backoff_s(n_failed, RETRY_S, RETRY_MAX_S, self._rng, jitter=0.2))

    def __repr__(self) -> str:
        return f"<FleetLink {self.id}: {self.status()!r}>"


def _encode_record(record: GatewayRecord) -> bytes:
    """At most MAX_RECORD_BYTES: without its breakers, if necessary."""
    data = encode_message(record)
    if len(data) <= MAX_RECORD_BYTES:
        return data
    return encode_message(msgspec.structs.replace(record, views={}, names={}, breakers=()))
