"""One request on its way through the stages: its facts, its ledger of time, its timeouts and its record.

No stage assigns an attribute of an Exchange (checked by tests/test_shape.py). A stage returns its result to `gateway.py`,
and writes what the log and the metrics need by the methods of the record.
"""

import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from copy import copy
from math import inf
from random import Random

import msgspec

from stayfast.core.clock import Clock
from stayfast.core.deadline import Deadline
from stayfast.core.events import Trace
from stayfast.core.stage_times import StageTimes
from stayfast.core.steps import StepDone
from stayfast.core.types import JOB, JUDGE, SUMMARY, CacheControl, EventsOptions, Request, Stage
from stayfast.pipeline.attempts.attempt import Attempt, is_sdk_retry
from stayfast.pipeline.cache.route_cache import CacheResult
from stayfast.pipeline.hooks.hook import HookRequest
from stayfast.pipeline.hooks.route_hooks import HookedRequest, RouteHooks
from stayfast.pipeline.plan import Plan, RoutePolicy, StartedAnswer
from stayfast.pipeline.tiers.verification import SHADOW
from stayfast.pipeline.timing.timeouts import RequestTimeouts, TimerWheel
from stayfast.policy.admission.priority import Urgency
from stayfast.policy.budget import StageBudget
from stayfast.wire.trace_context import make_child_span


def release_all(held: list[Callable[[], None]], first: Callable[[], None] | None = None) -> None:
    """Release what a request holds, last first, each exactly once, even if one of them raises. Never awaits, so that no
    cancellation interrupts it. first: is released before them.
    """
    if first is not None:
        held.append(first)
    while held:
        release_one = held.pop()
        try:
            release_one()
        except BaseException:
            release_all(held)
            raise


_FIRST_TIMING, _NEXT_TIMING = '%s;dur=%.2f;desc="of %.0f"', ", %s;dur=%.2f"


class Ledger(msgspec.Struct, eq=False):
    """Where the time of one request went, stage by stage. Entering a stage ends the one before, so the stages always add up
    to the whole. On the way only instants are noted; `finish` makes stages of them. One task owns it.
    """

    _clock: Clock
    _accepted_at: float  # the first stage includes the time between accept and its own start
    _deadline_at: float
    _timeouts: RequestTimeouts
    budget: StageBudget | None  # None: every stage may use all the time that is left
    ends_at: float  # when the running stage must end
    stage: Stage | None = None  # the running one; None: none is
    queued_s: float = 0.0  # from accept to the start of the first stage
    over_stage: Stage | None = None  # after the end: the first stage that used up its allowance
    _ended: list[tuple[Stage, float]] = []  # each stage before the running one, and when it ended
    _ends: list[float] = []  # when each of them must end; empty: at the deadline
    _carried_s: float = 0.0
    _times: StageTimes | None = None  # after the end

    def enter(self, stage: Stage) -> None:
        """End the running stage and begin `stage`. Until the one after it, every wait of the request ends with its time."""
        now = self._clock.now()
        if self.budget is not None:
            self._share_out(self.budget, stage, now)
        if self.stage is None:
            self.queued_s = now - self._accepted_at
        else:
            self._ended.append((self.stage, now))
        self.stage = stage

    def _share_out(self, budget: StageBudget, stage: Stage, now: float) -> None:
        """The allowance of a stage that begins now, with what the stages before left of theirs."""
        began_at = self._accepted_at
        if self.stage is not None:
            spent_s = now - (self._ended[-1][1] if self._ended else began_at)
            self._carried_s = budget.carried_s(self.stage, spent_s, self._carried_s)
            began_at = now
        self.ends_at = budget.ends_at(stage, began_at, self._deadline_at, self._carried_s)
        self._ends.append(self.ends_at)
        self._timeouts.set_bound(self.ends_at, now)
        self._timeouts.arm_bound()

    def finish(self) -> StageTimes:
        """End the last stage; safe to call again."""
        if self._times is None:
            now = self._clock.now()
            self._times = times = self._times_until(now)
            self.stage = None
            if self._ends or now >= self._deadline_at:
                ends = self._ends or [self._deadline_at] * len(times.ended)
                over = (stage for (stage, ended_at), ends_at in zip(times.ended, ends, strict=True) if ended_at >= ends_at)
                self.over_stage = next(over, None)
        return self._times

    def server_timing(self) -> str:
        """The stages so far as a `Server-Timing` value (W3C) in milliseconds; the running stage counts up to now. The
        description is the stage's allowance: `call;dur=812.40;desc="of 2300"`. Without a budget for each stage, every stage
        may use all the time that is left, and only the first one shows it.
        """
        times = self._so_far()
        if times.ends:
            return ", ".join([f'{done.stage};dur={done.spent_s * 1e3:.2f};desc="of {done.allowance_s * 1e3:.0f}"'
                              for done in times.each()])
        values: list[Stage | float] = []
        began_at = times.began_at
        for stage, ended_at in times.ended:
            values.append(stage)
            values.append((ended_at - began_at) * 1e3)
            began_at = ended_at
        values.insert(2, max(0.0, times.deadline_at - times.began_at) * 1e3)
        return (_FIRST_TIMING + _NEXT_TIMING * (len(times.ended) - 1)) % tuple(values)

    def spent_ms(self) -> dict[str, float]:
        """Milliseconds by stage so far, in order; the running stage counts up to now."""
        return {done.stage.value: round(done.spent_s * 1e3, 3) for done in self._so_far().each()}

    def _so_far(self) -> StageTimes:
        return self._times if self._times is not None else self._times_until(self._clock.now())

    def _times_until(self, now: float) -> StageTimes:
        assert self.stage is not None
        return StageTimes(self._accepted_at, (*self._ended, (self.stage, now)), self._deadline_at, tuple(self._ends))

    def __repr__(self) -> str:
        return f"<Ledger {self.server_timing() if self.stage is not None or self._times is not None else 'idle'}>"


