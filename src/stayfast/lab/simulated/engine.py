"""A simulated inference engine: a queue, one prefill at a time, a batch that decodes together, and a KV memory limit.

Problem: latency drawn from a distribution does not rise with load; that of an engine does. Rule, as a fluid model: one
prefill runs at a time, first come first served; all running sequences grow at the same pace, so one number gives the
progress of all:

    V(t) = tokens that a sequence running since the start would have at t
    dV/dt = speed / (decode_step_s + n_running * decode_step_per_sequence_s)      times `decode_share` while a prefill runs
    token j of a sequence that joined at V0 exists when V = V0 + j - 1            (the prefill itself generates the first)

so no event is needed per token: the end of a sequence, and each awaited chunk, is one entry in one heap. With continuous
batching a sequence joins as soon as there is room. Static batching fills a batch, pads all prompts to the longest, and
admits no sequence, and releases no whole answer, before its longest answer has ended. A prompt prefix in the cache needs no
prefill; the cache evicts least recently used blocks of 64 tokens.
Source: iteration-level scheduling (Orca, OSDI 2022), paged KV memory (vLLM, SOSP 2023). Defaults are assumed: an 8B model on
one H100. When wrong: real engines preempt and speculate; chunked prefill is only modelled by `decode_share`. `sag` and the
fault `slow` do not apply: the engine has its own pace.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from math import floor, inf
from typing import Annotated, Final, Literal

from stayfast.core.clock import Clock
from stayfast.core.setting import SettingDoc, check_bounds
from stayfast.policy.routing.affinity import SentPrefixes

_EPSILON: Final = 1e-6  # tokens: tolerance for rounding
CACHE_BLOCK_TOKENS: Final = 64
_TICK_S: Final = 1e-3  # minimum delay after a timer fired early (uvloop rounds to milliseconds)


@dataclass(frozen=True, slots=True)
class EngineModel:
    """The figures of an engine. kv_tokens: prompt and answer of all running sequences; a longer sequence takes all of it."""

    batching: Annotated[Literal["continuous", "static"], SettingDoc(
        "continuous: a request joins the batch when there is room. static: a batch ends with its longest.")] = "continuous"
    prefill_tokens_per_s: Annotated[float, SettingDoc(
        "Prompt tokens per second, one prompt at a time.", minimum=1, maximum=1000000000.0)] = 20_000.0
    decode_step_s: Annotated[float, SettingDoc(
        "Time per token of a sequence that runs alone.", minimum=1e-06, maximum=60)] = 0.010
    decode_step_per_sequence_s: Annotated[float, SettingDoc(
        "Increase of that time per running sequence.", minimum=0, maximum=60)] = 0.00005
    decode_share: Annotated[float, SettingDoc(
        "Share of the decode rate that remains during a prefill.", minimum=0.01, maximum=1)] = 0.5
    kv_tokens: Annotated[int, SettingDoc(
        "Tokens of prompts and answers in memory; a longer sequence takes all.", minimum=1, maximum=1000000000)] = 400_000
    max_running: Annotated[int, SettingDoc("Most sequences in a batch.", minimum=1, maximum=100000)] = 256
    cache_tokens: Annotated[int, SettingDoc(
        "Prompt tokens cached for requests with the same prefix (continuous only). 0: none.",
        minimum=0, maximum=1000000000)] = 0
    max_waiting: Annotated[int | None, SettingDoc(
        "Queue length beyond which requests get 503. null: unlimited.", minimum=0)] = None
    batch_window_s: Annotated[float, SettingDoc(
        "Static: longest wait of a batch's first request for others.", minimum=0, maximum=60)] = 0.05

    def __post_init__(self) -> None:
        check_bounds(self)


class Sequence:
    """One request inside the engine. Changed only by the engine."""

    __slots__ = ("blocks", "has_left", "joined_at_progress", "kv", "n_cached", "n_output", "n_prompt", "on_end", "started")

    def __init__(self, n_prompt: int, n_output: int, kv: int, started: "asyncio.Future[None]",
                 blocks: Iterable[int] = ()) -> None:
        self.blocks = tuple(blocks)  # the prompt's prefix, in blocks of CACHE_BLOCK_TOKENS
        self.n_cached = 0  # prompt tokens that need no prefill; set when the prefill starts
        self.n_prompt = n_prompt
        self.n_output = n_output
        self.kv = kv
        self.started = started  # set at the end of the prefill
        self.joined_at_progress: float | None = None
        self.has_left = False
        self.on_end: Callable[[], None] | None = None

    def call_when_ended(self, act: Callable[[], None]) -> None:
        """Call `act` when its last token exists, or now if it does; never if it is released before."""
        if self.has_left:
            act()
        else:
            self.on_end = act


class EngineFull(Exception):
    """The queue of the engine is full."""


class SimulatedEngine:
    """Continuous batching. Single loop."""

    def __init__(self, model: EngineModel, clock: Clock) -> None:
        self._model = model
        self._clock = clock
        self._waiting: deque[Sequence] = deque()
        self._prefilling: tuple[Sequence, ...] = ()
        self.n_kv_free = model.kv_tokens
        self.n_running = 0
        self.n_prefix_tokens = self.n_prefix_hits = 0  # prompt tokens that were searched for in the cache, and found
        self._cache = SentPrefixes(model.cache_tokens // CACHE_BLOCK_TOKENS, inf) if model.cache_tokens else None
        self._speed = 1.0
        self._progress = 0.0
        self._progress_at = clock.now()
        self._heap: list[tuple[float, int, Sequence | asyncio.Future[None]]] = []
        self._order = count()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0  # uvloop's handles have no time

    def submit(self, n_prompt: int, n_output: int, blocks: Iterable[int] = ()) -> Sequence:
        """Queue a request; `blocks`: of its prompt's prefix. Raises EngineFull if `max_waiting` requests wait."""
        model = self._model
        if model.max_waiting is not None and self.n_waiting >= model.max_waiting and not self._has_room():
            raise EngineFull
        kv = min(n_prompt + n_output, model.kv_tokens)
        sequence = Sequence(n_prompt, n_output, kv, asyncio.get_running_loop().create_future(), blocks)
        self._advance()
        self._waiting.append(sequence)
        self._admit()
        return sequence

    @property
    def n_waiting(self) -> int:
        """Requests whose prefill has not started."""
        return len(self._waiting)

    def set_speed(self, speed: float) -> None:
        """From now on, decode `speed` times as fast as configured."""
        if speed != self._speed:
            self._advance()
            self._speed = speed
            self._arm_timer()

    async def wait_token(self, sequence: Sequence, n: int) -> None:
        """Wait for the `n`-th token of the sequence. Await its prefill first (`sequence.started`)."""
        assert sequence.joined_at_progress is not None
        target = sequence.joined_at_progress + n - 1
        self._advance()
        if target > self._progress + _EPSILON:
            waiter = asyncio.get_running_loop().create_future()
            self._push(target, waiter)
            self._arm_timer()
            await waiter

    async def wait_whole(self, sequence: Sequence) -> None:
        """Wait until the whole answer may be sent."""
        await self.wait_token(sequence, sequence.n_output)

    def n_generated(self, sequence: Sequence) -> int:
        """Tokens of the sequence that exist now."""
        if sequence.joined_at_progress is None:
            return 0
        self._advance()
        return min(sequence.n_output, floor(self._progress - sequence.joined_at_progress + _EPSILON) + 1)

    def release(self, sequence: Sequence) -> None:
        """Remove a sequence and free its capacity at once. Idempotent; does nothing after its end."""
        if sequence.has_left:
            return
        self._advance()
        sequence.has_left = True
        if sequence.joined_at_progress is not None or sequence in self._prefilling:
            self._free_capacity(sequence)
        else:
            self._waiting.remove(sequence)
        self._admit()

    def _has_room(self) -> bool:
        return not self._waiting and not self._prefilling and self.n_running < self._model.max_running

    def _admit(self) -> None:
        """Start the next prefill, if there is room."""
        waiting = self._waiting
        has_place = not self._prefilling and self.n_running < self._model.max_running
        if waiting and has_place and waiting[0].kv <= self.n_kv_free:
            first = waiting.popleft()
            self.n_kv_free -= first.kv
            if self._cache is not None:
                now = self._clock.now()
                n_cached = self._cache.n_known(first.blocks, now) * CACHE_BLOCK_TOKENS
                self._cache.record_sent(first.blocks, now)
                first.n_cached = min(n_cached, first.n_prompt - 1)  # the last token is always computed
                self.n_prefix_tokens += first.n_prompt
                self.n_prefix_hits += first.n_cached
            self._start_prefill((first,), first.n_prompt - first.n_cached)
        self._arm_timer()

    def _start_prefill(self, sequences: tuple[Sequence, ...], n_tokens: int) -> None:
        self._prefilling = sequences
        seconds = n_tokens / (self._model.prefill_tokens_per_s * self._speed)
        loop = asyncio.get_running_loop()
        loop.call_at(loop.time() + seconds, self._on_prefill_done)

    def _on_prefill_done(self) -> None:
        """The sequences join the batch."""
        self._advance()
        sequences, self._prefilling = self._prefilling, ()
        for one in sequences:
            if one.has_left:
                continue
            one.joined_at_progress = self._progress
            self.n_running += 1
            self._push(self._progress + one.n_output - 1, one)
            if not one.started.done():
                one.started.set_result(None)
        self._admit()

    def _free_capacity(self, sequence: Sequence) -> None:
        self.n_kv_free += sequence.kv
        if sequence.joined_at_progress is not None:
            self.n_running -= 1

    def _rate(self) -> float:
        """Tokens per second of each running sequence."""
        model = self._model
        share = model.decode_share if self._prefilling else 1.0
        return self._speed * share / (model.decode_step_s + self.n_running * model.decode_step_per_sequence_s)

    def _advance(self) -> None:
        """Update V to now. Call it before every change of the rate."""
        now = self._clock.now()
        if now > self._progress_at:
            self._progress += (now - self._progress_at) * self._rate()
            self._progress_at = now

    def _push(self, target: float, entry: "Sequence | asyncio.Future[None]") -> None:
        heappush(self._heap, (target, next(self._order), entry))

    def _arm_timer(self, least_s: float = 0.0) -> None:
        """Set the timer for the first entry of the heap, or earlier."""
        if not self._heap:
            return
        loop = asyncio.get_running_loop()
        due_at = loop.time() + max(least_s, (self._heap[0][0] - self._progress) / self._rate())
        if self._timer is not None:
            if self._timer_at <= due_at:
                return  # an early timer is set again
            self._timer.cancel()
        self._timer_at = due_at
        self._timer = loop.call_at(due_at, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._advance()
        n_done = 0
        while self._heap and self._heap[0][0] <= self._progress + _EPSILON:
            entry = heappop(self._heap)[2]
            n_done += 1
            if isinstance(entry, Sequence):
                if not entry.has_left:
                    entry.has_left = True
                    self._free_capacity(entry)
                    if entry.on_end is not None:
                        entry.on_end()
            elif not entry.done():
                entry.set_result(None)
        if n_done:
            self._admit()
        else:
            self._arm_timer(_TICK_S)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.n_running} running, {len(self._waiting)} waiting, {self.n_kv_free} KV free>"


