"""A store that several processes share: look-ups with a time-out, writes in the background, a circuit breaker.

Problem: a remote cache can be slow or unavailable, and would then delay or fail every request. Rule: any failure is a miss.

    local copy  answers read or written in the last `local_ttl_s` come from this process's memory (S3-FIFO, `local_bytes`)
    look-up     waits `timeout_s` at most, and never longer than the cache stage's share of the request's deadline
    commands    are queued; one task sends all that are waiting in one round trip, so a request that is cancelled does not
                break the connection
    writes      are in the background. At most MAX_QUEUED_BYTES are queued; beyond that an answer is not stored
    breaker     opens after 5 look-ups in a row without a reply; after a second, one look-up at a time is a probe, and 2
                good ones close it (`policy.resilience.breaker`). Writes have their own: a full store can still be read

One call for all processes: a process acquires the right to make an answer with `acquire_lead`, for `coalesce_wait_s` at
most. The others poll every POLL_MIN_S to POLL_MAX_S until the answer is there or the lead has ended. A leader that dies
costs `coalesce_wait_s`.
When wrong: other processes may serve a purged answer for `local_ttl_s`. Differences between the clocks of machines change
the age of answers.

Answers are stored as bytes. Data of another version, or damaged data, is a miss:

    1 byte   version of the format
    4 bytes  CRC-32 of key and rest, so that no answer is read under another key
    rest     msgpack of `CachedAnswer` with its field names. Fields may be added; a changed meaning needs a new `VERSION`
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
    AcquireLead,
    CachedAnswer,
    Get,
    IsLed,
    Put,
    ReleaseLead,
    Remove,
    StoreBackend,
    StoreCommand,
    StoreReply,
    StoreStats,
    StoreUnavailable,
)
from stayfast.stores.journal import Journal

VERSION: Final = b"\x01"
_HEAD: Final = 5  # bytes before the msgpack
_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(CachedAnswer).decode


def encode_answer(key: bytes, answer: CachedAnswer) -> bytes:
    encoded = _encode(answer)
    return VERSION + crc32(encoded, crc32(key)).to_bytes(4, "big") + encoded


def decode_answer(key: bytes, data: bytes) -> CachedAnswer:
    """The answer of a key. Raises ValueError for any other data."""
    if data[:1] != VERSION:
        raise ValueError("written by another version")
    encoded = memoryview(data)[_HEAD:]
    if crc32(encoded, crc32(key)) != int.from_bytes(data[1:_HEAD], "big"):
        raise ValueError("wrong checksum")
    try:
        return _decode(encoded)
    except (msgspec.DecodeError, RecursionError):
        raise ValueError("not an answer of this version") from None


MAX_BATCH = 64
MAX_QUEUED = 2000  # look-ups; further ones are misses at once
MAX_NOTES = 10_000  # of a name; a server may keep hundreds although one is requested
MAX_QUEUED_BYTES = 16 * 1024 * 1024
CLOSE_S = 1.0
POLL_MIN_S, POLL_MAX_S = 0.01, 0.1
BREAKER = BreakerConfig(consecutive_failures=5, failure_ratio=0.5, n_calls=20, min_calls=10, open_s=1.0)
CLOSED = BreakerState.CLOSED


@dataclass(frozen=True, slots=True)
class SharedConfig:
    """Time-outs and local copies of a shared store. Seconds and bytes."""

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


class NoReply(StrEnum):
    """Why there is no reply."""

    SLOW = "timeout"
    GONE = "unavailable"
    SUSPENDED = "suspended"
    FULL = "full"


Future = asyncio.Future[StoreReply | NoReply]


class _LocalCopy(Struct, gc=False):
    answer: CachedAnswer
    until: float


class _QueuedCommand(Struct, gc=False):
    order: StoreCommand
    future: Future | None = None  # None: no caller waits for it
    n_bytes: int = 0


class _CommandQueue:
    """Look-ups, or all other commands: the queue and its breaker."""

    __slots__ = ("breaker", "label", "reported_state", "waiting", "why")

    def __init__(self, label: str, rng: Random) -> None:
        self.label = label
        self.breaker = Breaker(BREAKER, rng)
        self.reported_state = CLOSED
        self.waiting: deque[_QueuedCommand] = deque()
        self.why = ""  # of the last failure


class RemoteStore:
    """A `Store` on a `StoreBackend`. One loop's."""

    __slots__ = ("_backend", "_clock", "_config", "_gets", "_is_closed", "_is_writes_turn", "_journals", "_leading",
                 "_local", "_n_put_bytes", "_owner", "_sender", "_sink", "_writes", "name")
    is_shared = True

    def __init__(self, name: str, backend: StoreBackend, config: SharedConfig, clock: Clock, sink: Sink, *,
                 rng: Random) -> None:
        self.name = name
        self._backend = backend
        self._config = config
        self._clock = clock
        self._sink = sink
        self._owner = rng.randbytes(16)  # identifies this process in the store
        self._local: S3Fifo[_LocalCopy] = S3Fifo(config.local_bytes)
        self._gets = _CommandQueue("", rng)
        self._writes = _CommandQueue("writes: ", rng)  # all but look-ups; in order
        self._is_writes_turn = False
        self._n_put_bytes = 0
        self._leading: dict[bytes, float] = {}  # key to the end of its lead, soonest first
        self._sender: asyncio.Task[None] | None = None
        self._is_closed = False
        self._journals: list[Journal] = []

    @property
    def n_leads(self) -> int:
        """Calls of this process that others may wait for."""
        return len(self._leading)

    @property
    def n_journals(self) -> int:
        """Journals that are open, or were when the last one was opened."""
        return len(self._journals)

    @property
    def n_bytes(self) -> int:
        return self._local.n_bytes

    @property
    def n_entries(self) -> int:
        return len(self._local)

    async def get(self, key: bytes, until: float = inf) -> CachedAnswer | None:
        return (await self.find(key, until))[0]

    async def find(self, key: bytes, until: float = inf) -> tuple[CachedAnswer | None, bool]:
        began_at = self._clock.now()
        copy = self._local.get(key)
        if copy is not None and began_at < copy.until:
            self._report("get", "local_hit", began_at)
            return copy.answer, True
        reply = await self._request(Get(key), until)
        if isinstance(reply, NoReply):
            self._report("get", reply.value, began_at)
            return None, False
        answer, result = self._read(key, reply)
        self._report("get", result, began_at)
        if answer is None:
            self._local.remove(key)
        else:
            self._copy_locally(key, answer)
        return answer, True

    async def put(self, key: bytes, answer: CachedAnswer) -> None:
        self._copy_locally(key, answer)
        if self._is_suspended():
            self._report("put", NoReply.SUSPENDED.value, self._clock.now())
            return
        data = encode_answer(key, answer)
        if self._n_put_bytes + len(data) > MAX_QUEUED_BYTES:
            self._report("put", NoReply.FULL.value, self._clock.now())
            return
        self._n_put_bytes += len(data)
        self._writes.waiting.append(_QueuedCommand(Put(key, data, answer), n_bytes=len(data)))
        self._start_sender()

    async def remove(self, key: bytes) -> bool:
        self._local.remove(key)
        return not isinstance(await self._request(Remove(key), inf), NoReply)

    async def acquire_lead(self, key: bytes, until: float = inf) -> bool:
        if not self._config.coalesce_wait_s or self._is_suspended():
            return True
        began_at = self._clock.now()
        reply = await self._request(AcquireLead(key, self._owner, self._config.coalesce_wait_s), until)
        may_lead = reply is not False
        if reply is True:
            leading = self._leading
            while leading and next(iter(leading.values())) <= began_at:  # of cancelled calls: without `release_lead`
                del leading[next(iter(leading))]
            leading.pop(key, None)
            leading[key] = began_at + self._config.coalesce_wait_s
        self._report("lead", reply.value if isinstance(reply, NoReply) else "led" if may_lead else "followed", began_at)
        return may_lead

    async def wait_for_leader(self, key: bytes, until: float, since: float) -> CachedAnswer | None:
        began_at = self._clock.now()
        until, n_polls, is_led, answer = min(until, began_at + self._config.coalesce_wait_s), 0, True, None
        while answer is None and is_led and (left_s := until - self._clock.now()) > 0:
            n_polls += 1
            await asyncio.sleep(min(backoff_s(n_polls, POLL_MIN_S, POLL_MAX_S, factor=1.5), left_s))
            is_led = await self._request(IsLed(key), until) is True  # before `Get`: the answer is put before the lead ends
            reply = await self._request(Get(key), until)
            found = None if isinstance(reply, NoReply) else self._read(key, reply)[0]
            answer = found if found is not None and found.kept_at >= since else None
        self._report("follow", "hit" if answer is not None else "miss", began_at)
        if answer is not None:
            self._copy_locally(key, answer)
        return answer

    def release_lead(self, key: bytes) -> None:
        if self._leading.pop(key, None) is not None and not self._is_closed:
            self._writes.waiting.append(_QueuedCommand(ReleaseLead(key, self._owner)))
            self._start_sender()

    async def inspect(self, key: bytes) -> CachedAnswer | None:
        """The local copy, if the store is unavailable."""
        reply = await self._request(Get(key), inf)
        if not isinstance(reply, NoReply):
            return self._read(key, reply)[0]
        copy = self._local.peek(key)
        return copy.answer if copy is not None else None

    async def purge(self, *, route: str | None = None, tenant: str | None = None, tag: str | None = None) -> int:
        """Other processes may serve their local copies for `local_ttl_s`."""
        for key in [key for key, copy in self._local.items() if copy.answer.matches(route, tenant, tag)]:
            self._local.remove(key)
        return await self._backend.purge(route, tenant, tag)

    async def write_note(self, name: str, word: str) -> None:
        """Store one text under a name (lower-case letters and digits). Raises StoreUnavailable."""
        await self._backend.append_log(name, [word.encode()], 1)

    async def read_note(self, name: str) -> str | None:
        """The text last stored under a name. Raises StoreUnavailable."""
        records = await self._backend.read_log(name, "", MAX_NOTES)
        return records[-1][1].decode(errors="replace") if records else None

    def open_journal(self, name: str, most: int, worker_id: bytes) -> Journal:
        """A log shared by all processes; it closes with the store."""
        journal = Journal(self.name, self._backend, name, most, worker_id, clock=self._clock, sink=self._sink)
        self._journals = [*(open_journal for open_journal in self._journals if not open_journal.is_closed), journal]
        return journal

    async def stats(self) -> StoreStats:
        try:
            stats = await self._backend.stats()
        except StoreUnavailable as error:
            return StoreStats(self._backend.kind, None, None, None, is_shared=True, n_near=len(self._local),
                              why_not=str(error))
        return replace(stats, is_shared=True, n_near=len(self._local))

    async def close(self) -> None:
        """Send what is queued, for CLOSE_S at most, and close."""
        self._is_closed = True
        if self._sender is not None:
            await asyncio.wait((self._sender,), timeout=CLOSE_S)
        if self._sender is not None:
            self._sender.cancel()
        for journal in self._journals:
            await journal.aclose(CLOSE_S)
        await self._backend.close()

    def _is_suspended(self) -> bool:
        return self._is_closed or self._gets.breaker.state is not CLOSED

    def _copy_locally(self, key: bytes, answer: CachedAnswer) -> None:
        self._local.put(key, _LocalCopy(answer, self._clock.now() + self._config.local_ttl_s), len(answer.body))

    def _read(self, key: bytes, reply: StoreReply) -> tuple[CachedAnswer | None, str]:
        if not isinstance(reply, bytes):
            return None, "miss"
        try:
            answer = decode_answer(key, reply)
        except ValueError:
            return None, "unreadable"
        return (answer, "hit") if answer.drop_at > self._clock.wall() else (None, "miss")

    async def _request(self, order: StoreCommand, until: float) -> StoreReply | NoReply:
        """The reply to a command; or why there is none in time."""
        now, queue = self._clock.now(), self._gets if isinstance(order, Get) else self._writes
        breaker = queue.breaker
        if self._is_closed or (breaker.state is not CLOSED and not breaker.needs_probe(now)):
            return NoReply.SUSPENDED
        wait_s = min(self._config.timeout_s, until - now)
        if wait_s <= 0:
            return NoReply.SLOW
        if len(queue.waiting) >= MAX_QUEUED:
            return NoReply.FULL
        loop, mark = asyncio.get_running_loop(), breaker.start_call()
        future: Future = loop.create_future()
        timer = loop.call_later(wait_s, _time_out, future)
        queue.waiting.append(_QueuedCommand(order, future))
        self._start_sender()
        try:
            reply = await future
        except BaseException:
            breaker.discard_call(mark)
            raise
        finally:
            timer.cancel()
        if not isinstance(reply, NoReply):
            breaker.record_success(mark, self._clock.now())
        elif wait_s == self._config.timeout_s or reply is NoReply.GONE:
            if reply is NoReply.SLOW:
                queue.why = f"no answer in {wait_s:g} s"
            breaker.record_failure(mark, self._clock.now())
        else:  # the request had less time than `timeout_s`, so this is not the store's failure
            breaker.discard_call(mark)
        if breaker.state is not queue.reported_state:
            queue.reported_state = breaker.state
            why = breaker.why if breaker.state is CLOSED else f"{breaker.why}: {queue.why}"
            self._sink.emit(StoreChanged(self.name, breaker.state.value, f"{queue.label}{why}"))
        return reply

    def _start_sender(self) -> None:
        if self._sender is None:
            self._sender = asyncio.get_running_loop().create_task(self._send())

    async def _send(self) -> None:
        try:
            while batch := self._next_batch():
                began_at = self._clock.now()
                try:
                    replies: Sequence[StoreReply | NoReply] = await self._backend.execute([command.order
                                                                                           for command in batch])
                except StoreUnavailable as error:
                    queue = self._gets if isinstance(batch[0].order, Get) else self._writes
                    queue.why = str(error)
                    replies = [NoReply.GONE] * len(batch)
                for command, reply in zip(batch, replies, strict=True):
                    if command.future is not None and not command.future.done():
                        command.future.set_result(reply)
                    if command.n_bytes:
                        self._n_put_bytes -= command.n_bytes
                        self._report("put", reply.value if isinstance(reply, NoReply) else "stored", began_at)
        finally:
            self._sender = None

    def _next_batch(self) -> list[_QueuedCommand]:
        """Lookups whose callers still wait, or other commands; alternating if both are queued."""
        gets, writes = self._gets.waiting, self._writes.waiting
        batch: list[_QueuedCommand] = []
        if not (self._is_writes_turn and writes):
            while gets and len(batch) < MAX_BATCH:
                command = gets.popleft()
                if command.future is not None and not command.future.done():
                    batch.append(command)
        self._is_writes_turn = bool(batch)
        return batch or [writes.popleft() for _ in range(min(len(writes), MAX_BATCH))]

    def _report(self, what: str, result: str, began_at: float) -> None:
        self._sink.emit(StoreCallDone(self.name, what, result, self._clock.now() - began_at))

    def __repr__(self) -> str:
        return (f"<RemoteStore {self.name} at {self._backend!r}: {self._gets.breaker.state.value}, {len(self._local)} local "
                f"copies, {len(self._gets.waiting)} look-ups queued>")


def _time_out(future: Future) -> None:
    if not future.done():
        future.set_result(NoReply.SLOW)
