"""No request outlives its deadline, and none fails that a fallback could have served.

One gateway has three routes: `alone`, whose only upstream hangs; `hanging`, whose first choice hangs; and `jagged`, whose
first choice is often slow. The last two have a steady fallback. Times are measured at the client, from its send to the last
byte, so they include delays of the client's own machine. After its first token has reached the client, an answer cannot be
retried at another upstream: at its deadline it ends as a partial answer, which is not a failure.

When wrong: on a machine without a free core all processes are delayed, the client's event loop included. A run in which that
could explain a late answer is invalid.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isnan
from typing import Any

from stayfast.lab.harness.claim import ClaimResult, Conditions, Extent, Figure, Sense, Verdict, mark_invalid, ratio
from stayfast.lab.harness.load import LoadSpec, max_lag_ms, n_failed, run_together, simulated_gateway
from stayfast.lab.load.result import Error, Result, Samples
from stayfast.lab.load.stats import ExactDistribution

WITHIN_MS = 50.0
DEADLINE_S = 2.0
RATE_RPS = 20.0  # of each leg
N_OUTPUT = 40
PROVIDERS: Mapping[str, Any] = {
    "hanging": {"faults": [{"kind": "hang"}]},
    "jagged": {"ttft": {"median_s": 0.4, "sigma": 0.5, "tail_share": 0.1, "tail_median_s": 4.0},
               "gaps": {"median_s": 0.01, "sigma": 0.3}, "fills_max_tokens": True,
               "stalls": {"share": 0.01, "duration": {"median_s": 3.0, "sigma": 0.5}}},
    "steady": {"ttft": {"median_s": 0.15, "sigma": 0.2}, "gaps": {"median_s": 0.01, "sigma": 0.3}, "fills_max_tokens": True},
}
FALLBACK = {"fallback": {"upstreams": ["steady"], "reserve": "50%"}, "partial": True}
ROUTES: Mapping[str, Any] = {
    "alone": {"upstreams": ["hanging"], "deadline": DEADLINE_S},
    "hanging": {"upstreams": ["hanging"], "deadline": DEADLINE_S, "on_overrun": FALLBACK},
    "jagged": {"upstreams": ["jagged"], "deadline": DEADLINE_S, "on_overrun": FALLBACK},
}


@dataclass(frozen=True, slots=True)
class Leg:
    """The load on one route, of streams or of whole answers."""

    route: str
    stream: bool

    def load(self, seconds: float) -> LoadSpec:
        return LoadSpec(seconds, RATE_RPS, stream=self.stream, n_output=N_OUTPUT, model=self.route)

    def __str__(self) -> str:
        return f"{self.route}, {'streams' if self.stream else 'whole answers'}"


LEGS = tuple(Leg(route, stream) for route in ROUTES for stream in (True, False))


@dataclass(frozen=True, slots=True)
class BudgetClaim:
    """routes: the gateway's."""

    full: Extent = Extent(real_s=40.0)
    quick: Extent = Extent(real_s=8.0)
    routes: Mapping[str, Any] = field(default_factory=lambda: ROUTES)

    name = "budget"
    statement = (f"With a hanging or an erratic upstream no request outlives its deadline by more than {WITHIN_MS:g} ms, "
                 "and none fails that a fallback could have served.")

    async def run(self, conditions: Conditions) -> ClaimResult:
        seconds, seed = conditions.choose(self.full, self.quick).real_s, conditions.seed
        async with simulated_gateway(PROVIDERS, seed, {"routes": self.routes}) as (sim, url):
            conditions.report_progress(f"{len(LEGS)} times {RATE_RPS:g} requests/s for {seconds:g} s")
            results = await run_together([leg.load(seconds) for leg in LEGS], url, seed)
            counts = (await sim.get("/_sim/counts"))["providers"]
        return make_finding(dict(zip(LEGS, results, strict=True)), counts)