class StaticEngine(SimulatedEngine):
    """Static batching: no sequence joins a running batch, and its slots are freed when the whole batch has ended."""

    def __init__(self, model: EngineModel, clock: Clock) -> None:
        super().__init__(model, clock)
        self._batch: tuple[Sequence, ...] = ()
        self._n_unfinished = 0
        self._window: asyncio.TimerHandle | None = None
        self._whole_waiters: list[asyncio.Future[None]] = []

    async def wait_whole(self, sequence: Sequence) -> None:
        if sequence in self._batch:
            waiter = asyncio.get_running_loop().create_future()
            self._whole_waiters.append(waiter)
            await waiter

    def _has_room(self) -> bool:
        return not self._batch and len(self._waiting) < self._model.max_running

    def _admit(self) -> None:
        if self._waiting and not self._batch and not self._prefilling and self._window is None:
            self._window = asyncio.get_running_loop().call_later(self._model.batch_window_s, self._start_batch)
        self._arm_timer()

    def _start_batch(self) -> None:
        self._window = None
        batch: list[Sequence] = []
        while self._waiting and len(batch) < self._model.max_running:
            if self._waiting[0].kv > self.n_kv_free:
                break
            batch.append(self._waiting.popleft())
            self.n_kv_free -= batch[-1].kv
        if batch:
            self._advance()
            self._batch = tuple(batch)
            self._n_unfinished = len(batch)
            self._start_prefill(self._batch, len(batch) * max(one.n_prompt for one in batch))

    def _free_capacity(self, sequence: Sequence) -> None:
        """The slot is padding until the last sequence of the batch has ended."""
        self._n_unfinished -= 1
        if self._n_unfinished:
            return
        self.n_running = 0
        self.n_kv_free += sum(one.kv for one in self._batch)
        self._batch = ()
        done, self._whole_waiters = self._whole_waiters, []
        for waiter in done:
            if not waiter.done():
                waiter.set_result(None)


def create_engine(model: EngineModel, clock: Clock) -> SimulatedEngine:
    return (StaticEngine if model.batching == "static" else SimulatedEngine)(model, clock)
