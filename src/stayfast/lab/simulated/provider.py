"""A simulated provider as its callers see it, and one request at it, from the question to its end."""

import asyncio
from collections.abc import Callable
from itertools import count
from typing import Any

import msgspec

from stayfast.core.clock import Clock
from stayfast.lab.simulated.config import ProviderConfig
from stayfast.lab.simulated.encode import AnswerEncoder, whole_body
from stayfast.lab.simulated.engine import Full
from stayfast.lab.simulated.faults import BEFORE_BODY, Broke, FaultKind, FaultRule
from stayfast.lab.simulated.filler_text import tokens_of
from stayfast.lab.simulated.provider_state import CallState, ProviderState
from stayfast.lab.simulated.request import SimulatedRequest
from stayfast.lab.simulated.timing_plan import NEVER, RequestPace, chunks_until, plan, rest_s
from stayfast.lab.simulated.vendor import (
    JSON,
    SSE,
    Headers,
    VendorError,
    VendorLimit,
    error_headers,
    error_of,
    limit_headers,
    overloaded,
)

_NO_FAULT = FaultRule(FaultKind.SLOW, factor=1.0)
_CUT_SHORT = frozenset({FaultKind.RESET_MID, FaultKind.CUT, FaultKind.TRUNCATED})
_IN_STREAM = _CUT_SHORT | {FaultKind.IN_BAND, FaultKind.MALFORMED, FaultKind.SILENT}


class SimulatedHead(msgspec.Struct, frozen=True, gc=False):
    """The head of an answer, names in lower case. `body` is there for errors and whole answers, else read it by `next`."""

    status: int
    headers: Headers
    body: bytes | None = None


