"""An upstream of the simulator that answers at the speed fitted from a log, with the token counts of the log."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random

import msgspec

from stayfast.core.clock import Clock
from stayfast.core.errors import Fault, UpstreamFailed
from stayfast.core.types import AnswerSummary, Api, Chunk
from stayfast.lab.plan.fitting import UpstreamFit
from stayfast.lab.simulated.engine import Sequence, SimulatedEngine
from stayfast.policy.admission.price import Prices
from stayfast.policy.resilience.breaker import BreakerConfig
from stayfast.policy.resilience.limits import LimitConfig
from stayfast.upstreams.base import AnswerStream, Call
from stayfast.wire.request_body import can_translate
from stayfast.wire.transcode import Transcoder, make_transcoder

_NEVER_S = 1e6  # a hanging attempt, which a time-out must end
_DONE = b"data: [DONE]\n\n"


class ReplayCall(msgspec.Struct, frozen=True, gc=False):
    """One request to replay. content: requests with the same number have the same body."""

    at_s: float  # from the start of the run
    n_input: int
    n_cached: int
    n_output: int
    is_stream: bool
    content: int
    tenant: str = ""
    luck: int = 0  # seeds its draws, so that a change leaves the draws of the other requests as they were


class ReplayedUpstream:
    """Task-safe, of one loop. calls: by the id of the request."""

    kind = "simulated"
    always_streams = False

    def __init__(self, name: str, fit: UpstreamFit, calls: Mapping[str, ReplayCall], seed: int, clock: Clock) -> None:
        self.name = name
        self._fit = fit
        self._calls = calls
        self._seed = seed
        self._clock = clock
        self._n_tries: dict[str, int] = {}
        self._engine = SimulatedEngine(fit.engine, clock) if fit.engine is not None else None

    def can_serve(self, api: Api) -> bool:
        return can_translate(api, Api.CHAT)

    async def open(self, call: Call) -> AnswerStream:
        """Wait for the first token, as drawn for this request and attempt. Raises UpstreamFailed as often as in the log."""
        fit, known = self._fit, self._calls[call.request_id]
        n_try = self._n_tries[call.request_id] = self._n_tries.get(call.request_id, 0) + 1
        rng = Random(((self._seed << 32 | known.luck) << 8 | n_try & 0xFF) << 16 | hash_name(self.name))
        fate, luck, pace = rng.random(), rng.random(), rng.random()
        if call.sending is not None:
            call.sending.has_started = True
        if fate < fit.fail_share:
            await asyncio.sleep(fit.fail_after_s)
            raise UpstreamFailed(self.name, Fault.STATUS, "as in the log", upstream_status=fit.fail_status)
        if fate < fit.fail_share + fit.hang_share:
            await asyncio.sleep(_NEVER_S)
        n_uncached = max(0, known.n_input - known.n_cached)
        await asyncio.sleep(fit.first_wait_s(luck, n_uncached))
        sequence = None
        if self._engine is not None:
            sequence = self._engine.submit(n_uncached, max(1, known.n_output))
            try:
                await sequence.started
            except BaseException:
                self._engine.release(sequence)
                raise
        answer = _ReplayedStream(self, call, known, fit.pace_s(pace, known.n_output), sequence)
        if not call.request.stream:
            try:
                await answer.wait_rest()
            except BaseException:
                self.release(sequence)
                raise
        return answer

    async def wait_rest(self, known: ReplayCall, pace_s: float, sequence: Sequence | None) -> None:
        """Wait from the first token to the last."""
        if sequence is not None and self._engine is not None:
            await self._engine.wait_token(sequence, max(1, known.n_output))
        else:
            await asyncio.sleep(pace_s * max(0, known.n_output - 1))

    def release(self, sequence: Sequence | None) -> None:
        if sequence is not None and self._engine is not None:
            self._engine.release(sequence)

    def close(self) -> None:
        """Nothing idle to close."""

    def __repr__(self) -> str:
        return f"<ReplayedUpstream {self.name}, fitted to {self._fit.n_seen} answers>"


def hash_name(name: str) -> int:
    """16 bits that depend on the name only, in all processes."""
    value = 0
    for char in name:
        value = (value * 31 + ord(char)) & 0xFFFF
    return value


class _ReplayedStream:
    """One answer in two parts: the first token, and the rest. One task reads it."""

    __slots__ = ("_call", "_has_first", "_is_closed", "_is_ended", "_known", "_pace_s", "_sequence", "_transcoder",
                 "_upstream")

    def __init__(self, upstream: ReplayedUpstream, call: Call, known: ReplayCall, pace_s: float,
                 sequence: Sequence | None) -> None:
        self._upstream, self._call, self._known, self._pace_s, self._sequence = upstream, call, known, pace_s, sequence
        self._transcoder: Transcoder = make_transcoder(Api.CHAT, call.request, source_streams=True, upstream=upstream.name,
                                                       hide_usage=not call.request.include_usage, created_at=0)
        self._has_first = self._is_ended = self._is_closed = False

    @property
    def summary(self) -> AnswerSummary:
        return self._transcoder.summary

    async def wait_rest(self) -> None:
        await self._upstream.wait_rest(self._known, self._pace_s, self._sequence)

    async def next(self) -> Chunk | None:
        if self._is_ended:
            return None
        if not self._has_first:
            self._has_first = True
            return self._transcoder.feed(_event({"role": "assistant", "content": "x "})) or Chunk(b"")
        known = self._known
        if self._call.request.stream:
            await self.wait_rest()
        self._is_ended = True
        usage = {"prompt_tokens": known.n_input, "completion_tokens": known.n_output,
                 "total_tokens": known.n_input + known.n_output, "prompt_tokens_details": {"cached_tokens": known.n_cached}}
        rest = _event({"content": "y " * min(64, known.n_output)}) if known.n_output > 1 else b""
        summary = b"data: " + msgspec.json.encode(_head(choices=[], usage=usage)) + b"\n\n"
        ending = rest + _event({}, "stop") + summary + _DONE
        chunk, last = self._transcoder.feed(ending), self._transcoder.finish()
        if self.summary.failure is not None:
            raise self.summary.failure
        if chunk is None or last is None:
            return chunk or last
        return Chunk(chunk.data + last.data, chunk.n_content + last.n_content)

    def cut(self) -> Chunk | None:
        self._is_ended = True
        return self._transcoder.end_early()

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._upstream.release(self._sequence)


def _event(delta: dict[str, str], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return b"data: " + msgspec.json.encode(_head(choices=[choice])) + b"\n\n"


def _head(**fields: object) -> dict[str, object]:
    return {"id": "chatcmpl-replayed", "object": "chat.completion.chunk", "created": 0, "model": "replayed", **fields}


@dataclass(frozen=True, slots=True)
class ReplayedUpstreamSettings:
    """Settings of such an upstream; made by `replay`, never read from a file."""

    fit: UpstreamFit
    calls: Mapping[str, ReplayCall]
    seed: int
    kind: str = "simulated"
    models: Mapping[str, str] = field(default_factory=dict)
    prices: Prices = field(default_factory=dict)
    probe: bool = False
    limit: LimitConfig = field(default_factory=LimitConfig)
    breaker: BreakerConfig = field(default_factory=BreakerConfig)

    def build_upstream(self, name: str, clock: Clock) -> ReplayedUpstream:
        return ReplayedUpstream(name, self.fit, self.calls, self.seed, clock)
