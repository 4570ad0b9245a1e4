"""From a plan to the first valid content token of a stream, or to a whole answer.

As long as the client has nothing of an answer, attempts may be swapped unseen; after that, never.
"""

import asyncio
from collections import deque
from collections.abc import Iterable
from random import Random

from stayfast.core.clock import Clock
from stayfast.core.deadline import Deadline
from stayfast.core.errors import DeadlineExceeded, Fault, Rejected, StayfastError, UpstreamFailed
from stayfast.core.events import Sink
from stayfast.core.types import Chunk, Outcome, Request, Stage
from stayfast.pipeline.attempt import Attempt
from stayfast.pipeline.exchange import Exchange
from stayfast.pipeline.handoffs import Plan, Started, Target
from stayfast.policy.price import price_of
from stayfast.policy.retry import wait_before_next
from stayfast.upstreams.base import Call, Stream

MAX_HELD_BACK_BYTES = 8 * 1024 * 1024  # responses repeats the instructions twice before any content; nobody says more
_OF_THE_STAGE = ("total_s", "budget_s")  # limits after which no other attempt is made


class Caller:
    """Makes attempts until one brings content. Task-safe: holds no state of a request."""

    __slots__ = ("_clock", "_rng", "_sink")

    def __init__(self, clock: Clock, rng: Random, sink: Sink) -> None:
        self._clock = clock
        self._rng = rng
        self._sink = sink

    async def start(self, ex: Exchange, plan: Plan) -> Started:
        """The first attempt that brings content; of a whole answer, all of it.

        A fallback is asked when everybody else failed or used up the time that is not reserved for it.
        Raises the last attempt's UpstreamFailed, DeadlineExceeded, Rejected, Shed.
        """
        ends_at = ex.ledger.ends_at
        if not plan.fallback:
            return await self._first(ex, plan, plan.candidates, ends_at, is_last=True)
        reserve_s = 0.0 if plan.prompt.request.is_stateful else ex.reserve_s
        ex.watch.bound(ends_at - reserve_s, self._clock.now())
        try:
            return await self._first(ex, plan, plan.candidates, ends_at - reserve_s, is_last=False)
        except StayfastError as failed:
            now = self._clock.now()
            if ends_at - now < plan.route.retry.min_left_s or not _is_for_fallback(failed, plan.prompt.request):
                raise
            ex.watch.bound(ends_at, now)
            try:
                started = await self._first(ex, plan, plan.fallback, ends_at, is_last=True)
            except Rejected:  # the fallback's protocol cannot say it: the first failure is the one that counts
                raise failed from None
        if ex.degraded is None:
            ex.degraded = "fallback"
        return started

    async def _first(self, ex: Exchange, plan: Plan, targets: Iterable[Target], ends_at: float, *,
                     is_last: bool) -> Started:
        """The first of these targets that brings content by `ends_at`. `is_last`: nobody is asked after them."""
        candidates = deque(targets)
        n_failed = 0
        while True:
            target = candidates[0]
            try:
                return await self._attempt(ex, plan, target, ends_at, is_last=is_last)
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
                if not candidates or not _may_retry(failed, plan.prompt.request):
                    raise
                following = candidates[0]
                wait_s = wait_before_next(
                    plan.route.retry, n_failed, ends_at - self._clock.now(), self._rng, retry_after_s=failed.retry_after_s,
                    goes_elsewhere=following is not target, least_s=following.member.quickest_s)
                if wait_s is None:
                    raise
                if wait_s > 0:
                    await self._back_off(ex, wait_s)

    async def _back_off(self, ex: Exchange, wait_s: float) -> None:
        """Wait with nothing held but the request itself."""
        ex.watch.arm_bound()
        try:
            await asyncio.sleep(wait_s)
        except asyncio.CancelledError:
            verdict = ex.watch.verdict(Stage.CALL)
            if verdict is None:
                raise
            raise verdict from None
        finally:
            ex.watch.disarm()

    async def _attempt(self, ex: Exchange, plan: Plan, target: Target, ends_at: float, *, is_last: bool) -> Started:
        request = plan.prompt.request
        upstream = target.member.upstream
        ex.upstream = upstream.name
        timeouts = ex.terms.timeouts
        is_incremental = request.stream or upstream.always_streams
        model = target.model or request.model
        deadline = ex.deadline if request.stream or ends_at == ex.deadline.at else Deadline(ends_at)
        call = Call(request, model, ex.arrival.request_id, deadline, timeouts.connect_s, ex.arrival.headers,
                    ex.arrival.new_span(self._rng))
        attempt = Attempt(target.member, call, plan.route.name, len(ex.attempts) + 1, is_incremental=is_incremental,
                          clock=self._clock, sink=self._sink, price=price_of(target.prices, model))
        ex.attempts.append(attempt)
        if is_incremental:
            ex.watch.arm("first_token_s", timeouts.first_token_s, attempt.began_at)
        else:  # nothing of a whole answer comes before all of it
            ex.watch.arm_bound()
        try:
            attempt.stream = stream = await upstream.open(call)
            if request.stream:
                lead = await self._until_content(attempt, stream)
            else:
                lead = await self._until_whole(ex, attempt, stream)
        except asyncio.CancelledError:
            return self._interrupted(ex, attempt, is_last=is_last)
        except UpstreamFailed as failed:
            attempt.end(Outcome.IGNORED if failed.is_final else Outcome.DROPPED, failed.fault.value,
                        is_failure=failed.upstream_status != 429, upstream_status=failed.upstream_status)
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

    async def _until_whole(self, ex: Exchange, attempt: Attempt, stream: Stream) -> Chunk:
        """The whole answer: as long as the client has nothing of it, the attempt can still be swapped."""
        has_begun = False
        idle_s = ex.terms.timeouts.idle_s
        while (chunk := await stream.next()) is not None and not chunk.data:
            if chunk.n_content or has_begun:
                now = self._clock.now()
                if attempt.is_incremental:
                    ex.watch.arm("idle_s", idle_s, now)
                if not has_begun:
                    has_begun = True
                    attempt.first_content()
                elif chunk.n_content:
                    attempt.cadence.content(now)
        if not has_begun:
            attempt.first_content()
        return chunk if chunk is not None else Chunk(b"")

    def _interrupted(self, ex: Exchange, attempt: Attempt, *, is_last: bool) -> Started:
        """What came of an attempt that was cancelled: by our own time-out, an error or the part of a whole answer that is
        there; by the client's leaving, the cancellation.
        """
        verdict = ex.watch.verdict(Stage.CALL)
        if verdict is None:
            attempt.abandon()
            raise asyncio.CancelledError
        is_over = verdict.limit in _OF_THE_STAGE
        if is_over and is_last and ex.terms.ends_partial and attempt.cadence.first_at is not None:
            assert attempt.stream is not None
            lead = attempt.stream.cut()
            if lead is not None:
                return Started(attempt, attempt.stream, lead)
        attempt.end(Outcome.DROPPED, Fault.TIMEOUT.value)
        if is_over:
            raise verdict from None
        raise _TimedOut(attempt.name, verdict) from None


def _may_retry(failed: UpstreamFailed, request: Request) -> bool:
    return failed.can_retry and not (request.is_stateful and failed.fault is not Fault.CONNECT)


def _is_for_fallback(failed: StayfastError, request: Request) -> bool:
    """Whether somebody else may be asked: not for a request at fault itself, nor when a stateful one may have been heard."""
    if isinstance(failed, UpstreamFailed):
        return not failed.is_clients_fault and not (request.is_stateful and failed.fault is not Fault.CONNECT)
    return not (isinstance(failed, DeadlineExceeded) and request.is_stateful)


class _TimedOut(UpstreamFailed):
    """No content within `first_token_s`, or none for `idle_s`: another attempt may still make it before the deadline."""

    status = 504

    def __init__(self, upstream: str, verdict: DeadlineExceeded) -> None:
        super().__init__(upstream, Fault.TIMEOUT, verdict.message, code=verdict.code, kind=verdict.kind)
