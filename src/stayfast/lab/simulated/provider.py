"""A simulated provider, and one call to it from the request to the end of its answer."""

import asyncio
from collections.abc import Callable
from itertools import count
from typing import Any

import msgspec

from stayfast.core.clock import Clock
from stayfast.lab.simulated.config import ProviderConfig
from stayfast.lab.simulated.encode import AnswerEncoder, encode_whole_body
from stayfast.lab.simulated.engine import EngineFull
from stayfast.lab.simulated.faults import BEFORE_BODY, ConnectionBroken, FaultKind, FaultRule
from stayfast.lab.simulated.filler_text import split_tokens
from stayfast.lab.simulated.provider_state import CallState, ProviderState
from stayfast.lab.simulated.request import SimulatedRequest
from stayfast.lab.simulated.timing_plan import NEVER, RequestPace, draw_chunks_until, draw_timing, rest_s
from stayfast.lab.simulated.vendor import (
    JSON,
    SSE,
    Headers,
    VendorError,
    VendorLimit,
    error_body,
    error_headers,
    limit_headers,
    overloaded_error,
)

_NO_FAULT = FaultRule(FaultKind.SLOW, factor=1.0)
_CUT_SHORT = frozenset({FaultKind.RESET_MID, FaultKind.CUT, FaultKind.TRUNCATED})
_IN_STREAM = _CUT_SHORT | {FaultKind.IN_BAND, FaultKind.MALFORMED, FaultKind.SILENT}


class SimulatedHead(msgspec.Struct, frozen=True, gc=False):
    """The head of an answer, header names in lower case. `body`: of an error or a whole answer; None: read it by `next`."""

    status: int
    headers: Headers
    body: bytes | None = None


