"""One finished request as a waterfall: the time of each stage and attempt, and an explanation in words.

Times are milliseconds since the first byte of the request was read. Names, codes and numbers only: facts hold no prompts or
answers.
"""

from collections.abc import Iterator, Sequence

import msgspec
from msgspec.structs import replace

from stayfast.core.events import AttemptDone, RequestDone
from stayfast.core.steps import StepDone
from stayfast.core.types import Outcome
from stayfast.observe.metrics.collector import ended_in, outcome_of
from stayfast.policy.histogram import LogHistogram

MAX_MODEL_CHARS = 128
MIN_FOR_NORMAL = 20
_OF_LIMITS = {"total_s_exceeded": "its deadline passed", "budget_s_exceeded": "a stage used up its part of the deadline"}


class StageSpent(msgspec.Struct, omit_defaults=True):
    """The time of one stage, and its allowance."""

    stage: str
    began_ms: float
    spent_ms: float
    allowance_ms: float
    is_over: bool = False  # the first stage that exceeded its allowance


class StallTime(msgspec.Struct):
    at_ms: float
    ms: float


class StepSpent(msgspec.Struct, omit_defaults=True):
    """One step of a served turn."""

    step: str
    began_ms: float
    spent_ms: float
    allowance_ms: float
    how: str
    detail: str = ""
    depth: int = 0
    cost_usd: float | None = None
    is_over: bool = False  # it used its whole allowance


class AttemptLane(msgspec.Struct, omit_defaults=True):
    upstream: str
    model: str
    began_ms: float
    ended_ms: float
    outcome: str
    first_token_ms: float | None = None
    fault: str | None = None
    upstream_status: int | None = None
    finish: str | None = None
    input_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    cost_usd: float | None = None
    stalls: list[StallTime] = []
    is_hedge: bool = False
    is_lost: bool = False
    steps: list[StepSpent] = []
    detail: str = ""  # of a fault; for admins only


class BaselineTimes(msgspec.Struct):
    """Times to the first token on this route in the last hour, in the worker that answered."""

    n: int
    p50_ms: float
    p99_ms: float


class Waterfall(msgspec.Struct, omit_defaults=True):
    request_id: str
    ended_at: float  # seconds since the epoch
    status: int
    outcome: str
    ms: float
    verdict: list[str]
    api: str
    model: str
    stream: bool = False
    route: str | None = None
    upstream: str | None = None
    tenant: str | None = None
    error: str | None = None
    degraded: str | None = None
    over_stage: str | None = None
    shed: str | None = None
    deadline_ms: float | None = None
    queue_ms: float | None = None
    ttft_ms: float | None = None
    own_ms: float | None = None
    tpot_ms: float | None = None
    gap_max_ms: float | None = None
    chunks: int = 0
    cost_usd: float | None = None
    trace_id: str | None = None
    normal: BaselineTimes | None = None
    stages: list[StageSpent] = []
    attempts: list[AttemptLane] = []
    cache: str | None = None  # result of the route's cache
    cache_key: str | None = None  # of the answer from the cache, or of its own stored answer
    saved_usd: float | None = None  # cost of the cached answer when it was made
    price: str = ""  # where the cost comes from: own, table, reported, mixed, partial; unpriced: no price is known


class RequestSummary(msgspec.Struct, omit_defaults=True):
    request_id: str
    ended_at: float
    status: int
    outcome: str
    ms: float
    verdict: str
    route: str | None = None
    upstream: str | None = None
    ttft_ms: float | None = None
    model: str = ""  # as the client sent it
    tenant: str | None = None
    degraded: str | None = None
    cache: str | None = None  # result of the route's cache
    is_stream: bool = False
    is_hedged: bool = False
    n_attempts: int = 0
    input_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    cost_usd: float | None = None
    role: str = ""  # job: an attempt at a job
    price: str = ""  # as in Waterfall

    @property
    def wait_ms(self) -> float:
        """Time to the first token; without one, to the end."""
        return self.ttft_ms if self.ttft_ms is not None else self.ms


def without_details(fact: RequestDone) -> RequestDone:
    """A copy for clients, without addresses of the internal network."""
    if not any(attempt.detail for attempt in fact.attempts):
        return fact
    return replace(fact, attempts=tuple([replace(attempt, detail="") for attempt in fact.attempts]))


def summarize_request(fact: RequestDone) -> RequestSummary:
    usage = fact.usage
    return RequestSummary(
        fact.request_id, fact.wall_at, fact.status, outcome_of(fact), _ms(fact.ended_at - fact.accepted_at),
        next(explain_request(fact, None)), fact.route, fact.upstream, _ms_or_none(fact.ttft_s), fact.model[:MAX_MODEL_CHARS],
        fact.tenant, fact.degraded, fact.cache, fact.stream, any(attempt.is_hedge for attempt in fact.attempts),
        len(fact.attempts), usage.input_total if usage is not None else None,
        usage.cached_read if usage is not None else None, usage.output if usage is not None else None, fact.cost_usd,
        fact.role, fact.price)


