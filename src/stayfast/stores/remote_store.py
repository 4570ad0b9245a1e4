"""A store that several processes share: asked within an allowance, told in the background, left alone while it fails.

Problem: a cache that is elsewhere can be slow or gone, and then costs every request its time-out; one that fails makes the
whole service fail. Rule: whatever is wrong with it, it is a miss.

    near     what was had or put in the last `local_ttl_s` is had from this process's memory (S3-FIFO, `local_bytes`)
    asked    for at most `timeout_s`, and never beyond what the request's own budget gives its cache stage
    orders   wait and are carried by one task, all that wait at a time: so a burst of look-ups is one round trip, and a
             request that leaves breaks no connection
    told     in the background; what is written waits in at most PUTS_BYTES, and beyond that is not kept
    alone    after 5 look-ups in a row without an answer nothing is asked for a second, then one at a time is a probe: 2 good
             ones end it (`policy.resilience.breaker`). Orders that write have a breaker of their own: a store that is full
             still gives what it has

One call for all processes: the process that makes an answer leads, at most `coalesce_wait_s`. Others look for what it
made every FIRST_LOOK_S to LAST_LOOK_S, until it is there or nobody makes it any more. A dead leader costs `coalesce_wait_s`.
When wrong: what one process forgets on purpose, others may give for `local_ttl_s` more. Clocks of machines that differ make
answers older or younger by that.

An answer leaves this process as bytes. What another version wrote, or a broken disk, is no answer:

    1 byte   the form's version
    4 bytes  CRC-32 of key and rest, so that no answer is read under another key
    rest     msgpack of `Kept`, with its members' names: a version may add some; one that means something else by a name
             must raise `VERSION`
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import inf
from random import Random
from typing import Annotated, Final
from zlib import crc32

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from stayfast.core.clock import Clock
from stayfast.core.events import Sink, StoreCallDone, StoreChanged
from stayfast.core.setting import SettingDoc, check_bounds
from stayfast.policy.cache.s3fifo import S3Fifo
from stayfast.policy.resilience.breaker import Breaker, BreakerConfig, BreakerState
from stayfast.policy.resilience.retry import backoff_s
from stayfast.stores.base import (
    CachedAnswer,
    Get,
    IsLed,
    Lead,
    Led,
    Order,
    Put,
    Remove,
    Reply,
    StoreBackend,
    StoreStats,
    StoreUnavailable,
)
from stayfast.stores.journal import Journal

VERSION: Final = b"\x01"
_HEAD: Final = 5  # bytes before the msgpack
_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(CachedAnswer).decode


def packed(key: bytes, answer: CachedAnswer) -> bytes:
    encoded = _encode(answer)
    return VERSION + crc32(encoded, crc32(key)).to_bytes(4, "big") + encoded


def unpacked(key: bytes, data: bytes) -> CachedAnswer:
    """What was kept under a key. Raises ValueError for anything else."""
    if data[:1] != VERSION:
        raise ValueError("it was written by another version")
    encoded = memoryview(data)[_HEAD:]
    if crc32(encoded, crc32(key)) != int.from_bytes(data[1:_HEAD], "big"):
        raise ValueError("it is not what was written")
    try:
        return _decode(encoded)
    except (msgspec.DecodeError, RecursionError):
        raise ValueError("it is no answer of this version") from None


AT_A_TIME = 64
MOST_WAITING = 2000  # look-ups; more than that are told at once that there is nothing
MOST_NOTES = 10_000  # of a name; a server may keep some hundreds where one is asked for
PUTS_BYTES = 16 * 1024 * 1024
CLOSE_S = 1.0
FIRST_LOOK_S, LAST_LOOK_S = 0.01, 0.1
ALONE = BreakerConfig(consecutive_failures=5, failure_ratio=0.5, n_calls=20, min_calls=10, open_s=1.0)
CLOSED = BreakerState.CLOSED


@dataclass(frozen=True, slots=True)
class SharedConfig:
    """How a shared store is asked. Seconds and bytes; `coalesce_wait_s` 0: no process waits for another's call."""

    timeout_s: Annotated[float, SettingDoc(
        "Longest wait for the store; then the request continues as on a miss.", minimum=0.001, maximum=10)] = 0.02
    coalesce_wait_s: Annotated[float, SettingDoc(
        "Longest wait for another process that makes the same whole answer, at most half of the remaining time. 0: none.",
        minimum=0, maximum=60)] = 5.0
    local_bytes: Annotated[int, SettingDoc(
        "Memory for recently used answers, per worker; 0: none.", minimum=0, maximum=1 << 40)] = 16 * 1024 * 1024
    local_ttl_s: Annotated[float, SettingDoc(
        "Lifetime of an answer there; as long, other processes may serve what was purged.",
        more_than=0, maximum=86_400)] = 10.0

    def __post_init__(self) -> None:
        check_bounds(self)


