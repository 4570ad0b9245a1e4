"""An inference engine: a queue, a prefill, a batch that shares its decoding, and a budget of KV memory.

Problem: latency drawn from a distribution does not rise with load; an engine's does. Rule, as a fluid: one prefill runs at a
time, first come first served; all running sequences grow at the same pace, so one number says how far each has come:

    V(t) = tokens that a sequence running since the start would have by t
    dV/dt = speed / (decode_step_s + n_running * decode_step_per_sequence_s)      times `decode_share` while a prefill runs
    token j of a sequence that joined at V0 is there when V = V0 + j - 1          (the prefill itself brings the first)

so nothing happens token by token: a sequence's end, and each chunk that somebody waits for, is one entry in one heap.
Continuous batching lets a sequence join as soon as there is room. Static batching fills a batch, pads all prompts to the
longest, and lets nobody in (and no whole answer out) until its longest answer has ended: the straggler. Source:
iteration-level scheduling (Orca, OSDI 2022), paged KV memory (vLLM, SOSP 2023). Defaults are assumed, of the size of an 8B
model on one H100. A prompt that begins like one before it needs no prefill for what is the same, as long as the cache keeps
it: least recently used blocks of 64 tokens go first. When wrong: real engines preempt and speculate; chunked prefill is only
the `decode_share` here. Sag and the fault `slow` do not apply: the engine has its own pace.
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
from stayfast.policy.routing.affinity import Prefixes

_EPSILON: Final = 1e-6  # tokens: what rounding may lack
CACHE_BLOCK_TOKENS: Final = 64
_TICK_S: Final = 1e-3  # a timer that fired too early (uvloop rounds to milliseconds) is set no closer than this


@dataclass(frozen=True, slots=True)
class EngineModel:
    """An engine's figures. kv_tokens: prompt and answer of all sequences in it; longer ones take all of it."""

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

    __slots__ = ("blocks", "has_left", "joined_at_v", "kv", "n_cached", "n_output", "n_prompt", "on_end", "started")

    def __init__(self, n_prompt: int, n_output: int, kv: int, started: "asyncio.Future[None]",
                 blocks: Iterable[int] = ()) -> None:
        self.blocks = tuple(blocks)  # of CACHE_BLOCK_TOKENS each: what the prompt begins with
        self.n_cached = 0  # tokens of the prompt that need no prefill; known when that begins
        self.n_prompt = n_prompt
        self.n_output = n_output
        self.kv = kv
        self.started = started  # done when its prefill is
        self.joined_at_v: float | None = None
        self.has_left = False
        self.on_end: Callable[[], None] | None = None

    def when_ended(self, act: Callable[[], None]) -> None:
        """Act when its last token is there, or now if it is; never if it leaves before."""
        if self.has_left:
            act()
        else:
            self.on_end = act


class Full(Exception):
    """No room even to wait."""


