"""One request's record: what came, when, for whom, by when it must be over, what it holds, and where its time went.

What a request holds is released once, in reverse, without awaiting: so no cancellation can come between. Entering a stage
ends the one before, so that the parts of its time always add up to the whole and no time is lost between stages.
"""

import re
from collections.abc import Awaitable, Callable, Sequence
from random import Random

import msgspec

from stayfast.core.clock import Clock
from stayfast.core.deadline import Deadline
from stayfast.core.events import StageDone, Trace
from stayfast.core.steps import StepDone
from stayfast.core.types import RELAY, Allowance, CacheControl, EventsWish, Request, Stage
from stayfast.pipeline.attempts.attempt import Attempt, is_repeat
from stayfast.pipeline.cache.route_cache import CacheResult
from stayfast.pipeline.cache.semantic import SemanticQuery
from stayfast.pipeline.plan import Plan, RoutePolicy, StartedAnswer
from stayfast.pipeline.timing.timeouts import RequestTimeouts, TimerWheel
from stayfast.policy.admission.fair_share import TenantShare
from stayfast.policy.admission.priority import Urgency
from stayfast.policy.budget import StageBudget
from stayfast.wire.trace_context import below


class ReleaseStack:
    """A stack of releases. One task owns it; `hand_over` moves the whole stack to whoever outlives the story."""

    __slots__ = ("_releases",)

    def __init__(self) -> None:
        self._releases: list[Callable[[], None]] = []

    def add(self, release: Callable[[], None]) -> None:
        self._releases.append(release)

    def hand_over(self) -> "ReleaseStack":
        """Everything held so far, with a new owner; this one then holds nothing."""
        taken = ReleaseStack()
        taken._releases, self._releases = self._releases, []
        return taken

    def release(self) -> None:
        """Give everything back, last first; each exactly once, even if one of them raises."""
        while self._releases:
            give_back = self._releases.pop()
            try:
                give_back()
            except BaseException:
                self.release()
                raise

    def __len__(self) -> int:
        return len(self._releases)

    def __repr__(self) -> str:
        return f"<ReleaseStack {len(self._releases)}>"


class Ledger:
    """The stages of one request, in the order they ran. One task owns it."""

    __slots__ = ("_allowance_s", "_began_at", "_budget", "_carried_s", "_clock", "_deadline_at", "_done", "ends_at",
                 "entered_at", "is_shared_out", "over_stage", "stage")

    def __init__(self, clock: Clock, accepted_at: float, deadline_at: float, budget: StageBudget) -> None:
        self._clock = clock
        self._deadline_at = deadline_at
        self._budget = budget
        self._carried_s = 0.0
        self._done: list[StageDone] = []
        self._began_at = accepted_at  # the first stage pays for the wait between accept and its own start
        self._allowance_s = 0.0
        self.is_shared_out = bool(budget.parts_s or budget.reserve_s)
        self.ends_at = deadline_at  # of the running stage: when it must be over
        self.entered_at: float | None = None  # when the first stage looked at the request
        self.over_stage: Stage | None = None  # the first that used all of its allowance, or more
        self.stage: Stage | None = None

    def enter(self, stage: Stage) -> float:
        """End the running stage, begin `stage`; returns the instant. Its allowance is the budget's."""
        now, ended, began_at, ends_at = self._clock.now(), self.stage, self._began_at, self.ends_at
        if ended is not None:
            self._done.append(StageDone(ended, began_at, now, self._allowance_s))
            if now >= ends_at and self.over_stage is None:
                self.over_stage = ended
            if self.is_shared_out:
                self._carried_s = self._budget.carried_s(ended, now - began_at, self._carried_s)
            self._began_at = began_at = now
        else:
            self.entered_at = now
        self.stage = stage
        if self.is_shared_out:
            self.ends_at = ends_at = self._budget.ends_at(stage, began_at, self._deadline_at, self._carried_s)
        self._allowance_s = ends_at - began_at if ends_at > began_at else 0.0
        return now

    def finish(self) -> tuple[StageDone, ...]:
        """End the running stage for good; safe to call again."""
        if self.stage is not None:
            now = self._clock.now()
            self._done.append(StageDone(self.stage, self._began_at, now, self._allowance_s))
            if now >= self.ends_at and self.over_stage is None:
                self.over_stage = self.stage
            self.stage = None
        return tuple(self._done)

    def server_timing(self) -> str:
        """The stages so far as a `Server-Timing` value (W3C), durations in milliseconds; the running one counts to now. The
        description is the stage's allowance in milliseconds: `call;dur=812.40;desc="of 2300"`. Where nothing is shared out,
        each may use all that is left, and only the first says how much that is.
        """
        return ", ".join([_timing(stage, has_allowance=self.is_shared_out or number == 0)
                          for number, stage in enumerate(self._so_far())])

    def spent_ms(self) -> dict[str, float]:
        """What each stage took so far, in order; the running one counts to now."""
        return {done.stage.value: round(done.spent_s * 1e3, 3) for done in self._so_far()}

    def _so_far(self) -> list[StageDone]:
        if self.stage is None:
            return self._done
        return [*self._done, StageDone(self.stage, self._began_at, self._clock.now(), self._allowance_s)]

    def __repr__(self) -> str:
        return f"<Ledger {self.server_timing()}>"