class Lost(StrEnum):
    """Why there is no reply."""

    SLOW = "timeout"
    GONE = "unavailable"
    ALONE = "suspended"
    FULL = "full"


Future = asyncio.Future[Reply | Lost]


class _Near(Struct, gc=False):
    answer: CachedAnswer
    until: float


class _Waiting(Struct, gc=False):
    order: Order
    future: Future | None = None  # None: nobody waits for it
    n_bytes: int = 0


class _Kind:
    """Look-ups, or what is not: those that wait, and whether any are answered."""

    __slots__ = ("about", "breaker", "state", "waiting", "why")

    def __init__(self, about: str, rng: Random) -> None:
        self.about = about
        self.breaker = Breaker(ALONE, rng)
        self.state = CLOSED  # as it was told last
        self.waiting: deque[_Waiting] = deque()
        self.why = ""  # the last one did not answer


class RemoteStore:
    """A `Store` behind a `Door`. One loop's."""

    __slots__ = ("_carrying", "_clock", "_config", "_door", "_gets", "_is_closed", "_is_others_turn", "_journals",
                 "_leading", "_n_put_bytes", "_near", "_others", "_owner", "_sink", "name")
    is_shared = True

    def __init__(self, name: str, door: StoreBackend, config: SharedConfig, clock: Clock, sink: Sink, *,
                 rng: Random) -> None:
        self.name = name
        self._door = door
        self._config = config
        self._clock = clock
        self._sink = sink
        self._owner = rng.randbytes(16)  # this process, to those it shares the store with
        self._near: S3Fifo[_Near] = S3Fifo(config.local_bytes)
        self._gets = _Kind("", rng)
        self._others = _Kind("orders that write: ", rng)  # puts and the like, which keep their order
        self._is_others_turn = False
        self._n_put_bytes = 0
        self._leading: dict[bytes, float] = {}  # until when, the first to end first
        self._carrying: asyncio.Task[None] | None = None
        self._is_closed = False
        self._journals: list[Journal] = []

    @property
    def n_bytes(self) -> int:
        return self._near.n_bytes

    @property
    def n_entries(self) -> int:
        return len(self._near)

    async def get(self, key: bytes, until: float = inf) -> CachedAnswer | None:
        return (await self.ask(key, until))[0]

    async def ask(self, key: bytes, until: float = inf) -> tuple[CachedAnswer | None, bool]:
        began_at = self._clock.now()
        near = self._near.get(key)
        if near is not None and began_at < near.until:
            self._report("get", "local_hit", began_at)
            return near.answer, True
        reply = await self._ask(Get(key), until)
        if isinstance(reply, Lost):
            self._report("get", reply.value, began_at)
            return None, False
        answer, result = self._read(key, reply)
        self._report("get", result, began_at)
        if answer is None:
            self._near.remove(key)
        else:
            self._bring_near(key, answer)
        return answer, True

    async def put(self, key: bytes, answer: CachedAnswer) -> None:
        """Keep an answer: here at once, there in the background."""
        self._bring_near(key, answer)
        if self._is_alone():
            self._report("put", Lost.ALONE.value, self._clock.now())
            return
        data = packed(key, answer)
        if self._n_put_bytes + len(data) > PUTS_BYTES:
            self._report("put", Lost.FULL.value, self._clock.now())
            return
        self._n_put_bytes += len(data)
        self._others.waiting.append(_Waiting(Put(key, data, answer), n_bytes=len(data)))
        self._begin()

    async def remove(self, key: bytes) -> bool:
        self._near.remove(key)
        return not isinstance(await self._ask(Remove(key), inf), Lost)

    async def lead(self, key: bytes, until: float = inf) -> bool:
        if not self._config.coalesce_wait_s or self._is_alone():
            return True
        began_at = self._clock.now()
        reply = await self._ask(Lead(key, self._owner, self._config.coalesce_wait_s), until)
        may_lead = reply is not False
        if reply is True:
            leading = self._leading
            while leading and next(iter(leading.values())) <= began_at:  # of calls that broke off: no `led` came
                del leading[next(iter(leading))]
            leading.pop(key, None)
            leading[key] = began_at + self._config.coalesce_wait_s
        self._report("lead", reply.value if isinstance(reply, Lost) else "led" if may_lead else "followed", began_at)
        return may_lead

    async def follow(self, key: bytes, until: float, since: float) -> CachedAnswer | None:
        began_at = self._clock.now()
        until, n_looks, is_led, answer = min(until, began_at + self._config.coalesce_wait_s), 0, True, None
        while answer is None and is_led and (left_s := until - self._clock.now()) > 0:
            n_looks += 1
            await asyncio.sleep(min(backoff_s(n_looks, FIRST_LOOK_S, LAST_LOOK_S, factor=1.5), left_s))
            is_led = await self._ask(IsLed(key), until) is True  # before the look: what it made is there before it says so
            reply = await self._ask(Get(key), until)
            found = None if isinstance(reply, Lost) else self._read(key, reply)[0]
            answer = found if found is not None and found.kept_at >= since else None
        self._report("follow", "hit" if answer is not None else "miss", began_at)
        if answer is not None:
            self._bring_near(key, answer)
        return answer

    def led(self, key: bytes) -> None:
        if self._leading.pop(key, None) is not None and not self._is_closed:
            self._others.waiting.append(_Waiting(Led(key, self._owner)))
            self._begin()

    async def inspect(self, key: bytes) -> CachedAnswer | None:
        """What is kept under a key; what is near, where the store cannot be asked."""
        reply = await self._ask(Get(key), inf)
        if not isinstance(reply, Lost):
            return self._read(key, reply)[0]
        near = self._near.peek(key)
        return near.answer if near is not None else None

    async def purge(self, *, route: str | None = None, tenant: str | None = None, tag: str | None = None) -> int:
        """Forget answers. Other processes that have them near have them for `local_ttl_s` more."""
        for key in [key for key, near in self._near.items() if near.answer.is_of(route, tenant, tag)]:
            self._near.remove(key)
        return await self._door.purge(route, tenant, tag)

    async def note(self, name: str, word: str) -> None:
        """Remember a word under a name (lower-case letters and digits). Raises StoreUnavailable."""
        await self._door.append_log(name, [word.encode()], 1)

    async def noted(self, name: str) -> str | None:
        """The last word under a name. Raises StoreUnavailable."""
        records = await self._door.read_log(name, "", MOST_NOTES)
        return records[-1][1].decode(errors="replace") if records else None

    def journal(self, name: str, most: int, worker_id: bytes) -> Journal:
        """What processes tell each other under a name; it ends with the store."""
        journal = Journal(self.name, self._door, name, most, worker_id, clock=self._clock, sink=self._sink)
        self._journals = [*(open_journal for open_journal in self._journals if not open_journal.is_over), journal]
        return journal

    async def stats(self) -> StoreStats:
        try:
            stats = await self._door.stats()
        except StoreUnavailable as gone:
            return StoreStats(self._door.kind, None, None, None, is_shared=True, n_near=len(self._near), why_not=str(gone))
        return replace(stats, is_shared=True, n_near=len(self._near))

    async def close(self) -> None:
        """Write what waits, for CLOSE_S at most, and end."""
        self._is_closed = True
        if self._carrying is not None:
            await asyncio.wait((self._carrying,), timeout=CLOSE_S)
        if self._carrying is not None:
            self._carrying.cancel()
        for journal in self._journals:
            await journal.ended(CLOSE_S)
        await self._door.close()

    def _is_alone(self) -> bool:
        return self._is_closed or self._gets.breaker.state is not CLOSED

    def _bring_near(self, key: bytes, answer: CachedAnswer) -> None:
        self._near.put(key, _Near(answer, self._clock.now() + self._config.local_ttl_s), len(answer.body))

    def _read(self, key: bytes, reply: Reply) -> tuple[CachedAnswer | None, str]:
        if not isinstance(reply, bytes):
            return None, "miss"
        try:
            answer = unpacked(key, reply)
        except ValueError:
            return None, "unreadable"
        return (answer, "hit") if answer.drop_at > self._clock.wall() else (None, "miss")

    async def _ask(self, order: Order, until: float) -> Reply | Lost:
        """What the store says to it, in time; or why it does not."""
        now, kind = self._clock.now(), self._gets if isinstance(order, Get) else self._others
        breaker = kind.breaker
        if self._is_closed or (breaker.state is not CLOSED and not breaker.wants_probe(now)):
            return Lost.ALONE
        wait_s = min(self._config.timeout_s, until - now)
        if wait_s <= 0:
            return Lost.SLOW
        if len(kind.waiting) >= MOST_WAITING:
            return Lost.FULL
        loop, mark = asyncio.get_running_loop(), breaker.began()
        future: Future = loop.create_future()
        timer = loop.call_later(wait_s, _give_up, future)
        kind.waiting.append(_Waiting(order, future))
        self._begin()
        try:
            reply = await future
        except BaseException:
            breaker.forgotten(mark)
            raise
        finally:
            timer.cancel()
        if not isinstance(reply, Lost):
            breaker.succeeded(mark, self._clock.now())
        elif wait_s == self._config.timeout_s or reply is Lost.GONE:
            if reply is Lost.SLOW:
                kind.why = f"no answer in {wait_s:g} s"
            breaker.failed(mark, self._clock.now())
        else:  # the request had less time than the store may take
            breaker.forgotten(mark)
        if breaker.state is not kind.state:
            kind.state = breaker.state
            why = breaker.why if kind.state is CLOSED else f"{breaker.why}: {kind.why}"
            self._sink.emit(StoreChanged(self.name, kind.state.value, f"{kind.about}{why}"))
        return reply

    def _begin(self) -> None:
        if self._carrying is None:
            self._carrying = asyncio.get_running_loop().create_task(self._carry())

    async def _carry(self) -> None:
        try:
            while waiting := self._next():
                began_at = self._clock.now()
                try:
                    replies: Sequence[Reply | Lost] = await self._door.execute([one.order for one in waiting])
                except StoreUnavailable as gone:
                    kind = self._gets if isinstance(waiting[0].order, Get) else self._others
                    kind.why = str(gone)
                    replies = [Lost.GONE] * len(waiting)
                for one, reply in zip(waiting, replies, strict=True):
                    if one.future is not None and not one.future.done():
                        one.future.set_result(reply)
                    if one.n_bytes:
                        self._n_put_bytes -= one.n_bytes
                        self._report("put", reply.value if isinstance(reply, Lost) else "stored", began_at)
        finally:
            self._carrying = None

    def _next(self) -> list[_Waiting]:
        """What is carried together: look-ups that are still waited for, or the rest; where both wait, in turns."""
        gets, others = self._gets.waiting, self._others.waiting
        waiting: list[_Waiting] = []
        if not (self._is_others_turn and others):
            while gets and len(waiting) < AT_A_TIME:
                one = gets.popleft()
                if one.future is not None and not one.future.done():
                    waiting.append(one)
        self._is_others_turn = bool(waiting)
        return waiting or [others.popleft() for _ in range(min(len(others), AT_A_TIME))]

    def _report(self, what: str, result: str, began_at: float) -> None:
        self._sink.emit(StoreCallDone(self.name, what, result, self._clock.now() - began_at))

    def __repr__(self) -> str:
        gets = self._gets
        return f"<RemoteStore {self.name}: {gets.state.value}, {len(self._near)} near, {len(gets.waiting)} look-ups wait>"


def _give_up(future: Future) -> None:
    if not future.done():
        future.set_result(Lost.SLOW)
