"""An embedded model with several engine processes that differ in speculation alone: the controller chooses one per request.

Greedy answers are equal in all of them, so a request may go to any. While a chosen process does not run, the plain one
answers; the prompt caches of the processes are their own.
"""

from collections import Counter
from collections.abc import Callable, Mapping

from stayfast.core.clock import Clock
from stayfast.core.errors import Fault, UpstreamFailed
from stayfast.core.types import NEVER_STREAMED, AnswerSummary, Api, Chunk
from stayfast.policy.speculation.config import OFF
from stayfast.policy.speculation.controller import UNAVAILABLE, ArmChoice, DecodeSample, SpeculationController
from stayfast.upstreams.base import AnswerStream, Call, Upstream
from stayfast.upstreams.embedded import EngineEndpoint


class SpeculatingUpstream:
    """Task-safe. Counts of choices are by route, arm and reason, others by route and arm."""

    kind = "embedded"
    always_streams = True

    def __init__(self, name: str, arms: Mapping[str, Upstream], engines: Mapping[str, EngineEndpoint],
                 controller: SpeculationController, clock: Clock) -> None:
        """arms, engines: by arm, with the plain one."""
        self.name = name
        self.controller = controller
        self._arms = arms
        self._engines = engines
        self._clock = clock
        self._n_in_flight = 0
        self.n_chosen: Counter[tuple[str, str, str]] = Counter()
        self.n_tokens: Counter[tuple[str, str]] = Counter()
        self.decode_s: dict[tuple[str, str], float] = {}
        self.n_drafted: Counter[tuple[str, str]] = Counter()
        self.n_accepted: Counter[tuple[str, str]] = Counter()

    def can_serve(self, api: Api) -> bool:
        return self._arms[OFF].can_serve(api)

    async def open(self, call: Call) -> AnswerStream:
        request = call.request
        if request.api in NEVER_STREAMED or not call.route:
            return await self._arms[OFF].open(call)
        self._n_in_flight += 1
        try:
            choice = self._choose(call)
            try:
                stream = await self._arms[choice.arm].open(call)
            except UpstreamFailed as failed:
                if choice.arm == OFF or failed.fault is not Fault.CRASHED:
                    raise
                choice = choice._replace(arm=OFF, why=UNAVAILABLE)
                stream = await self._arms[OFF].open(call)
        except BaseException:
            self._n_in_flight -= 1
            raise
        self.n_chosen[choice.route, choice.arm, choice.why] += 1
        if call.note is not None:
            call.note(self.controller.describe(choice, self._clock.now()))
        return _ObservedStream(stream, lambda summary: self._end(choice, summary))

    def _choose(self, call: Call) -> ArmChoice:
        if (n_slots := self._engines[OFF].n_slots) is not None:  # unknown to a worker before its parent's engine is ready
            self.controller.n_slots = n_slots
        choice = self.controller.choose(call.route, self._n_in_flight, call.request.max_output_tokens, self._clock.now())
        if choice.arm == OFF or self._engines[choice.arm].is_ready:
            return choice
        return choice._replace(arm=OFF, why=UNAVAILABLE)

    def _end(self, choice: ArmChoice, summary: AnswerSummary) -> None:
        """Learn from a complete answer. One that the client or the gateway ended early has no timings."""
        self._n_in_flight -= 1
        timings = summary.decode
        if timings is None or not summary.is_complete:
            return
        where = choice.route, choice.arm
        self.n_tokens[where] += timings.n_tokens
        self.decode_s[where] = self.decode_s.get(where, 0.0) + timings.seconds
        self.n_drafted[where] += timings.n_drafted
        self.n_accepted[where] += timings.n_accepted
        sample = DecodeSample(timings.n_tokens, timings.n_tokens / timings.seconds, timings.n_drafted, timings.n_accepted)
        self.controller.record(choice, sample, self._clock.now())

    def close(self) -> None:
        """Close idle connections. The engines keep running."""
        for arm in self._arms.values():
            arm.close()

    def __repr__(self) -> str:
        return f"<SpeculatingUpstream {self.name}: {self.controller!r}>"


class _ObservedStream:
    """Calls `on_end` once, when it is closed."""

    __slots__ = ("_on_end", "_stream")

    def __init__(self, stream: AnswerStream, on_end: Callable[[AnswerSummary], None]) -> None:
        self._stream = stream
        self._on_end: Callable[[AnswerSummary], None] | None = on_end

    @property
    def summary(self) -> AnswerSummary:
        return self._stream.summary

    async def next(self) -> Chunk | None:
        return await self._stream.next()

    def cut(self) -> Chunk | None:
        return self._stream.cut()

    def close(self) -> None:
        self._stream.close()
        if self._on_end is not None:
            on_end, self._on_end = self._on_end, None
            on_end(self._stream.summary)
