"""One request's record: what came, when, for whom, by when it must be over, and where its time went."""

from collections.abc import Awaitable, Callable
from random import Random

import msgspec

from stayfast.core.deadline import Deadline
from stayfast.core.events import Trace
from stayfast.core.types import RELAY, Allowance, CacheControl, EventsWish, Request, Stage
from stayfast.pipeline.attempts.attempt import Attempt
from stayfast.pipeline.cache.route_cache import Cached
from stayfast.pipeline.cache.semantic import Asking
from stayfast.pipeline.plan import Plan, Started, Terms
from stayfast.pipeline.timing.ledger import Ledger
from stayfast.pipeline.timing.timeouts import Watch
from stayfast.pipeline.timing.timer_wheel import Alarms
from stayfast.policy.admission.fair_share import Share
from stayfast.policy.admission.priority import Urgency
from stayfast.wire.trace_context import below

Start = Callable[["Exchange", Plan], Awaitable[Started]]
REPEATS = "x-stainless-retry-count"
SILENCE_SHARE = 0.95  # of what an SDK waits: an answer that comes when it gives up comes too late


class Arrival(msgspec.Struct, frozen=True, gc=False):
    """What the edge knows of a request beside its body. `accepted_at` is when its first byte was read."""

    request_id: str
    accepted_at: float  # monotonic seconds
    tenant: str | None = None
    headers: tuple[tuple[str, str], ...] = ()  # the client's headers that may go on to an upstream (lower-case names)
    total_s: float | None = None  # the client's own patience, where it said so
    silence_s: float | None = None  # how long its SDK waits for the next byte, which for a whole answer is the answer
    trace: Trace | None = None  # None: tracing is off, and the client sent no trace context
    urgency: Urgency | None = None  # where the client said so
    cache: CacheControl | None = None  # what its headers say of remembered answers
    events: EventsWish | None = None  # it wants a turn's typed events, where a turn answers

    @property
    def is_repeat(self) -> bool:
        """Whether the client's SDK says that it has sent this request before, and counts."""
        for name, value in self.headers:
            if name == REPEATS:
                return value.strip("0") != "" and value.isdecimal()
        return False

    def new_span(self, rng: Random) -> Trace | None:
        """A span for one attempt, under the request's own; None where that has none."""
        return below(self.trace, rng) if self.trace is not None and self.trace.span_id else None


class Exchange:
    """A request on its way through the stages. One task owns it; its deadline starts at accept."""

    __slots__ = ("allowances", "arrival", "asking", "attempts", "cache_key", "cached", "deadline", "degraded", "lane",
                 "ledger", "notes", "on_first", "rank", "request", "reserve_s", "route", "share", "stale", "terms",
                 "total_s", "upstream", "watch")

    def __init__(self, request: Request, arrival: Arrival, terms: Terms, alarms: Alarms) -> None:
        total_s, budget = _total_s(request, arrival, terms.timeouts.total_s), terms.budget
        if total_s < budget.total_s:
            budget = budget.within(total_s)
        deadline_at = arrival.accepted_at + total_s
        self.total_s = total_s
        self.reserve_s = budget.reserve_s  # of the call, for the fallback
        self.request = request
        self.arrival = arrival
        self.terms = terms
        self.deadline = Deadline(deadline_at)
        self.ledger = Ledger(alarms.clock, arrival.accepted_at, deadline_at, budget)
        self.watch = Watch(alarms, deadline_at, total_s)
        self.attempts: list[Attempt] = []  # in the order of their starts
        self.route = terms.route
        self.upstream: str | None = None
        self.degraded: str | None = None  # fallback, template or partial: what was done instead of failing
        self.allowances: tuple[Allowance, ...] = ()  # what its client has left of its quota
        self.on_first: Callable[[], None] | None = None  # called when the call is over: with the first token, of a stream
        self.lane = ""  # of its admission; empty: there are none
        self.rank: tuple[int, Share] | None = None  # of its admission: band and tenant; None: it has none
        self.notes: list[str] = []  # what was decided about it, and why; names and figures only
        self.cached: Cached | None = None  # what the cache of its route had to say; None: it has none
        self.asking: Asking | None = None  # what a semantic cache found out about it
        self.cache_key: bytes | None = None  # of the kept answer that it was given, or under which its own is kept
        self.share: Start | None = None  # makes the call in place of the caller, for others who ask the same
        self.stale: Callable[[], Started | None] | None = None  # an answer that is too old, for where there is no other

    def enter(self, stage: Stage) -> None:
        """The next stage begins. Until the one after it, every wait of the request ends with this stage's time."""
        ledger = self.ledger
        now = ledger.enter(stage)
        if ledger.is_shared_out:
            self.watch.bound(ledger.ends_at, now)
            self.watch.arm_bound()
        if stage is RELAY:
            self.watch.disarm()  # its reader comes and goes, and waits under it only when it reads
            if self.on_first is not None:
                self.on_first()

    def again(self) -> "Exchange":
        """The same request for another task. Watch, ledger, attempts and notes are one until they are replaced."""
        other = Exchange.__new__(Exchange)
        other.allowances, other.arrival, other.attempts = self.allowances, self.arrival, self.attempts
        other.asking, other.cache_key, other.cached, other.deadline = self.asking, self.cache_key, self.cached, self.deadline
        other.degraded, other.lane, other.rank = self.degraded, self.lane, self.rank
        other.ledger, other.notes, other.on_first = self.ledger, self.notes, self.on_first
        other.request, other.reserve_s, other.route = self.request, self.reserve_s, self.route
        other.share, other.stale, other.terms = self.share, self.stale, self.terms
        other.total_s, other.upstream, other.watch = self.total_s, self.upstream, self.watch
        return other

    def __repr__(self) -> str:
        where = self.ledger.stage.value if self.ledger.stage is not None else "done"
        return f"<Exchange {self.arrival.request_id} {self.request.api.value} {self.request.model!r} in {where}>"


def _total_s(request: Request, arrival: Arrival, route_s: float) -> float:
    """The time of a request: the route's, or less where its client has less patience."""
    total_s = route_s
    if arrival.total_s is not None and arrival.total_s < total_s:
        total_s = arrival.total_s
    if request.patience_s is not None and request.patience_s < total_s:
        total_s = request.patience_s
    if arrival.silence_s is not None and arrival.silence_s < route_s and not request.stream:
        total_s = min(total_s, arrival.silence_s * SILENCE_SHARE)
    return total_s
