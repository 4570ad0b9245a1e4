"""The output limit of one attempt: the tokens that fit into the time left, and the limits that a route sets.

Problem: `max_tokens: 100000` is no limit. A long answer runs into the deadline, where a stream is cut in mid-sentence and a
whole answer is lost. An answer that ends at a limit before the deadline is shorter, but it arrives and is paid for once.
Rule: the limit of an attempt is the least of

    the client's own limit                     of a client without one: `default_tokens`
    `max_tokens`                               the route's upper limit
    n_visible + n_reasoning                    where `fit_deadline` is on, and n_visible is at least the floor

    n_visible = (time left - TTFT - reserve) / TPOT           TTFT, TPOT: quantiles of live samples (`output_pace`)

n_reasoning are the reasoning tokens of usual answers, which end before the first visible token and so are in the TTFT. The
floor is at least `floor`, at least the shortest answer of the request's JSON schema, and above the request's own reasoning
budget. Below the floor nothing is fitted: a stub is no better than what the route does at its deadline. A client without any
limit gets one only if answers of the model have been longer, as a limit above what a model supports is refused.
Source: vLLM and OpenAI count reasoning in `max_completion_tokens`; the formula is arithmetic.
When wrong: an answer that becomes slower after its start than nine of ten recent ones. The reserve covers small changes.
"""

from dataclasses import dataclass
from typing import Annotated

import msgspec

from stayfast.core.setting import SettingDoc, check_bounds
from stayfast.core.types import OutputCap

BY_DEADLINE, BY_DEFAULT, BY_ROUTE = "deadline", "default", "route"
MAX_OUTPUT = 10_000_000
SHARED_WITHIN = 0.1  # of the time left: equal requests whose deadlines differ by less may share a fitted answer
_LEAST_TPOT_S = 1e-6


@dataclass(frozen=True, slots=True)
class CapConfig:
    """The output limits of a route."""

    fit_deadline: Annotated[bool, SettingDoc(
        "Lower the output limit to the tokens that fit into the time left, by live times of the upstream's model.")] = False
    default_tokens: Annotated[int | None, SettingDoc(
        "Output limit of requests that set none. null: the upstream's own.", minimum=1, maximum=MAX_OUTPUT)] = None
    max_tokens: Annotated[int | None, SettingDoc(
        "Highest output limit; larger ones of clients are lowered. null: none.", minimum=1, maximum=MAX_OUTPUT)] = None
    floor: Annotated[int, SettingDoc(
        "Fewest tokens of visible answer to which a limit is fitted; if fewer fit, none is.", minimum=1,
        maximum=MAX_OUTPUT)] = 16
    reserve_s: Annotated[float, SettingDoc(
        "Seconds between the last token and the deadline that are left free.", minimum=0, maximum=3600)] = 0.25
    percentile: Annotated[float, SettingDoc(
        "Percentile of the live times that is expected. Higher: shorter answers, fewer cut.", minimum=50,
        maximum=99.9)] = 90.0

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.default_tokens is not None and self.max_tokens is not None and self.default_tokens > self.max_tokens:
            raise ValueError(f"default_tokens must be at most max_tokens ({self.max_tokens}), not {self.default_tokens}")

    @property
    def is_on(self) -> bool:
        return self.fit_deadline or self.default_tokens is not None or self.max_tokens is not None


class PaceEstimate(msgspec.Struct, frozen=True, gc=False):
    """What is expected of an attempt that starts now. `n_longest`: tokens of the longest recent answer."""

    ttft_s: float
    tpot_s: float
    n_reasoning: int = 0
    n_longest: int = 0


def fit_tokens(left_s: float, reserve_s: float, pace: PaceEstimate) -> int:
    """The visible tokens whose last one is expected `reserve_s` before the end of `left_s`; 0 or more."""
    room_s = left_s - reserve_s - pace.ttft_s
    return int(min(MAX_OUTPUT, room_s / max(pace.tpot_s, _LEAST_TPOT_S))) if room_s > 0 else 0


def choose_cap(config: CapConfig, client_limit: int | None, left_s: float, pace: PaceEstimate | None, *,
               n_least: int = 0, n_budget: int = 0) -> OutputCap | None:
    """The limit to set; None: the request's own stays. pace: None: too little is known.

    n_least: tokens of the shortest complete answer. n_budget: reasoning tokens for which the client has reserved room; a
    limit at or below them is an error at the provider.
    """
    limit, by = client_limit, ""
    if limit is None and config.default_tokens is not None and config.default_tokens > n_least:
        limit, by = config.default_tokens, BY_DEFAULT
    if config.max_tokens is not None and config.max_tokens > n_budget and (limit is None or config.max_tokens < limit):
        limit, by = config.max_tokens, BY_ROUTE
    if config.fit_deadline and pace is not None:
        n_visible = fit_tokens(left_s, config.reserve_s, pace)
        n_fit = n_visible + max(pace.n_reasoning, 0)
        ceiling = pace.n_longest if limit is None else limit
        if n_visible >= max(config.floor, n_least) and n_fit >= n_budget + config.floor and n_fit < ceiling:
            limit, by = n_fit, BY_DEADLINE
    return OutputCap(by, limit) if by and limit is not None else None


def may_share(made_until: float, until: float, now: float) -> bool:
    """Whether a request with the deadline `until` may get an answer that was fitted to `made_until`: it is in time, and
    hardly shorter than its own would be.
    """
    return made_until <= until <= made_until + SHARED_WITHIN * max(0.0, made_until - now)