_MAX_STEPS = 32
_NO_TOKEN = re.compile(r"[^A-Za-z0-9_.-]+")  # RFC 9110, 5.6.2 allows more


def steps_timing(steps: Sequence[StepDone]) -> str:
    """The steps of a turn, appended to the stages: `, turn.kb;dur=41.20;desc="timeout, limit 400 ms"`."""
    return "".join([f', turn.{_NO_TOKEN.sub("_", step.name)};dur={(step.ended_at - step.began_at) * 1e3:.2f};'
                    f'desc="{step.outcome}, limit {step.allowance_s * 1e3:.0f} ms"' for step in steps[:_MAX_STEPS]])


SILENCE_SHARE = 0.95  # of an SDK's timeout: a substitute answer must be sent before the timeout ends
SILENCE_MARGIN_S = 5.0  # the most that SILENCE_SHARE takes off a long timeout
SILENCE_GRACE_S = 1.0  # without a substitute: end after the SDK, so that its caller sees the SDK's own timeout error
REFRESH, AUDIT = "refresh", "audit"  # roles of calls that no client waits for


class Arrival(msgspec.Struct, frozen=True, gc=False):
    """What the server knows of a request besides its body. `accepted_at` is when its first byte was read."""

    request_id: str
    accepted_at: float  # monotonic seconds
    tenant: str | None = None
    headers: tuple[tuple[str, str], ...] = ()  # the client's headers that may be forwarded to an upstream (lower-case names)
    total_s: float | None = None  # the client's own deadline
    silence_s: float | None = None  # how long its SDK waits for the next byte, or for a whole answer
    trace: Trace | None = None  # None: tracing is off, and the client sent no trace context
    urgency: Urgency | None = None  # None: the client set none
    cache: CacheControl | None = None  # from the request's headers
    events: EventsOptions | None = None  # the client accepts a turn's typed events
    role: str = ""  # of a request that no client sent: refresh, audit, judge, verify, summary, job
    notes: tuple[str, ...] = ()  # for the record of the request
    key_id: str = ""  # of a stored key
    start_within_s: float | None = None  # its headers limit the time to the first token

    @property
    def is_sdk_retry(self) -> bool:
        """Whether the client's SDK announces that it retries this request."""
        return is_sdk_retry(self.headers)

    @property
    def is_refresh(self) -> bool:
        """Whether this is a background call of `pipeline.refresh`."""
        return self.role in (REFRESH, AUDIT)

    @property
    def is_job(self) -> bool:
        """Whether this is an attempt at a job: it has the lowest priority and no hedges, is retried instead of degraded, and
        teaches nothing about the requests of waiting clients.
        """
        return self.role == JOB

    @property
    def is_judgement(self) -> bool:
        """Whether this compares two answers, is answered for a comparison, or summarizes a conversation, in the background:
        it has no cache, hedges or tenant.
        """
        role = self.role
        return bool(role) and (role in (JUDGE, SUMMARY) or role.startswith(SHADOW))

    def new_span(self, rng: Random) -> Trace | None:
        """A span for one attempt, below the request's own; None without tracing."""
        return make_child_span(self.trace, rng) if self.trace is not None and self.trace.span_id else None