_MAX_STEPS_TOLD = 32
_NO_TOKEN = re.compile(r"[^A-Za-z0-9_.-]+")  # RFC 9110, 5.6.2 has more


def steps_timing(steps: Sequence[StepDone]) -> str:
    """The steps of a turn, to be put behind the stages: `, turn.kb;dur=41.20;desc="timeout, limit 400 ms"`."""
    return "".join([f', turn.{_NO_TOKEN.sub("_", step.name)};dur={(step.ended_at - step.began_at) * 1e3:.2f};'
                    f'desc="{step.how}, limit {step.allowance_s * 1e3:.0f} ms"' for step in steps[:_MAX_STEPS_TOLD]])


def _timing(done: StageDone, *, has_allowance: bool) -> str:
    spent = f"{done.stage};dur={(done.ended_at - done.began_at) * 1e3:.2f}"
    return f'{spent};desc="of {done.allowance_s * 1e3:.0f}"' if has_allowance else spent


Start = Callable[["Exchange", Plan], Awaitable[StartedAnswer]]
SILENCE_SHARE = 0.95  # of what an SDK waits, where something is given instead: at its end that would come too late
SILENCE_MARGIN_S = 5.0  # of a long wait no more than this is left out
SILENCE_GRACE_S = 1.0  # elsewhere, behind it: the SDK's own time-out comes first and is the error that its caller knows


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
    role: str = ""  # what its attempts are made for, where that is no client's request: renewal, audit, judge

    @property
    def is_repeat(self) -> bool:
        """Whether the client's SDK says that it has sent this request before, and counts."""
        return is_repeat(self.headers)

    def new_span(self, rng: Random) -> Trace | None:
        """A span for one attempt, under the request's own; None where that has none."""
        return below(self.trace, rng) if self.trace is not None and self.trace.span_id else None


class Exchange:
    """A request on its way through the stages. One task owns it; its deadline starts at accept."""

    __slots__ = ("allowances", "arrival", "asking", "attempts", "cache_key", "cached", "deadline", "degraded", "lane",
                 "ledger", "notes", "on_first", "rank", "request", "reserve_s", "route", "share", "stale", "terms",
                 "total_s", "upstream", "watch")

    def __init__(self, request: Request, arrival: Arrival, terms: RoutePolicy, alarms: TimerWheel) -> None:
        total_s, budget = _total_s(request, arrival, terms), terms.budget
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
        self.watch = RequestTimeouts(alarms, deadline_at, total_s)
        self.attempts: list[Attempt] = []  # in the order of their starts
        self.route = terms.route
        self.upstream: str | None = None
        self.degraded: str | None = None  # fallback, template or partial: what was done instead of failing
        self.allowances: tuple[Allowance, ...] = ()  # what its client has left of its quota
        self.on_first: Callable[[], None] | None = None  # called when the call is over: with the first token, of a stream
        self.lane = ""  # of its admission; empty: there are none
        self.rank: tuple[int, TenantShare] | None = None  # of its admission: band and tenant; None: it has none
        self.notes: list[str] = []  # what was decided about it, and why; names and figures only
        self.cached: CacheResult | None = None  # what the cache of its route had to say; None: it has none
        self.asking: SemanticQuery | None = None  # what a semantic cache found out about it
        self.cache_key: bytes | None = None  # of the kept answer that it was given, or under which its own is kept
        self.share: Start | None = None  # makes the call in place of the caller, for others who ask the same
        # an answer that is too old, for where there is no other
        self.stale: Callable[[], StartedAnswer | None] | None = None

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

    @property
    def grace_s(self) -> float:
        """How much of the end of its time is no use to its client, whose SDK has given up by then: no attempt is planned
        for it.
        """
        silence_s = self.arrival.silence_s
        return 0.0 if silence_s is None or self.request.stream else max(0.0, self.total_s - silence_s)

    def again(self) -> "Exchange":
        """The same request for another task. Time-outs, ledger, attempts and notes are one until they are replaced."""
        other = Exchange.__new__(Exchange)
        for name in Exchange.__slots__:
            setattr(other, name, getattr(self, name))
        return other

    def __repr__(self) -> str:
        where = self.ledger.stage.value if self.ledger.stage is not None else "done"
        return f"<Exchange {self.arrival.request_id} {self.request.api.value} {self.request.model!r} in {where}>"


def _total_s(request: Request, arrival: Arrival, terms: RoutePolicy) -> float:
    """The time of a request: the route's, or less where its client has less patience."""
    total_s = terms.timeouts.total_s
    if arrival.total_s is not None and arrival.total_s < total_s:
        total_s = arrival.total_s
    if request.patience_s is not None and request.patience_s < total_s:
        total_s = request.patience_s
    if arrival.silence_s is not None and not request.stream:
        silence_s = arrival.silence_s
        total_s = min(total_s, before_silence_ends_s(silence_s) if terms.has_substitute else silence_s + SILENCE_GRACE_S)
    return total_s


def before_silence_ends_s(silence_s: float) -> float:
    """How long to wait so that an answer still comes before a client that waits for `silence_s` gives up."""
    return max(silence_s * SILENCE_SHARE, silence_s - SILENCE_MARGIN_S)
