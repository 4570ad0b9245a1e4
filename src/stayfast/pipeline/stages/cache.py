"""Whether the answer is known already, or on its way to somebody else. `NoCache` is the null object: never."""

import asyncio
from collections.abc import Awaitable
from functools import partial
from typing import Protocol

from stayfast.core.clock import Clock
from stayfast.core.errors import Rejected, Shed, StayfastError, UpstreamFailed
from stayfast.core.events import Sink
from stayfast.core.types import CALL, FROM_CACHE, CacheControl, Chunk
from stayfast.pipeline.caching import Cached, Caching, FlightKey
from stayfast.pipeline.cadence import Cadence
from stayfast.pipeline.exchange import Exchange
from stayfast.pipeline.flight import Begin, Flight
from stayfast.pipeline.handoffs import Plan, Started
from stayfast.pipeline.known import Known
from stayfast.pipeline.race import Tasks
from stayfast.pipeline.store import Kept
from stayfast.policy.cache import fresh_for_s, is_too_warm, stricter
from stayfast.wire.canonical import asked, key_of, scope_of
from stayfast.wire.replay import in_events, keepable

N_FLIGHTS = 2  # calls of others whose failure is waited for, before it is one's own
MISS, COALESCED = Cached("miss"), Cached("coalesced")
_SAY_NOTHING = frozenset(("idempotency-key", "x-stainless-retry-count", "traceparent", "tracestate", "x-session-id"))


class Cache(Protocol):
    """Finds a whole answer that may be served again."""

    async def find(self, ex: Exchange) -> Started | None:
        """A whole answer, ready to be relayed in the client's dialect, or None."""
        ...


class NoCache:
    """Remembers nothing."""

    __slots__ = ()

    async def find(self, ex: Exchange) -> Started | None:
        """Never found."""
        return None


class ExactCache:
    """Answers to the same question, on the routes that keep them. Task-safe: what is kept is the routes' own."""

    __slots__ = ("_begin", "_clock", "_sink", "_tasks")

    def __init__(self, begin: Begin, clock: Clock, sink: Sink) -> None:
        self._begin = begin  # makes the calls
        self._clock = clock
        self._sink = sink
        self._tasks = Tasks()

    async def find(self, ex: Exchange) -> Started | None:
        """What is kept, or what is on its way to somebody who asked the same. On a miss `ex.share` will make the call.

        Raises what the call of somebody else failed with, where there is no use in making another, and Shed for what may
        only come from here.
        """
        caching = ex.terms.cache
        if caching is None:
            return None
        control = stricter(ex.arrival.cache, ex.request.cache)
        flight_key = _flight_key(ex, caching, control)
        if isinstance(flight_key, str):
            ex.cached = Cached("bypass", why=flight_key)
            ex.notes.append(f"not for the cache: {flight_key}")
            _refuse_others(control)
            return None
        if control is None or not control.no_cache:
            kept = await caching.store.get(flight_key[0])
            if kept is not None and (started := self._hit(ex, kept, fresh_for_s(caching.config, control))) is not None:
                return started
            _refuse_others(control)
            for n_left in range(N_FLIGHTS - 1, -1, -1):
                flight = caching.flights.get(flight_key)
                if flight is None:
                    break
                started = await self._join(ex, flight, is_last=not n_left)
                if started is not None:
                    return started
        ex.cached = MISS
        ex.share = partial(self._call, caching, flight_key)
        return None

    def _hit(self, ex: Exchange, kept: Kept, fresh_for_s: float) -> Started | None:
        """The answer that is kept, if it is fresh."""
        age_s = max(0.0, self._clock.wall() - kept.kept_at)
        if age_s > fresh_for_s:
            return None
        try:
            body = in_events(ex.request, kept.body) if ex.request.stream else kept.body
        except ValueError:  # it has no words in a stream
            return None
        ex.cached = Cached("hit", age_s)
        ex.upstream = FROM_CACHE
        cadence = Cadence(ex.route or "", FROM_CACHE, self._sink)
        cadence.begin(self._clock.now())
        known = Known(FROM_CACHE, cadence, kept.usage, kept.finish_reason)
        return Started(known, known, Chunk(body, 1))

    async def _join(self, ex: Exchange, flight: Flight, *, is_last: bool) -> Started | None:
        """What the call of somebody else brings; None where it failed and another one may not."""
        ex.enter(CALL)
        try:
            started = await flight.join(ex)
        except StayfastError as failed:
            if is_last or flight.failure is None or not _may_differ(failed):
                ex.cached = COALESCED
                raise
            ex.notes.append("the call of another request for the same failed")
            return None
        ex.cached = COALESCED
        return started

    def _call(self, caching: Caching, key: FlightKey, ex: Exchange, plan: Plan) -> Awaitable[Started]:
        """Make the call, for this request and for all who ask the same before it is over."""
        flight = Flight(key, caching.flights, self._clock)
        return flight.lead(ex, self._fly(flight, caching, ex, plan), self._tasks)

    async def _fly(self, flight: Flight, caching: Caching, ex: Exchange, plan: Plan) -> None:
        """The call's Task. After a clean end, what may be given again is kept."""
        try:
            await flight.run(ex, plan, self._begin)
            data = flight.whole()
            if data is not None and flight.degraded is None:
                if ex.request.stream:
                    await asyncio.sleep(0)  # its listeners first: putting a stream together takes longer than handing it on
                sight = flight.sight
                body = keepable(ex.request, sight, data)
                if body is not None and len(body) <= caching.config.max_answer_bytes:
                    await caching.store.put(flight.key[0], Kept(body, self._clock.wall(), sight.usage, sight.finish_reason))
        finally:
            flight.close()


def _flight_key(ex: Exchange, caching: Caching, control: CacheControl | None) -> FlightKey | str:
    """Where the answer is kept; a word for why no cache may have a part in it."""
    request, arrival = ex.request, ex.arrival
    if control is not None and control.no_store:
        return "no-store"
    what = asked(request)
    if what.why_not:
        return what.why_not
    if what.is_sampled and is_too_warm(caching.config, what.temperature, is_seeded=what.is_seeded):
        return "temperature"
    who = [arrival.tenant, caching.origin, request.api]
    if arrival.headers:  # what they ask of an upstream (a beta of its protocol) is a part of the question
        who += [f"{name}: {value}" for name, value in arrival.headers if name not in _SAY_NOTHING]
    return key_of(scope_of(what, *who), what), request.stream, request.include_usage


def _refuse_others(control: CacheControl | None) -> None:
    if control is not None and control.only_if_cached:
        raise Shed("No answer to this request is kept, and only-if-cached asks for no other.", reason="only_if_cached",
                   status=504, code="not_cached", is_final=True)


def _may_differ(failed: StayfastError) -> bool:
    """Whether the same request may fare better a second time."""
    if isinstance(failed, UpstreamFailed):
        return not failed.is_clients_fault
    return not isinstance(failed, Rejected)