class OutcomeRecord(msgspec.Struct, eq=False):
    """What has become of a request so far, for its log line, its metrics and the headers of its answer. Read its
    attributes; write by its methods.
    """

    attempts: list[Attempt] = []  # in the order of their starts
    cache: CacheResult | None = None  # of the lookup; None: the route has no cache
    cache_key: bytes | None = None  # of the stored answer that was returned, or under which the new one is stored
    guard: str | None = None  # the rule by which the guard flagged the request
    degraded: str | None = None  # fallback, tier, stale, template, partial, capped: instead of failing
    notes: list[str] = []  # decisions and their reasons; names and figures only
    upstream: str | None = None  # the last one that was called, or "(cache)", "(template)"

    def note(self, text: str) -> None:
        self.notes.append(text)

    def add_notes(self, texts: Iterable[str]) -> None:
        self.notes.extend(texts)

    def add_attempt(self, attempt: Attempt) -> None:
        self.attempts.append(attempt)

    def use_upstream(self, name: str) -> None:
        self.upstream = name

    def degrade(self, how: str | None) -> None:
        """how: None: the route's own upstream answered after all."""
        self.degraded = how

    def set_cache_result(self, result: CacheResult) -> None:
        self.cache = result

    def set_cache_key(self, key: bytes) -> None:
        self.cache_key = key

    def set_guard(self, rule: str) -> None:
        self.guard = rule

    def fork(self) -> "OutcomeRecord":
        """The record of a shared call that this request makes: attempts and notes are the same lists."""
        return copy(self)

    def merge_call(self, call: "OutcomeRecord") -> None:
        """Take the outcome of a shared call."""
        self.upstream, self.degraded = call.upstream, call.degraded

    def take_attempts(self, call: "OutcomeRecord") -> None:
        """Account for the attempts of a shared call, whose previous owner has left."""
        self.attempts = call.attempts