class SimulatedCall(CallState):
    """One call: `wait_head` once, then `next` until None; `close` at any time. One task owns it. `wait_head` and `next`
    raise ConnectionBroken if the connection fails, and do not return if the provider hangs: cancel and close then.
    """

    __slots__ = ("_due_at", "_encoder", "_fault_at", "_has_client_left", "_n_chunks", "_n_sent", "_name", "_opening",
                 "_pace", "_pieces", "_provider", "_rest", "_rng", "_stall_at", "_whole_began_at", "_whole_ends_at",
                 "fault", "on_end")

    def __init__(self, provider: ProviderState, request: SimulatedRequest, number: int, received_at: float) -> None:
        self._name = f"{provider.tag}{number:08x}"
        super().__init__(request, number, f"req_{self._name}", received_at)
        self.fault = _NO_FAULT
        self.on_end: Callable[[], None] | None = None  # called at its end, possibly long after `close`
        self._provider = provider
        self._pace: RequestPace | None = None
        self._rng = provider.dice.for_request(number)
        self._encoder: AnswerEncoder
        self._opening = b""
        self._pieces: list[str] = []  # of a JSON answer; empty: plain words
        self._rest: list[bytes] = []  # of a whole answer that is cut off
        self._n_sent = self._n_chunks = 0  # of one choice
        self._due_at = 0.0  # of the last chunk; before any chunk, of the first
        self._has_client_left = False  # the work continues unread
        self._stall_at = NEVER
        self._fault_at = NEVER
        self._whole_began_at = self._whole_ends_at = 0.0

    @property
    def n_unread(self) -> int:
        """Tokens generated for a client that disconnected before the end; 0 until the call has ended."""
        return self.n_generated if self.outcome == "cancelled" else 0

    async def wait_head(self) -> SimulatedHead:
        """Wait for the head of the answer."""
        provider = self._provider
        now = provider.clock.now()
        fault = self.fault = provider.fault_for(self.request.api, self.number, now) or _NO_FAULT
        if fault.kind in BEFORE_BODY:
            if fault.kind is FaultKind.HANG:
                await self._hang()
            if fault.kind is FaultKind.STATUS:
                return self._error_head(*provider.build_fault_error(fault, self.request))
            self._finish(fault.kind.value, 0)
            raise ConnectionBroken(fault.kind.value)
        regime = provider.regime_at(now)
        refusal = provider.admit(self, regime, now)
        if refusal is not None:
            return self._error_head(refusal)
        luck = provider.shared_luck(self.request.session, now, self._rng)
        numbers = provider.numbers_of(self.request.model)
        pace = self._pace = draw_timing(provider.config, numbers, self.request, self._rng, luck=luck, regime=regime)
        if fault.kind is FaultKind.SLOW:
            pace.gap_factor *= fault.factor
        late_s = fault.seconds if fault.kind is FaultKind.SLOW_HEADERS else 0.0
        first_at = self._due_at = provider.warm_at(now) + pace.ttft_s + late_s
        if provider.engine is not None and self.request.api.can_stream:
            await self._sleep_until(first_at)
            try:
                self.sequence = provider.engine.submit(self.request.n_prompt_tokens, pace.n_output, self.request.blocks)
            except EngineFull:
                return self._error_head(overloaded_error(provider.numbers.vendor, self.request.api))
            await self.sequence.started
            if self.sequence.n_cached:
                self.request = msgspec.structs.replace(self.request, n_cached_tokens=self.sequence.n_cached)
            first_at = self._due_at = provider.clock.now()
        if not self.request.stream:
            return await self._answer_whole(first_at, pace)
        head_share = provider.config.head_share
        await self._sleep_until(first_at if head_share == 1 else first_at - pace.ttft_s * (1 - head_share))
        return self._open_stream(pace)

    async def next(self) -> bytes | None:
        """The next bytes of the body, when they are due; None at its end, complete or not."""
        if self._rest:
            return self._rest.pop()
        pace = self._pace
        if self.outcome is not None or pace is None:
            return None
        if self._n_chunks >= self._fault_at:
            return await self._apply_fault()
        data, self._opening = self._opening, b""
        if not self._n_chunks and (early := await self._early_bytes(data)):
            return early
        gaps = pace.gaps
        n_sent, n_chunks, due_at, pause_s = self._n_sent, self._n_chunks, self._due_at, 0.0
        last = min(n_chunks + gaps.chunks_per_write, self._fault_at)
        while n_chunks < last and n_sent < pace.n_output:
            n = min(gaps.tokens_per_chunk, pace.n_output - n_sent)
            if n_chunks:
                gap_s = gaps.draw(self._rng, n) * pace.gap_factor
                due_at += gap_s * pace.slow_factor if n_chunks >= pace.slow_from else gap_s
                if n_chunks >= self._stall_at or self.fault.kind is FaultKind.STALL:
                    pause_s += self._pause_s(n_chunks)
            data += (self._encoder.encode_piece("".join(self._pieces[n_sent : n_sent + n])) if self._pieces
                     else self._encoder.encode_words(pace.words_from + n_sent, n))
            n_sent += n
            n_chunks += 1
        due_at += pause_s
        if self.sequence is None:
            await self._sleep_until(due_at)
        else:
            await self._wait_for_engine(n_sent, pause_s)
        self._n_sent, self._n_chunks, self._due_at = n_sent, n_chunks, due_at
        if n_sent >= pace.n_output and self._fault_at == NEVER:
            n_output = n_sent * self.request.n_choices
            data += self._encoder.encode_end(pace.reason, n_output)
            self._finish("completed", n_output)
        return data

    async def _early_bytes(self, opening: bytes) -> bytes:
        """What is sent before the first token: the opening after an early head, and comments. Empty: the token is next."""
        config = self._provider.config
        if opening and config.head_share < 1:
            return opening
        if config.comments_every_s is None or self._due_at - self._provider.clock.now() <= config.comments_every_s:
            return b""
        await asyncio.sleep(config.comments_every_s)
        return opening + self._encoder.encode_keepalive()

    def close(self) -> None:
        """The client disconnected, or has read everything. Capacity is freed at once; without
        `cancels_on_disconnect`, at the end of the work. Idempotent.
        """
        if self.outcome is not None or self._has_client_left:
            return
        n_now = self._count_generated()
        if self.fault.kind in (FaultKind.HANG, FaultKind.SILENT):
            self._finish(self.fault.kind.value, n_now)
        elif self._pace is None or self._provider.config.cancels_on_disconnect:
            self._finish("cancelled", n_now)
        else:
            self._run_on(self._pace, n_now)

    def _error_head(self, trouble: VendorError, limits: list[VendorLimit] | None = None) -> SimulatedHead:
        self._finish(f"status_{trouble.status}", 0)
        provider = self._provider
        headers = error_headers(trouble, provider.numbers.vendor)
        return SimulatedHead(trouble.status, (JSON, *provider.build_headers(self, limits), *headers),
                             msgspec.json.encode(self._error_body(trouble)))

    def _error_body(self, trouble: VendorError) -> dict[str, Any]:
        provider = self._provider
        return error_body(trouble, provider.numbers.vendor, self.request.api, self.request_id, provider.clock.wall())

    def _whole_headers(self) -> Headers:
        return (JSON, *self._provider.build_headers(self))

    def _open_stream(self, pace: RequestPace) -> SimulatedHead:
        provider = self._provider
        self._store_prompt()
        self._encoder = AnswerEncoder(self.request, self._name, int(provider.clock.wall()))
        self._opening = self._encoder.encode_start()
        if self.request.value is not None:
            self._pieces = split_tokens(self.request.value)
        self._stall_at = draw_chunks_until(provider.config.stalls.share, self._rng)
        kind = self.fault.kind
        if kind in _IN_STREAM:
            n_chunks = -(-pace.n_output // pace.gaps.tokens_per_chunk)
            self._fault_at = 0 if kind is FaultKind.SILENT else min(self.fault.after_chunks, n_chunks)
        return SimulatedHead(200, (SSE, *provider.build_headers(self)))

    async def _answer_whole(self, first_at: float, pace: RequestPace) -> SimulatedHead:
        """Wait for the last token; the head and body of a whole answer."""
        provider, request, kind = self._provider, self.request, self.fault.kind
        if kind is FaultKind.SILENT:
            self._fault_at = 0
            return SimulatedHead(200, self._whole_headers())
        self._whole_began_at = first_at
        self._whole_ends_at = first_at + rest_s(provider.config, pace, self._rng)
        if self.sequence is not None and provider.engine is not None:
            await provider.engine.wait_whole(self.sequence)
            self._whole_ends_at = provider.clock.now()
        await self._sleep_until(self._whole_ends_at + (self.fault.seconds if kind is FaultKind.STALL else 0.0))
        self._store_prompt()
        body = encode_whole_body(request, pace, self._name, int(provider.clock.wall()))
        if kind in _CUT_SHORT:
            self._n_sent = pace.n_output
            self._rest = [body[: len(body) // 2]]
            self._fault_at = 0
            return SimulatedHead(200, self._whole_headers())
        if kind is FaultKind.IN_BAND:
            body = msgspec.json.encode(self._error_body(provider.build_fault_error(self.fault, request)[0]))
        elif kind is FaultKind.MALFORMED:
            body = body[: len(body) // 2]
        head = SimulatedHead(200, self._whole_headers(), body)
        self._finish(kind.value if kind in _IN_STREAM else "completed", pace.n_output * request.n_choices)
        return head

    def _store_prompt(self) -> None:
        if self.cache_lookup is not None and self._provider.prompt_cache is not None:
            self._provider.prompt_cache.record_answer_start(self.cache_lookup)

    def _pause_s(self, n_chunks: int) -> float:
        """Seconds of the stalls before this chunk."""
        seconds = 0.0
        if n_chunks >= self._stall_at:
            stalls = self._provider.config.stalls
            seconds += stalls.duration.draw(self._rng, self._rng.random())
            self._stall_at = n_chunks + 1 + draw_chunks_until(stalls.share, self._rng)
        if self.fault.kind is FaultKind.STALL and n_chunks == self.fault.after_chunks:
            seconds += self.fault.seconds
        return seconds

    async def _wait_for_engine(self, n_sent: int, pause_s: float) -> None:
        """Wait until the engine has generated `n_sent` tokens, then for the pause."""
        assert self.sequence is not None
        assert self._provider.engine is not None
        if n_sent:
            await self._provider.engine.wait_token(self.sequence, n_sent)
        if pause_s:
            await asyncio.sleep(pause_s)

    async def _stay_silent(self) -> bytes:
        """The next bytes of a stream without content; does not return if there are none."""
        opening, self._opening = self._opening, b""
        if opening and self.fault.sends_role:
            return opening
        if self.fault.comments_every_s is None or not self.request.stream:
            await self._hang()
        await asyncio.sleep(self.fault.comments_every_s or 0.0)
        return self._encoder.encode_keepalive()

    async def _apply_fault(self) -> bytes | None:
        kind = self.fault.kind
        if kind is FaultKind.SILENT:
            return await self._stay_silent()
        data, self._opening = self._opening, b""
        if data:
            return data
        self._finish(kind.value, self._n_sent * self.request.n_choices)
        match kind:
            case FaultKind.RESET_MID:
                raise ConnectionBroken("reset")
            case FaultKind.CUT:
                raise ConnectionBroken("cut")
            case FaultKind.MALFORMED:
                return self._encoder.encode_malformed()
            case FaultKind.IN_BAND:
                trouble, limits = self._provider.build_fault_error(self.fault, self.request)
                vendor, wall = self._provider.numbers.vendor, self._provider.clock.wall()
                headers = dict((*limit_headers(limits, vendor, wall), *error_headers(trouble, vendor)))
                return self._encoder.encode_error(self._error_body(trouble), headers, self.fault.form)
        return None

    def _count_generated(self) -> int:
        pace, provider = self._pace, self._provider
        if pace is None:
            return 0
        n_one = self._n_sent
        if self.sequence is not None and provider.engine is not None:
            n_one = provider.engine.n_generated(self.sequence)
        elif not self.request.stream and self._whole_ends_at:
            past_s, span_s = provider.clock.now() - self._whole_began_at, self._whole_ends_at - self._whole_began_at
            share = past_s / span_s if span_s > 0 else float(past_s >= 0)
            n_one = int(pace.n_output * min(1.0, max(0.0, share)))
        return n_one * self.request.n_choices

    def _run_on(self, pace: RequestPace, n_now: int) -> None:
        """The provider did not notice the disconnect: the work continues, and holds its capacity, to its end."""
        provider = self._provider
        self._has_client_left = True
        self.n_after_hangup = pace.n_output * self.request.n_choices - n_now
        if self.sequence is not None:
            self.sequence.call_when_ended(self._finish_unread)
        elif provider.engine is not None and self.request.api.can_stream:
            provider.call_at(self._due_at, self._submit_unread)
        else:
            rest = rest_s(provider.config, pace, self._rng, max(1, self._n_sent))
            provider.call_at(self._whole_ends_at or self._due_at + rest, self._finish_unread)

    def _submit_unread(self) -> None:
        """Submit the call to the engine after the client disconnected."""
        provider, pace = self._provider, self._pace
        assert provider.engine is not None
        assert pace is not None
        try:
            self.sequence = provider.engine.submit(self.request.n_prompt_tokens, pace.n_output, self.request.blocks)
        except EngineFull:
            self.n_after_hangup = 0
            self._finish("cancelled", 0)
        else:
            self.sequence.call_when_ended(self._finish_unread)

    def _finish_unread(self) -> None:
        assert self._pace is not None
        self._finish("cancelled", self._pace.n_output * self.request.n_choices)

    def _finish(self, outcome: str, n_generated: int) -> None:
        self.outcome = outcome
        self.n_generated = n_generated
        self.ended_at = self._provider.clock.now()
        self._provider.record_end(self)
        if self.on_end is not None:
            self.on_end()

    async def _sleep_until(self, at: float) -> None:
        delay_s = at - self._provider.clock.now()
        if delay_s > 0:
            await asyncio.sleep(delay_s)

    async def _hang(self) -> None:
        await asyncio.get_running_loop().create_future()

    def __repr__(self) -> str:
        return f"<SimulatedCall {self._name}: {self.outcome or 'running'}, {self._n_sent} tokens sent>"


class Provider(ProviderState):
    """One simulated provider. Single loop; its age counts from its creation."""

    def __init__(self, name: str, config: ProviderConfig, clock: Clock) -> None:
        super().__init__(name, config, clock)
        self._numbers = count()

    def start_call(self, request: SimulatedRequest) -> SimulatedCall:
        """Accept a request. Nothing happens before `wait_head` of the result."""
        now = self.clock.now()
        counts = self.counts
        counts.n_asked += 1
        counts.n_running += 1
        counts.n_running_peak = max(counts.n_running_peak, counts.n_running)
        if counts.first_at is None:
            counts.first_at = now
        counts.last_at = now
        return SimulatedCall(self, request, next(self._numbers) if request.number is None else request.number, now)
