"""From a plan to the first valid content token. Until then attempts may be swapped unseen; after it, never."""

import asyncio
from collections import deque
from random import Random

from stayfast.core.clock import Clock
from stayfast.core.errors import DeadlineExceeded, Fault, Rejected, UpstreamFailed
from stayfast.core.events import Sink
from stayfast.core.types import Chunk, Outcome, Stage
from stayfast.pipeline.attempt import Attempt
from stayfast.pipeline.exchange import Exchange
from stayfast.pipeline.handoffs import Plan, Started, Target
from stayfast.policy.retry import wait_before_next
from stayfast.upstreams.base import Call, Stream

MAX_HELD_BACK_BYTES = 8 * 1024 * 1024  # responses repeats the instructions twice before any content; nobody says more


class Caller:
    """Makes attempts until one brings content. Task-safe: holds no state of a request."""

    __slots__ = ("_clock", "_rng", "_sink")

    def __init__(self, clock: Clock, rng: Random, sink: Sink) -> None:
        self._clock = clock
        self._rng = rng
        self._sink = sink

    async def start(self, ex: Exchange, plan: Plan) -> Started:
        """The first attempt that brings content. Raises the last attempt's UpstreamFailed, DeadlineExceeded, Rejected."""
        candidates = deque(plan.candidates)
        n_failed = 0
        while True:
            target = candidates[0]
            try:
                return await self._attempt(ex, plan, target)
            except Rejected:
                candidates.popleft()  # this upstream's protocol cannot say it; another's may
                if not candidates:
                    raise
            except UpstreamFailed as failed:
                n_failed += 1
                if failed.is_for_operator:
                    candidates.popleft()
                else:
                    candidates.rotate(-1)
                wait_s = self._wait_s(ex, plan, failed, n_failed, candidates[0] is not target) if candidates else None
                if wait_s is None:
                    raise
                if wait_s > 0:
                    await self._back_off(ex, wait_s)

    def _wait_s(self, ex: Exchange, plan: Plan, failed: UpstreamFailed, n_failed: int,
                goes_elsewhere: bool) -> float | None:
        was_sent = failed.fault is not Fault.CONNECT
        if not failed.can_retry or (plan.prompt.request.is_stateful and was_sent):
            return None
        return wait_before_next(plan.route.retry, n_failed, ex.deadline.remaining(self._clock.now()), self._rng,
                                retry_after_s=failed.retry_after_s, goes_elsewhere=goes_elsewhere)

    async def _back_off(self, ex: Exchange, wait_s: float) -> None:
        """Wait with nothing held but the request itself."""
        ex.watch.arm("total_s", ex.total_s, self._clock.now())
        try:
            await asyncio.sleep(wait_s)
        except asyncio.CancelledError:
            verdict = ex.watch.verdict(Stage.CALL)
            if verdict is None:
                raise
            raise verdict from None
        finally:
            ex.watch.disarm()

    async def _attempt(self, ex: Exchange, plan: Plan, target: Target) -> Started:
        request = plan.prompt.request
        upstream = target.member.upstream
        ex.n_attempts += 1
        ex.upstream = upstream.name
        timeouts = plan.route.timeouts
        is_incremental = request.stream or upstream.always_streams
        attempt = Attempt(target.member, plan.route.name, ex.n_attempts, is_incremental=is_incremental,
                          clock=self._clock, sink=self._sink)
        if is_incremental:
            ex.watch.arm("first_token_s", timeouts.first_token_s, attempt.began_at)
        else:  # nothing of a whole answer comes before all of it
            ex.watch.arm("total_s", timeouts.total_s, attempt.began_at)
        call = Call(request, target.model or request.model, ex.arrival.request_id, ex.deadline, timeouts.connect_s,
                    ex.arrival.headers)
        try:
            attempt.stream = stream = await upstream.open(call)
            lead = await self._until_content(attempt, stream)
        except asyncio.CancelledError:
            raise self._interrupted(ex, attempt) from None
        except UpstreamFailed as failed:
            attempt.end(Outcome.IGNORED if failed.is_final else Outcome.DROPPED, failed.fault.value,
                        is_failure=failed.upstream_status != 429)
            raise
        except BaseException:
            attempt.abandon()
            raise
        finally:
            ex.watch.disarm()
        return Started(attempt, stream, lead)

    async def _until_content(self, attempt: Attempt, stream: Stream) -> Chunk:
        """Hold back what comes before the first content (a role, a ping), so that the attempt can still be swapped."""
        held_back: list[bytes] = []
        n_bytes = 0
        while (chunk := await stream.next()) is not None:
            if chunk.n_content:
                attempt.first_content()
                if held_back:
                    return Chunk(b"".join((*held_back, chunk.data)), chunk.n_content)
                return chunk
            if chunk.data:
                held_back.append(chunk.data)
                n_bytes += len(chunk.data)
                if n_bytes > MAX_HELD_BACK_BYTES:
                    raise UpstreamFailed(attempt.name, Fault.MALFORMED, f"upstream {attempt.name} sent no content in the "
                                         f"first {n_bytes} bytes of its answer")
        attempt.first_content()  # a whole answer without content (a stop at once) is an answer
        return Chunk(b"".join(held_back), 0)

    def _interrupted(self, ex: Exchange, attempt: Attempt) -> BaseException:
        """What a cancellation stands for: our own time-out, or the client's leaving."""
        verdict = ex.watch.verdict(Stage.CALL)
        if verdict is None:
            attempt.abandon()
            return asyncio.CancelledError()
        attempt.end(Outcome.DROPPED, Fault.TIMEOUT.value)
        if verdict.limit == "total_s":
            return verdict
        return _TimedOut(attempt.name, verdict)


class _TimedOut(UpstreamFailed):
    """No content within `first_token_s`: another attempt may still make it before the deadline."""

    status = 504

    def __init__(self, upstream: str, verdict: DeadlineExceeded) -> None:
        super().__init__(upstream, Fault.TIMEOUT, verdict.message, code=verdict.code, kind=verdict.kind)