class Answering(CallState):
    """`begin` once, then `next` until None; `close` at any time. One task owns it; made by `Provider.ask`. Either may raise
    Broke where the connection fails, and never returns where the provider hangs: cancel it, and close."""

    __slots__ = (
        "_answer", "_break_at", "_due_at", "_is_left", "_n_chunks", "_n_sent", "_name", "_opening", "_pace", "_pieces",
        "_provider", "_rest", "_rng", "_stall_at", "_whole_from", "_whole_until", "fault", "on_end")

    def __init__(self, provider: ProviderState, ask: SimulatedRequest, number: int, received_at: float) -> None:
        self._name = f"{provider.tag}{number:08x}"
        super().__init__(ask, number, f"req_{self._name}", received_at)
        self.fault = _NO_FAULT  # what strikes it
        self.on_end: Callable[[], None] | None = None  # called when it is over, which may be long after `close`
        self._provider = provider
        self._pace: RequestPace | None = None
        self._rng = provider.dice.of_request(number)
        self._answer: AnswerEncoder
        self._opening = b""
        self._pieces: list[str] = []  # of JSON to say; empty: plain words
        self._rest: list[bytes] = []  # of a whole answer that will not come whole
        self._n_sent = self._n_chunks = 0  # of one choice
        self._due_at = 0.0  # of the last chunk; before the first one, of that
        self._is_left = False  # the caller has gone, and the work runs on
        self._stall_at = NEVER
        self._break_at = NEVER
        self._whole_from = self._whole_until = 0.0

    @property
    def n_unread(self) -> int:
        """Tokens that came into being for a caller that left before the end; 0 until it is over."""
        return self.n_generated if self.outcome == "cancelled" else 0

    async def begin(self) -> SimulatedHead:
        """Wait as the provider would, up to the head of its answer."""
        provider = self._provider
        now = provider.clock.now()
        fault = self.fault = provider.fault_for(self.ask.api, self.number, now) or _NO_FAULT
        if fault.kind in BEFORE_BODY:
            if fault.kind is FaultKind.HANG:
                await self._for_ever()
            if fault.kind is FaultKind.STATUS:
                return self._refuse(*provider.injected(fault, self.ask))
            self._settle(fault.kind.value, 0)
            raise Broke(fault.kind.value)
        regime = provider.regime_at(now)
        refusal = provider.admit(self, regime, now)
        if refusal is not None:
            return self._refuse(refusal)
        luck = provider.luck_of(self.ask.session, now, self._rng)
        pace = self._pace = plan(provider.config, provider.numbers, self.ask, self._rng, luck=luck, regime=regime)
        if fault.kind is FaultKind.SLOW:
            pace.gap_factor *= fault.factor
        late_s = fault.seconds if fault.kind is FaultKind.SLOW_HEADERS else 0.0
        first_at = self._due_at = provider.warm_at(now) + pace.ttft_s + late_s
        if provider.engine is not None and self.ask.api.can_stream:
            await self._sleep_until(first_at)
            try:
                self.sequence = provider.engine.submit(self.ask.n_prompt_tokens, pace.n_output, self.ask.blocks)
            except Full:
                return self._refuse(overloaded(provider.numbers.vendor, self.ask.api))
            await self.sequence.started
            if self.sequence.n_cached:
                self.ask = msgspec.structs.replace(self.ask, n_cached_tokens=self.sequence.n_cached)
            first_at = self._due_at = provider.clock.now()
        if not self.ask.stream:
            return await self._whole(first_at, pace)
        head_share = provider.config.head_share
        await self._sleep_until(first_at if head_share == 1 else first_at - pace.ttft_s * (1 - head_share))
        return self._open(pace)

    async def next(self) -> bytes | None:
        """The next bytes of the body, as soon as they are due; None when it has ended, whole or not."""
        if self._rest:
            return self._rest.pop()
        pace = self._pace
        if self.outcome is not None or pace is None:
            return None
        if self._n_chunks >= self._break_at:
            return await self._strike()
        data, self._opening = self._opening, b""
        if data and self._provider.config.head_share < 1:
            return data
        gaps = self._provider.numbers.gaps
        n_sent, n_chunks, due_at, pause_s = self._n_sent, self._n_chunks, self._due_at, 0.0
        last = min(n_chunks + gaps.chunks_per_write, self._break_at)
        while n_chunks < last and n_sent < pace.n_output:
            n = min(gaps.tokens_per_chunk, pace.n_output - n_sent)
            if n_chunks:
                gap_s = gaps.draw(self._rng, n) * pace.gap_factor
                due_at += gap_s * pace.slow_factor if n_chunks >= pace.slow_from else gap_s
                if n_chunks >= self._stall_at or self.fault.kind is FaultKind.STALL:
                    pause_s += self._pause_s(n_chunks)
            data += (self._answer.piece("".join(self._pieces[n_sent : n_sent + n])) if self._pieces
                     else self._answer.words(pace.words_from + n_sent, n))
            n_sent += n
            n_chunks += 1
        due_at += pause_s
        if self.sequence is None:
            await self._sleep_until(due_at)
        else:
            await self._engine_brings(n_sent, pause_s)
        self._n_sent, self._n_chunks, self._due_at = n_sent, n_chunks, due_at
        if n_sent >= pace.n_output and self._break_at == NEVER:
            n_output = n_sent * self.ask.n_choices
            data += self._answer.end(pace.reason, n_output)
            self._settle("completed", n_output)
        return data

    def close(self) -> None:
        """The caller has gone, or has all it wants: capacity is free at once, or, where hang-ups go unnoticed, at the end of
        the work. Safe to call again."""
        if self.outcome is not None or self._is_left:
            return
        n_now = self._n_by_now()
        if self.fault.kind in (FaultKind.HANG, FaultKind.SILENT):
            self._settle(self.fault.kind.value, n_now)
        elif self._pace is None or self._provider.config.cancels_on_disconnect:
            self._settle("cancelled", n_now)
        else:
            self._run_on(self._pace, n_now)

    # -- before the body

    def _refuse(self, trouble: VendorError, limits: list[VendorLimit] | None = None) -> SimulatedHead:
        self._settle(f"status_{trouble.status}", 0)
        provider = self._provider
        headers = error_headers(trouble, provider.numbers.vendor)
        return SimulatedHead(trouble.status, (JSON, *provider.headers(self, limits), *headers),
                             msgspec.json.encode(self._error(trouble)))

    def _error(self, trouble: VendorError) -> dict[str, Any]:
        provider = self._provider
        return error_of(trouble, provider.numbers.vendor, self.ask.api, self.request_id, provider.clock.wall())

    def _headers(self) -> Headers:
        """Over an answer that is not a stream."""
        return (JSON, *self._provider.headers(self))

    def _open(self, pace: RequestPace) -> SimulatedHead:
        provider = self._provider
        self._remember()
        self._answer = AnswerEncoder(self.ask, self._name, int(provider.clock.wall()))
        self._opening = self._answer.begin()
        if self.ask.value is not None:
            self._pieces = tokens_of(self.ask.value)
        self._stall_at = chunks_until(provider.config.stalls.share, self._rng)
        kind = self.fault.kind
        if kind in _IN_STREAM:
            n_chunks = -(-pace.n_output // provider.numbers.gaps.tokens_per_chunk)
            self._break_at = 0 if kind is FaultKind.SILENT else min(self.fault.after_chunks, n_chunks)
        return SimulatedHead(200, (SSE, *provider.headers(self)))

    async def _whole(self, first_at: float, pace: RequestPace) -> SimulatedHead:
        """The head and the body of a whole answer, when its last token is there."""
        provider, ask, kind = self._provider, self.ask, self.fault.kind
        if kind is FaultKind.SILENT:
            self._break_at = 0
            return SimulatedHead(200, self._headers())
        self._whole_from = first_at
        self._whole_until = first_at + rest_s(provider.config, provider.numbers.gaps, pace, self._rng)
        if self.sequence is not None and provider.engine is not None:
            await provider.engine.wait_whole(self.sequence)
            self._whole_until = provider.clock.now()
        await self._sleep_until(self._whole_until + (self.fault.seconds if kind is FaultKind.STALL else 0.0))
        self._remember()
        body = whole_body(ask, pace, self._name, int(provider.clock.wall()))
        if kind in _CUT_SHORT:
            self._n_sent = pace.n_output
            self._rest = [body[: len(body) // 2]]
            self._break_at = 0
            return SimulatedHead(200, self._headers())
        if kind is FaultKind.IN_BAND:
            body = msgspec.json.encode(self._error(provider.injected(self.fault, ask)[0]))
        elif kind is FaultKind.MALFORMED:
            body = body[: len(body) // 2]
        head = SimulatedHead(200, self._headers(), body)
        self._settle(kind.value if kind in _IN_STREAM else "completed", pace.n_output * ask.n_choices)
        return head

    def _remember(self) -> None:
        if self.remembers is not None and self._provider.prompt_cache is not None:
            self._provider.prompt_cache.began(self.remembers)

    # -- inside the body

    def _pause_s(self, n_chunks: int) -> float:
        """Seconds that the stalls before this chunk last."""
        seconds = 0.0
        if n_chunks >= self._stall_at:
            stalls = self._provider.config.stalls
            seconds += stalls.duration.draw(self._rng, self._rng.random())
            self._stall_at = n_chunks + 1 + chunks_until(stalls.share, self._rng)
        if self.fault.kind is FaultKind.STALL and n_chunks == self.fault.after_chunks:
            seconds += self.fault.seconds
        return seconds

    async def _engine_brings(self, n_sent: int, pause_s: float) -> None:
        """Until the engine has so many tokens, and what holds them up on their way has passed."""
        assert self.sequence is not None
        assert self._provider.engine is not None
        if n_sent:
            await self._provider.engine.wait_token(self.sequence, n_sent)
        if pause_s:
            await asyncio.sleep(pause_s)

    async def _strike(self) -> bytes | None:
        kind = self.fault.kind
        if kind is FaultKind.SILENT:
            await self._for_ever()
        data, self._opening = self._opening, b""
        if data:
            return data
        self._settle(kind.value, self._n_sent * self.ask.n_choices)
        match kind:
            case FaultKind.RESET_MID:
                raise Broke("reset")
            case FaultKind.CUT:
                raise Broke("cut")
            case FaultKind.MALFORMED:
                return self._answer.broken()
            case FaultKind.IN_BAND:
                trouble, limits = self._provider.injected(self.fault, self.ask)
                vendor, wall = self._provider.numbers.vendor, self._provider.clock.wall()
                headers = dict((*limit_headers(limits, vendor, wall), *error_headers(trouble, vendor)))
                return self._answer.error(self._error(trouble), headers, self.fault.form)
        return None

    # -- at any time

    def _n_by_now(self) -> int:
        pace, provider = self._pace, self._provider
        if pace is None:
            return 0
        n_one = self._n_sent
        if self.sequence is not None and provider.engine is not None:
            n_one = provider.engine.n_generated(self.sequence)
        elif not self.ask.stream and self._whole_until:
            past_s, span_s = provider.clock.now() - self._whole_from, self._whole_until - self._whole_from
            share = past_s / span_s if span_s > 0 else float(past_s >= 0)
            n_one = int(pace.n_output * min(1.0, max(0.0, share)))
        return n_one * self.ask.n_choices

    def _run_on(self, pace: RequestPace, n_now: int) -> None:
        """Nobody noticed: the work goes on to its end, and holds what it holds until then."""
        provider = self._provider
        self._is_left = True
        self.n_after_hangup = pace.n_output * self.ask.n_choices - n_now
        if self.sequence is not None:
            self.sequence.when_ended(self._run_out)
        elif provider.engine is not None and self.ask.api.can_stream:
            provider.at(self._due_at, self._enter)
        else:
            rest = rest_s(provider.config, provider.numbers.gaps, pace, self._rng, max(1, self._n_sent))
            provider.at(self._whole_until or self._due_at + rest, self._run_out)

    def _enter(self) -> None:
        """Begin in the engine, for nobody."""
        provider, pace = self._provider, self._pace
        assert provider.engine is not None
        assert pace is not None
        try:
            self.sequence = provider.engine.submit(self.ask.n_prompt_tokens, pace.n_output, self.ask.blocks)
        except Full:
            self.n_after_hangup = 0
            self._settle("cancelled", 0)
        else:
            self.sequence.when_ended(self._run_out)

    def _run_out(self) -> None:
        """All of it is there, and nobody reads it."""
        assert self._pace is not None
        self._settle("cancelled", self._pace.n_output * self.ask.n_choices)

    def _settle(self, outcome: str, n_generated: int) -> None:
        self.outcome = outcome
        self.n_generated = n_generated
        self.ended_at = self._provider.clock.now()
        self._provider.ended(self)
        if self.on_end is not None:
            self.on_end()

    async def _sleep_until(self, at: float) -> None:
        delay_s = at - self._provider.clock.now()
        if delay_s > 0:
            await asyncio.sleep(delay_s)

    async def _for_ever(self) -> None:
        await asyncio.get_running_loop().create_future()

    def __repr__(self) -> str:
        return f"<Answering {self._name}: {self.outcome or 'running'}, {self._n_sent} tokens said>"


class Provider(ProviderState):
    """One simulated provider. One loop; its life begins when it is made."""

    def __init__(self, name: str, config: ProviderConfig, clock: Clock) -> None:
        super().__init__(name, config, clock)
        self._numbers = count()

    def ask(self, ask: SimulatedRequest) -> Answering:
        """Take a request. Nothing happens before its `begin`."""
        now = self.clock.now()
        counts = self.counts
        counts.n_asked += 1
        counts.n_running += 1
        counts.n_running_peak = max(counts.n_running_peak, counts.n_running)
        if counts.first_at is None:
            counts.first_at = now
        counts.last_at = now
        return Answering(self, ask, next(self._numbers) if ask.number is None else ask.number, now)