class SimulatedEngine:
    """Continuous batching. One loop; created inside of it or before it runs."""

    def __init__(self, model: EngineModel, clock: Clock) -> None:
        self._model = model
        self._clock = clock
        self._waiting: deque[Sequence] = deque()
        self._prefilling: tuple[Sequence, ...] = ()
        self.n_kv_free = model.kv_tokens
        self.n_running = 0
        self._cache = Prefixes(model.cache_tokens // CACHE_BLOCK_TOKENS, inf) if model.cache_tokens else None
        self._speed = 1.0
        self._v = 0.0
        self._at = clock.now()
        self._heap: list[tuple[float, int, Sequence | asyncio.Future[None]]] = []
        self._order = count()
        self._timer: asyncio.TimerHandle | None = None
        self._rings_at = 0.0  # uvloop's handles do not say

    def submit(self, n_prompt: int, n_output: int, blocks: Iterable[int] = ()) -> Sequence:
        """Take a request; `blocks` say what its prompt begins with. Raises Full when as many wait as may."""
        model = self._model
        if model.max_waiting is not None and self.n_waiting >= model.max_waiting and not self._has_room():
            raise Full
        kv = min(n_prompt + n_output, model.kv_tokens)
        sequence = Sequence(n_prompt, n_output, kv, asyncio.get_running_loop().create_future(), blocks)
        self._advance()
        self._waiting.append(sequence)
        self._admit()
        return sequence

    @property
    def n_waiting(self) -> int:
        """Requests whose prefill has not begun."""
        return len(self._waiting)

    def set_speed(self, speed: float) -> None:
        """Let everything that decodes go `speed` times as fast as by its figures from now on."""
        if speed != self._speed:
            self._advance()
            self._speed = speed
            self._arm()

    async def wait_token(self, sequence: Sequence, n: int) -> None:
        """Return when the sequence's `n`-th token is there. Its prefill must be awaited first (`sequence.started`)."""
        assert sequence.joined_at_v is not None
        target = sequence.joined_at_v + n - 1
        self._advance()
        if target > self._v + _EPSILON:
            waiter = asyncio.get_running_loop().create_future()
            self._push(target, waiter)
            self._arm()
            await waiter

    async def wait_whole(self, sequence: Sequence) -> None:
        """Return when a whole answer may leave."""
        await self.wait_token(sequence, sequence.n_output)

    def n_generated(self, sequence: Sequence) -> int:
        """Tokens of the sequence that exist by now."""
        if sequence.joined_at_v is None:
            return 0
        self._advance()
        return min(sequence.n_output, floor(self._v - sequence.joined_at_v + _EPSILON) + 1)

    def leave(self, sequence: Sequence) -> None:
        """Nobody wants it any more: whatever it holds is free at once. Safe to call again, and after its end."""
        if sequence.has_left:
            return
        self._advance()
        sequence.has_left = True
        if sequence.joined_at_v is not None or sequence in self._prefilling:
            self._released(sequence)
        else:
            self._waiting.remove(sequence)
        self._admit()

    def _has_room(self) -> bool:
        return not self._waiting and not self._prefilling and self.n_running < self._model.max_running

    def _admit(self) -> None:
        """Begin the next prefill, if one may begin."""
        waiting = self._waiting
        has_place = not self._prefilling and self.n_running < self._model.max_running
        if waiting and has_place and waiting[0].kv <= self.n_kv_free:
            first = waiting.popleft()
            self.n_kv_free -= first.kv
            if self._cache is not None:
                now = self._clock.now()
                n_cached = self._cache.n_known(first.blocks, now) * CACHE_BLOCK_TOKENS
                self._cache.sent(first.blocks, now)
                first.n_cached = min(n_cached, first.n_prompt - 1)  # one at least is computed: the answer follows from it
            self._prefill((first,), first.n_prompt - first.n_cached)
        self._arm()

    def _prefill(self, sequences: tuple[Sequence, ...], n_tokens: int) -> None:
        self._prefilling = sequences
        seconds = n_tokens / (self._model.prefill_tokens_per_s * self._speed)
        loop = asyncio.get_running_loop()
        loop.call_at(loop.time() + seconds, self._prefilled)

    def _prefilled(self) -> None:
        """The prefill has ended: its sequences join the batch."""
        self._advance()
        sequences, self._prefilling = self._prefilling, ()
        for one in sequences:
            if one.has_left:
                continue
            one.joined_at_v = self._v
            self.n_running += 1
            self._push(self._v + one.n_output - 1, one)
            if not one.started.done():
                one.started.set_result(None)
        self._admit()

    def _released(self, sequence: Sequence) -> None:
        self.n_kv_free += sequence.kv
        if sequence.joined_at_v is not None:
            self.n_running -= 1

    def _rate(self) -> float:
        """Tokens a second of each running sequence."""
        model = self._model
        share = model.decode_share if self._prefilling else 1.0
        return self._speed * share / (model.decode_step_s + self.n_running * model.decode_step_per_sequence_s)

    def _advance(self) -> None:
        """Bring V up to now. Must come before every change of the rate."""
        now = self._clock.now()
        if now > self._at:
            self._v += (now - self._at) * self._rate()
            self._at = now

    def _push(self, target: float, entry: "Sequence | asyncio.Future[None]") -> None:
        heappush(self._heap, (target, next(self._order), entry))

    def _arm(self, least_s: float = 0.0) -> None:
        """Have the timer ring when the first entry is due, or earlier."""
        if not self._heap:
            return
        loop = asyncio.get_running_loop()
        due_at = loop.time() + max(least_s, (self._heap[0][0] - self._v) / self._rate())
        if self._timer is not None:
            if self._rings_at <= due_at:
                return  # it will look again
            self._timer.cancel()
        self._rings_at = due_at
        self._timer = loop.call_at(due_at, self._ring)

    def _ring(self) -> None:
        self._timer = None
        self._advance()
        n_done = 0
        while self._heap and self._heap[0][0] <= self._v + _EPSILON:
            entry = heappop(self._heap)[2]
            n_done += 1
            if isinstance(entry, Sequence):
                if not entry.has_left:
                    entry.has_left = True
                    self._released(entry)
                    if entry.on_end is not None:
                        entry.on_end()
            elif not entry.done():
                entry.set_result(None)
        if n_done:
            self._admit()
        else:
            self._arm(_TICK_S)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.n_running} running, {len(self._waiting)} waiting, {self.n_kv_free} KV free>"


class StaticEngine(SimulatedEngine):
    """Static batching: nobody joins a running batch, and its places are free only when all of it has ended."""

    def __init__(self, model: EngineModel, clock: Clock) -> None:
        super().__init__(model, clock)
        self._batch: tuple[Sequence, ...] = ()
        self._n_left = 0
        self._window: asyncio.TimerHandle | None = None
        self._whole: list[asyncio.Future[None]] = []

    async def wait_whole(self, sequence: Sequence) -> None:
        if sequence in self._batch:
            waiter = asyncio.get_running_loop().create_future()
            self._whole.append(waiter)
            await waiter

    def _has_room(self) -> bool:
        return not self._batch and len(self._waiting) < self._model.max_running

    def _admit(self) -> None:
        if self._waiting and not self._batch and not self._prefilling and self._window is None:
            self._window = asyncio.get_running_loop().call_later(self._model.batch_window_s, self._fill)
        self._arm()

    def _fill(self) -> None:
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
            self._n_left = len(batch)
            self._prefill(self._batch, len(batch) * max(one.n_prompt for one in batch))

    def _released(self, sequence: Sequence) -> None:
        """Its place stays taken: what it leaves is padding, until the last one leaves."""
        self._n_left -= 1
        if self._n_left:
            return
        self.n_running = 0
        self.n_kv_free += sum(one.kv for one in self._batch)
        self._batch = ()
        done, self._whole = self._whole, []
        for waiter in done:
            if not waiter.done():
                waiter.set_result(None)


def engine_of(model: EngineModel, clock: Clock) -> SimulatedEngine:
    return (StaticEngine if model.batching == "static" else SimulatedEngine)(model, clock)