def build_waterfall(fact: RequestDone, usual: LogHistogram) -> Waterfall:
    """`usual`: the route's times to the first token, in seconds."""
    start = fact.accepted_at
    normal = _normal(usual)
    return Waterfall(
        fact.request_id, fact.wall_at, fact.status, outcome_of(fact), _ms(fact.ended_at - start),
        list(explain_request(fact, normal)), fact.api.value, fact.model[:MAX_MODEL_CHARS], fact.stream, fact.route,
        fact.upstream,
        fact.tenant, fact.error, fact.degraded, fact.over_stage, fact.shed, _ms_or_none(fact.total_s),
        _ms_or_none(fact.queue_s), _ms_or_none(fact.ttft_s), _ms_or_none(fact.own_s), _ms_or_none(fact.tpot_s),
        _ms_or_none(fact.gap_max_s), fact.n_chunks, fact.cost_usd,
        fact.trace.trace_id if fact.trace is not None else None, normal,
        [StageSpent(done.stage.value, _ms(done.began_at - start), _ms(done.spent_s), _ms(done.allowance_s),
                    done.stage is fact.over_stage) for done in fact.stages],
        [_lane(attempt, start) for attempt in fact.attempts],
        fact.cache, fact.cache_key.hex() if fact.cache_key is not None else None, fact.saved_usd,
        fact.price)


_CUT_BY = {"client": "the client's", "default": "the route's default", "route": "the highest of the route",
           "deadline": "the tokens that fitted into the time left", "upstream": "the upstream's, as of the model's context"}


def explain_request(fact: RequestDone, normal: BaselineTimes | None) -> Iterator[str]:
    """Sentences about what happened and what took the time; the first one is the outcome."""
    yield _ending(fact)
    for note in fact.notes:
        yield f"{note}."  # not capitalized: many begin with the name of an upstream
    if fact.cut_by is not None:
        yield f"The answer ended at its length limit: {_CUT_BY.get(fact.cut_by, fact.cut_by)}."
    yield from _of_cache(fact)
    over = next((done for done in fact.stages if done.stage is fact.over_stage), None)
    if over is not None:
        yield f"Stage {over.stage.value} broke its budget: {format_spent(over.spent_s, over.allowance_s)}."
    for number, attempt in enumerate(fact.attempts, 1):
        yield from _of_attempt(number, attempt, is_last=number == len(fact.attempts))
    longest = max(fact.stages, key=lambda done: done.spent_s, default=None)
    whole_s = fact.ended_at - fact.accepted_at
    if longest is not None and whole_s > 0:
        yield f"Longest stage: {longest.stage.value}, {format_s(longest.spent_s)} of {format_s(whole_s)}."
    if fact.own_s is not None:
        yield f"Gateway overhead before the first token: {format_s(fact.own_s)}."
    if normal is not None and fact.ttft_s is not None:
        ratio = fact.ttft_s * 1e3 / normal.p50_ms
        yield (f"Typical on this route: first token after {format_s(normal.p50_ms / 1e3)} (p50) to "
               f"{format_s(normal.p99_ms / 1e3)} (p99); this request took {ratio:.1f} times the p50.")


def _ending(fact: RequestDone) -> str:
    whole = format_s(fact.ended_at - fact.accepted_at)
    first = "no token arrived" if fact.ttft_s is None else f"first token after {format_s(fact.ttft_s)}"
    match outcome_of(fact):
        case "ok":
            return f"Answered in {whole}; {first}."
        case "degraded":
            return f"Answered in degraded form ({fact.degraded}) in {whole}; {first}."
        case "client_left":
            return f"The client disconnected after {whole}, in stage {ended_in(fact.stages)}; {first}."
        case "rejected":
            return f"Refused with {fact.status} {fact.error} after {whole}."
        case _ if fact.shed is not None:
            return f"Rejected with {fact.status} {fact.error} ({fact.shed}) after {whole}."
        case _:
            why = f" ({_OF_LIMITS[fact.error]})" if fact.error in _OF_LIMITS else ""
            return f"Failed with {fact.status} {fact.error}{why} after {whole}, in stage {ended_in(fact.stages)}; {first}."


