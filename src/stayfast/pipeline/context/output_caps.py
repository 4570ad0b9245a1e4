"""Sets the output limit of each attempt of a route, and learns how fast its answers come.

Ended attempts are read, and running ones measured, when the next attempt begins, at most every LEARN_EVERY_S.
A route without limits has none of this, and pays nothing.
"""

from collections.abc import Callable
from math import inf
from typing import Final

from stayfast.core.constants import BYTES_A_TOKEN, MAX_NAME
from stayfast.core.types import LENGTH_REASONS, Api, Outcome, Request
from stayfast.pipeline.attempts.attempt import Attempt
from stayfast.pipeline.routing.selector import Target
from stayfast.policy.context.output_cap import BY_DEADLINE, BY_DEFAULT, BY_ROUTE, CapConfig, PaceEstimate, choose_cap
from stayfast.policy.context.output_pace import MIN_FRESH, OutputPace
from stayfast.policy.context.schema_size import least_tokens
from stayfast.wire.output_limit import (
    CAPPED_APIS,
    find_output_schema,
    read_reasoning_budget,
    set_output_limit,
    short_limit,
)

LEARN_EVERY_S: Final = 0.1
MAX_WATCHED: Final = 512  # attempts; of the newest
JUDGE: Final = "judge"  # role of a comparison of two answers
_OF_ROUTE: Final = {BY_DEFAULT: "default", BY_ROUTE: "highest"}
MAX_PACES: Final = 256  # models of upstreams; clients may choose model names


class _Watched:
    """One attempt, and its progress at the last look. tpot_s: seconds for each event since the look before; 0: unknown."""

    __slots__ = ("at", "attempt", "n_events", "tpot_s")

    def __init__(self, attempt: Attempt) -> None:
        self.attempt = attempt
        self.at = 0.0
        self.n_events = 0
        self.tpot_s = 0.0

    def measure(self, now: float) -> float:
        """Seconds for each event lately; a present silence counts as soon as it is longer."""
        attempt = self.attempt
        if attempt.timings.first_at is None or not attempt.is_incremental:
            return 0.0
        n_events, last_at = attempt.n_content, attempt.timings.last_at
        if not self.at:
            self.at, self.n_events = attempt.timings.first_at, 1
        n_fresh = n_events - self.n_events
        if n_fresh >= MIN_FRESH:
            self.tpot_s = (last_at - self.at) / n_fresh
            self.at, self.n_events = last_at, n_events
        return max(self.tpot_s, (now - self.at) / (n_fresh + 1)) if self.tpot_s else 0.0