def make_finding(results: Mapping[Leg, Result], counts: Mapping[str, Any]) -> ClaimResult:
    """counts: the simulator's, by provider."""
    figures = [figure for leg, result in results.items() for figure in _figures(leg, result)]
    figures += [Figure.count(f"calls to the {name}", n_calls, 1.0, Sense.AT_LEAST) for name, n_calls in (
        ("hanging upstream", counts["hanging"]["n_asked"]),
        ("jagged upstream that were given up", counts["jagged"]["outcomes"].get("cancelled", 0)),
        ("fallback", counts["steady"]["n_asked"]))]  # without these calls the run tests nothing
    lag_ms = max_lag_ms(results.values())
    is_late = any(figure.unit == "ms" and figure.verdict is Verdict.FALLS_SHORT for figure in figures)
    spoiled = (f"the client's own loop stood still for {lag_ms:.0f} ms, which may explain the late requests"
               if is_late and lag_ms > WITHIN_MS / 2 else None)
    notes = (f"The client's own loop was at most {lag_ms:.1f} ms late.", *_describe_latest(results))
    judged = [figure for each in figures
              for figure in mark_invalid((each,), spoiled if _is_explained(each, lag_ms) else None)]
    return ClaimResult(tuple(judged), notes, spoiled)


def _is_explained(figure: Figure, lag_ms: float) -> bool:
    """Whether a figure in ms falls short by no more than the client's own loop was late."""
    return (figure.unit == "ms" and figure.verdict is Verdict.FALLS_SHORT and figure.goal is not None
            and figure.value - lag_ms <= figure.goal)


def _figures(leg: Leg, result: Result) -> Sequence[Figure]:
    samples = result.samples
    took = ExactDistribution(_durations_s(samples))
    n = len(samples)
    n_endless = sum(map(isnan, samples.floats["ended_s"]))
    n_endless += sum(1 for error in samples.errors if error in (Error.TIMEOUT, Error.UNSENT))
    figures = [
        Figure.exact(f"{leg}: latest end, past the deadline of {DEADLINE_S:g} s (n={n})", _past_ms(took.quantile(1.0)), "ms",
                     WITHIN_MS),
        Figure.count(f"{leg}: requests without an end", n_endless),
    ]
    if leg.route == "alone":
        return [*figures, *_failure_figures(leg, samples)]
    figures.append(Figure.count(f"{leg}: requests that failed although a fallback was there", n_failed(result)))
    if leg.stream:
        n_part = sum(not error and n_chunks < N_OUTPUT
                     for error, n_chunks in zip(samples.errors, samples.ints["n_chunks"], strict=True))
        figures.append(Figure.percent(f"{leg}: ended in part", ratio(n_part, n)))
    return figures


def _failure_figures(leg: Leg, samples: Samples) -> Sequence[Figure]:
    """Without a working upstream a request fails with 504 at its deadline, or earlier with 503 once a breaker is open."""
    due_s = DEADLINE_S - WITHIN_MS / 1e3
    ends = list(zip(samples.ints["status"], _durations_s(samples), strict=True))
    n_clear = sum(status == 503 or (status == 504 and took_s >= due_s) for status, took_s in ends)
    n_waited = sum(status == 504 and took_s >= due_s for status, took_s in ends)
    return (
        Figure.count(f"{leg}: answered neither by 503 nor, at the deadline, by 504", len(ends) - n_clear),
        Figure.exact(f"{leg}: waited until the deadline", float(n_waited), "requests", 1.0, Sense.AT_LEAST),
    )


def _describe_latest(results: Mapping[Leg, Result]) -> Sequence[str]:
    """A note with the `Server-Timing` of the slowest answer."""
    rows = [(took_s, leg, timing) for leg, result in results.items()
            for took_s, timing in zip(_durations_s(result.samples), result.samples.server_timings, strict=True)
            if not isnan(took_s)]
    if not rows:
        return ()
    took_s, leg, timing = max(rows, key=lambda row: row[0])
    spent = ", ".join(part.replace(";dur=", " ").partition(";")[0] for part in timing.split(", "))
    return (f"The latest of all ({leg}) took {took_s * 1e3:.1f} ms; by the gateway's own account, in ms: {spent}.",)


def _durations_s(samples: Samples) -> list[float]:
    """Seconds from send to end; NaN if one of them is missing."""
    floats = samples.floats
    return [ended - sent for ended, sent in zip(floats["ended_s"], floats["sent_s"], strict=True)]


def _past_ms(took_s: float) -> float:
    return (took_s - DEADLINE_S) * 1e3