def _of_cache(fact: RequestDone) -> Iterator[str]:
    """The result of the route's cache. The reason for a bypass is one of the notes."""
    saved = f" (it had cost {fact.saved_usd:.6f} USD)" if fact.saved_usd is not None else ""
    match fact.cache:
        case "hit" | "semantic" | "stale":
            yield f"Answered from the route's cache{saved}, without a call to an upstream."
        case "coalesced":
            yield "Shared the call of an equal request."
        case "miss":
            yield "The route's cache had no answer."
    if fact.cache_key is not None:
        key = fact.cache_key.hex()
        is_given = fact.cache in ("hit", "semantic", "stale")
        yield (f"To delete this answer: stayfast cache purge --key {key} (to see it: stayfast cache inspect {key})"
               if is_given else f"Its own answer, if stored: stayfast cache inspect {key}")


def _of_attempt(number: int, attempt: AttemptDone, *, is_last: bool) -> Iterator[str]:
    took = format_s(attempt.ended_at - attempt.began_at)
    if attempt.fault is not None:
        status = f" {attempt.upstream_status}" if attempt.upstream_status is not None else ""
        detail = f" ({attempt.detail})" if attempt.detail else ""
        yield f"Attempt {number} at {attempt.upstream} failed after {took}: {attempt.fault}{status}{detail}."
    elif attempt.is_lost:
        yield f"Attempt {number} at {attempt.upstream} was cancelled after {took}: another attempt was faster."
    elif attempt.outcome is not Outcome.SUCCESS and not is_last:
        yield f"Attempt {number} at {attempt.upstream} was abandoned after {took}."
    yield from _of_steps(attempt.steps)
    if attempt.stalls:
        longest = max(attempt.stalls, key=lambda stall: stall.seconds)
        times = "once" if len(attempt.stalls) == 1 else f"{len(attempt.stalls)} times"
        yield f"{attempt.upstream} stalled {times} during its answer, for at most {format_s(longest.seconds)}."


def _of_steps(steps: Sequence[StepDone]) -> Iterator[str]:
    """The step that used up its allowance, and the steps without a result."""
    over = next((step for step in steps if step.broke_budget), None)
    if over is not None:
        yield f"Step {over.name} used its whole allowance: {format_spent(over.ended_at - over.began_at, over.allowance_s)}."
    cut = [f"{step.name} ({step.outcome}{f', {step.detail}' if step.detail else ''})" for step in steps
           if step.outcome not in ("ok", "running")]
    if cut:
        yield f"Steps without a result: {', '.join(cut)}."


def _steps(steps: Sequence[StepDone], start: float) -> list[StepSpent]:
    depths: list[int] = []
    for step in steps:
        depths.append(depths[step.parent] + 1 if step.parent >= 0 else 0)
    return [StepSpent(step.name, _ms(step.began_at - start), _ms(step.ended_at - step.began_at), _ms(step.allowance_s),
                      step.outcome, step.detail, depth, step.cost_usd, step.broke_budget)
            for step, depth in zip(steps, depths, strict=True)]


def _lane(attempt: AttemptDone, start: float) -> AttemptLane:
    usage = attempt.usage
    began_ms = _ms(attempt.began_at - start)
    return AttemptLane(
        attempt.upstream, attempt.model[:MAX_MODEL_CHARS], began_ms, _ms(attempt.ended_at - start), attempt.outcome.value,
        _ms(attempt.began_at + attempt.ttft_s - start) if attempt.ttft_s is not None else None, attempt.fault,
        attempt.upstream_status, attempt.finish_reason, usage.input_total if usage is not None else None,
        usage.cached_read if usage is not None else None, usage.output if usage is not None else None, attempt.cost_usd,
        [StallTime(_ms(stall.at - start), _ms(stall.seconds)) for stall in attempt.stalls], attempt.is_hedge,
        attempt.is_lost, _steps(attempt.steps, start), attempt.detail)


def _normal(usual: LogHistogram) -> BaselineTimes | None:
    p50, p99 = usual.quantile(0.5), usual.quantile(0.99)
    if p50 is None or p99 is None or usual.n < MIN_FOR_NORMAL:
        return None
    return BaselineTimes(usual.n, _ms(p50), _ms(p99))


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 3)


def _ms_or_none(seconds: float | None) -> float | None:
    return None if seconds is None else _ms(seconds)


def format_s(seconds: float) -> str:
    """For example 0.41 ms, 812 ms, 2.31 s."""
    if seconds >= 0.9995:  # would be shown as 1000 ms
        return f"{seconds:.2f} s"
    return f"{seconds * 1e3:.0f} ms" if seconds >= 0.01 else f"{seconds * 1e3:.2f} ms"


def format_spent(spent_s: float, allowance_s: float) -> str:
    """Time spent, of its allowance: 100 ms of 2.00 s; in one unit if it is exceeded: 1.02 s of 0.98 s."""
    is_over = spent_s > allowance_s and format_s(spent_s).endswith(" s")
    return f"{format_s(spent_s)} of {f'{allowance_s:.2f} s' if is_over else format_s(allowance_s)}"