class OutputPaces:
    """The pace of each model at each upstream, learned from watched attempts. Belongs to one loop; survives reloads."""

    __slots__ = ("_learn_at", "_paces", "_per_event", "_watched")

    def __init__(self) -> None:
        self._paces: dict[tuple[str, str], OutputPace] = {}
        self._per_event: dict[tuple[str, str], float] = {}  # tokens in an event, on average
        self._watched: dict[Attempt, _Watched] = {}
        self._learn_at = -inf

    def watch(self, attempt: Attempt) -> None:
        if len(self._watched) >= MAX_WATCHED:
            del self._watched[next(iter(self._watched))]
        self._watched[attempt] = _Watched(attempt)

    def pace_of(self, key: tuple[str, str]) -> OutputPace:
        """The pace of one upstream and model. The oldest is dropped at MAX_PACES."""
        found = self._paces.get(key)
        if found is None:
            if len(self._paces) >= MAX_PACES:
                dropped = next(iter(self._paces))
                del self._paces[dropped]
                self._per_event.pop(dropped, None)
            self._paces[key] = found = OutputPace()
        return found

    def learn(self, now: float) -> None:
        """Read the attempts that have ended, and measure the running ones."""
        if now < self._learn_at:
            return
        self._learn_at = now + LEARN_EVERY_S
        ended = sorted([(attempt.done.ended_at, number, attempt) for number, attempt in enumerate(self._watched)
                        if attempt.done is not None])
        for _, _, attempt in ended:  # in the order in which they ended
            del self._watched[attempt]
            self._learn_end(attempt.upstream_model, attempt)
        rates: dict[tuple[str, str], list[float]] = {}
        for attempt, watched in self._watched.items():
            if rate_s := watched.measure(now):
                key = attempt.upstream_model
                rates.setdefault(key, []).append(rate_s / self._per_event.get(key, 1.0))
        for key, found in rates.items():
            self.pace_of(key).record_running(found, now)

    def _learn_end(self, key: tuple[str, str], attempt: Attempt) -> None:
        done, timings = attempt.done, attempt.timings
        if done is None or timings.first_at is None or done.usage is None:
            return
        pace, usage, now = self.pace_of(key), done.usage, done.ended_at
        n_visible, is_whole = max(1, usage.output - usage.reasoning), done.outcome is Outcome.SUCCESS
        if attempt.is_incremental:
            if is_whole and done.n_content > 1:
                before = self._per_event.get(key, n_visible / done.n_content)
                self._per_event[key] = before + 0.1 * (n_visible / done.n_content - before)
            span_s = timings.last_at - timings.first_at
            pace.record_stream(_n_prompt(attempt.call.request), timings.first_at - attempt.began_at,
                               span_s / (n_visible - 1) if n_visible > MIN_FRESH else None, now)
        elif is_whole:
            pace.record_whole(n_visible, now - attempt.began_at, now)
        if is_whole and not (attempt.call.request.cap is not None and done.finish_reason in LENGTH_REASONS):
            pace.record_length(usage.output, usage.reasoning)

    def __repr__(self) -> str:
        return f"<OutputPaces of {len(self._paces)} models, {len(self._watched)} attempts watched>"


class RouteCaps:
    """The output limits of one route. Holds no state of a request."""

    __slots__ = ("config", "paces")

    def __init__(self, config: CapConfig, paces: OutputPaces) -> None:
        self.config = config
        self.paces = paces

    def limit(self, request: Request, target: Target, ends_at: float, now: float, *, role: str,
              note: Callable[[str], None]) -> Request:
        """The request of an attempt that starts now and must end at `ends_at`, with the limit of the route or of the time
        left. role: of a request that no client sent. note: for the record. Raises Rejected if a limit is below every answer
        that matches the request's schema.
        """
        own = request.max_output_tokens
        if request.api not in CAPPED_APIS or role == JUDGE or (own is None and request.api is Api.COMPLETIONS):
            return request  # completions have a default of their own
        schema = find_output_schema(request)
        n_least = least_tokens(schema) if schema is not None else 0
        if own and own < n_least:  # 0: only the provider's prompt cache is to be filled
            raise short_limit(request, own, n_least)
        pace = self._estimate(request, target, now, is_waited_for=not role)
        cap = choose_cap(self.config, own, ends_at - now, pace, n_least=n_least, n_budget=read_reasoning_budget(request))
        if cap is None:
            return request
        if cap.n_tokens < n_least:
            raise short_limit(request, cap.n_tokens, n_least)
        why = "what fits into the time left" if cap.by == BY_DEADLINE else f"the route's {_OF_ROUTE[cap.by]} limit"
        note(f"{target.member.upstream.name[:MAX_NAME]} may write {cap.n_tokens} tokens: {why}")
        return set_output_limit(request, cap)

    def _estimate(self, request: Request, target: Target, now: float, *, is_waited_for: bool) -> PaceEstimate | None:
        """None: nothing is fitted. An answer for a job or a cache must be whole, and no client waits for it."""
        if not self.config.fit_deadline:
            return None
        self.paces.learn(now)
        if not is_waited_for:
            return None
        key = target.upstream_model(request.model)
        return self.paces.pace_of(key).estimate(_n_prompt(request), self.config.percentile / 100, now)

    def watch(self, attempt: Attempt) -> None:
        """Learn from an attempt, if anything is fitted."""
        if self.config.fit_deadline and attempt.call.request.n_choices == 1:
            self.paces.watch(attempt)

    def __repr__(self) -> str:
        return f"<RouteCaps {self.config!r}>"


def _n_prompt(request: Request) -> float:
    return len(request.body) / BYTES_A_TOKEN  # paces need a size, not a count