class Exchange:
    """The facts of one request, which never change, and its ledger, timeouts and record. One task owns it; its deadline
    starts at accept.
    """

    __slots__ = ("arrival", "deadline", "grace_s", "held", "hooked", "ledger", "policy", "record", "request", "reserve_s",
                 "route", "timeouts", "total_s")

    def __init__(self, request: Request, arrival: Arrival, policy: RoutePolicy, timers: TimerWheel,
                 record: OutcomeRecord | None = None, *, is_noted: bool = False) -> None:
        """is_noted: the record has the notes of the arrival."""
        total_s, budget = _total_s(request, arrival, policy), policy.budget
        if total_s < budget.total_s:
            budget = budget.scale_to(total_s)
        deadline_at = arrival.accepted_at + total_s
        silence_s = None if request.stream else arrival.silence_s
        self.total_s = total_s
        # the last part of its time, in which the client's SDK has given up already: no attempt is planned for it
        self.grace_s = max(0.0, total_s - silence_s) if silence_s is not None else 0.0
        self.reserve_s = budget.reserve_s  # of the call stage, for the fallback
        self.request = request
        self.arrival = arrival
        self.policy = policy
        self.route = policy.route  # None: no such route
        self.hooked: HookedRequest | None = None  # None: no hooks ran
        self.held: list[Callable[[], None]] = []  # gives back what it holds, by `release_all`
        self.deadline = Deadline(deadline_at)
        self.timeouts = RequestTimeouts(timers, deadline_at, total_s)
        self.ledger = Ledger(timers.clock, arrival.accepted_at, deadline_at, self.timeouts,
                             budget if budget.parts_s or budget.reserve_s else None, deadline_at)
        self.record = record or OutcomeRecord()
        if arrival.notes and not is_noted:
            self.record.add_notes(arrival.notes)

    async def apply_hooks(self, hooks: RouteHooks) -> "Exchange":
        """The same with the request as the route's hooks changed it; itself for calls that the gateway makes on its own."""
        arrival = self.arrival
        if arrival.role not in ("", JOB):
            return self
        view = HookRequest({}, self.request.api.value, self.route or "", arrival.tenant, arrival.request_id, self.total_s)
        other = copy(self)
        other.request, other.hooked = await hooks.before(self.request, view, self.deadline, self.record.note)
        return other

    def move_to(self, route: str, policy: RoutePolicy, timers: TimerWheel, *, is_bounded: bool = False) -> "Exchange":
        """The same request on another route, in the stage ADMIT. Its time still counts from accept. is_bounded: it ends with
        the time of this route at the latest.
        """
        self.timeouts.stop()
        arrival = msgspec.structs.replace(self.arrival, total_s=self.total_s) if is_bounded else self.arrival
        moved = Exchange(msgspec.structs.replace(self.request, model=route), arrival, policy, timers, self.record,
                         is_noted=True)
        moved.hooked, moved.held = self.hooked, self.held
        moved.ledger.enter(Stage.ADMIT)
        return moved

    @property
    def start_by(self) -> float:
        """The latest first token that the client wants, which of a whole answer is its end; infinite: it set no limit."""
        limits_s = [one for one in (self.arrival.start_within_s, self.request.start_within_s) if one is not None]
        return self.arrival.accepted_at + min(limits_s) if limits_s else inf

    def detach(self, record: OutcomeRecord) -> "Exchange":
        """The same request with its own timeouts, for the current Task: for a call that may outlive the request. It enters
        no stage: the ledger is the request's.
        """
        other = copy(self)
        other.record = record
        other.timeouts = self.timeouts.clone()
        return other

    def __repr__(self) -> str:
        where = self.ledger.stage.value if self.ledger.stage is not None else "done"
        return f"<Exchange {self.arrival.request_id} {self.request.api.value} {self.request.model!r} in {where}>"


Start = Callable[[Exchange, Plan], Awaitable[StartedAnswer]]


def _total_s(request: Request, arrival: Arrival, policy: RoutePolicy) -> float:
    """The time of a request: the route's, or less where its client waits for less."""
    total_s = policy.timeouts.total_s
    if arrival.total_s is not None and arrival.total_s < total_s:
        total_s = arrival.total_s
    if request.client_timeout_s is not None and request.client_timeout_s < total_s:
        total_s = request.client_timeout_s
    if arrival.silence_s is not None and not request.stream:
        silence_s = arrival.silence_s
        total_s = min(total_s, before_silence_ends_s(silence_s) if policy.has_substitute else silence_s + SILENCE_GRACE_S)
    return total_s


def before_silence_ends_s(silence_s: float) -> float:
    """How long to wait so that an answer still arrives before a client that waits for `silence_s` gives up."""
    return max(silence_s * SILENCE_SHARE, silence_s - SILENCE_MARGIN_S)
