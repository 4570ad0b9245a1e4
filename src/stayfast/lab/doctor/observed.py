"""Shapes of prompts from facts, until the gateway's own sample of prompts is part of its snapshots."""

from collections.abc import Iterable, Sequence
from statistics import StatisticsError, correlation, linear_regression

from stayfast.core.events import Fact, RequestDone
from stayfast.core.snapshot import PromptRow, Spread
from stayfast.lab.doctor.scene import Flow


class PromptRecord:
    """A sink that remembers all requests. flows: by route; of several the largest counts."""

    def __init__(self, flows: Iterable[Flow]) -> None:
        self._flows: dict[str, Flow] = {}
        for flow in sorted(flows, key=lambda flow: flow.per_s):
            self._flows[flow.route] = flow
        self._done: list[RequestDone] = []

    def emit(self, fact: Fact) -> None:
        if isinstance(fact, RequestDone) and not fact.role:
            self._done.append(fact)

    def rows(self) -> tuple[PromptRow, ...]:
        """One row for each route."""
        return tuple(self._prompt(route, flow) for route, flow in self._flows.items())

    def _prompt(self, route: str, flow: Flow) -> PromptRow:
        done = [one for one in self._done if one.route == route and one.usage is not None and one.ttft_s is not None]
        sizes = [one.usage.input_total for one in done if one.usage is not None]
        outputs = [one.usage.output for one in done if one.usage is not None]
        ttft_s = [one.ttft_s or 0.0 for one in done]
        loads = [_running(one, self._done) for one in done[:400]]
        n, caps = len(done), [flow.max_tokens] * len(done) if flow.max_tokens is not None else []
        try:
            slope = linear_regression(sizes, ttft_s).slope * 1000 if n > 1 else None
        except StatisticsError:
            slope = None
        return PromptRow(
            route, n, input_tokens=_spread(sizes), output_tokens=_spread(outputs), max_tokens=_spread(caps),
            n_uncapped=n - len(caps), client_timeout_s=_spread([flow.silence_s] * n),
            ttft_by_input=_correlate(sizes, ttft_s), ttft_by_load=_correlate(loads, ttft_s[:400]),
            e2e_by_output=_correlate(outputs, [one.ended_at - one.accepted_at for one in done]), s_per_1k_input=slope)


def _running(request: RequestDone, others: Sequence[RequestDone]) -> int:
    return sum(one.upstream == request.upstream and one.accepted_at <= request.accepted_at < one.ended_at for one in others)


def _correlate(xs: Sequence[float], ys: Sequence[float]) -> float | None:
    try:
        return correlation(xs, ys) if len(xs) > 1 else None
    except StatisticsError:
        return None


def _spread(values: Iterable[float | None]) -> Spread:
    known = sorted(value for value in values if value is not None)
    if not known:
        return Spread()
    return Spread(len(known), _at(known, 0.5), _at(known, 0.95), _at(known, 0.99), known[-1])


def _at(ordered: Sequence[float], q: float) -> float:
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]
