"""Goodput: `good = success and complete (per protocol) and every SLO met`, as a rate and as a share of what was *offered*.

Errors, time-outs, 429 and truncated streams are not good. A value that does not exist (tpot of an answer of one token) does
not meet an SLO on it, unless `null_passes` says so: an upstream that answers one token must not look perfect.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, isnan, nan
from typing import Any

import msgspec

from stayfast.lab.load.samples import Error

BOUNDED = ("ttft", "ttft_sched", "tpot", "gap_max", "e2e", "e2e_sched")
_TERM = re.compile(r"([a-z_0-9]+)\s*[:<=]\s*([0-9.]+)\s*(ms|s)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Slo:
    """Bounds in seconds, each for one request; None does not bound. Definitions of the words: `stats.DEFINITIONS`."""

    ttft_s: float | None = None
    ttft_sched_s: float | None = None
    tpot_s: float | None = None
    gap_max_s: float | None = None
    e2e_s: float | None = None
    e2e_sched_s: float | None = None
    null_passes: bool = False

    def __post_init__(self) -> None:
        for name, bound_s in self.bounds().items():
            if not isfinite(bound_s) or bound_s <= 0:
                raise ValueError(f"an SLO's {name} must be above 0 s, is {bound_s}")

    def bounds(self) -> dict[str, float]:
        """Metric name -> bound in seconds, of those that are set."""
        values = {name: getattr(self, f"{name}_s") for name in BOUNDED}
        return {name: bound_s for name, bound_s in values.items() if bound_s is not None}


def parse_slo(text: str, *, null_passes: bool = False) -> Slo:
    """Read "ttft:500ms e2e:5s". A unit must be given: other tools read a bare number as ms, others as seconds.

    Raises ValueError saying which term is wrong and what is expected.
    """
    bounds: dict[str, float] = {}
    for term in text.replace(",", " ").split():
        match = _TERM.fullmatch(term)
        if match is None:
            raise ValueError(f"SLO {term!r}: expected METRIC:TIME such as ttft:500ms or e2e:5s")
        name, number, unit = match[1].lower(), match[2], match[3]
        if name not in BOUNDED:
            raise ValueError(f"SLO {term!r}: no metric {name!r}; known: {', '.join(BOUNDED)}")
        if unit is None:
            raise ValueError(f"SLO {term!r}: say the unit, {number}ms or {number}s")
        if name in bounds:
            raise ValueError(f"SLO {term!r}: {name} is bounded twice")
        bounds[name] = _seconds(term, number, unit.lower())
    given: dict[str, Any] = {f"{name}_s": bound_s for name, bound_s in bounds.items()}
    return Slo(**given, null_passes=null_passes)


def _seconds(term: str, number: str, unit: str) -> float:
    try:
        return float(number) * (1e-3 if unit == "ms" else 1.0)
    except ValueError as why:
        raise ValueError(f"SLO {term!r}: {number!r} is not a number") from why


class Goodput(msgspec.Struct, frozen=True):
    """How many of the offered requests were good, and why the others were not. One request can miss several SLOs."""

    slo: Slo
    n_offered: int
    n_good: int
    misses: dict[str, int]  # cause -> requests: an error's name, a metric over its SLO, or "tpot (null)"
    is_good: bytearray  # a row's verdict, 1 or 0

    @property
    def share(self) -> float:
        """Of the offered requests; NaN where there were none."""
        return self.n_good / self.n_offered if self.n_offered else nan


def judge(columns: Mapping[str, Iterable[float]], errors: Sequence[Error], slo: Slo) -> Goodput:
    """Judge each row. `columns`: for each metric that `slo` bounds, its value for every row (NaN: does not exist)."""
    is_good = bytearray(not error for error in errors)
    misses: dict[str, int] = {str(error): n for error, n in Counter(errors).items() if error}
    for name, bound_s in slo.bounds().items():
        n_over = n_null = 0
        for row, value_s in enumerate(columns[name]):
            if errors[row] or value_s <= bound_s:
                continue
            is_null = isnan(value_s)
            if is_null and slo.null_passes:
                continue
            n_null += is_null
            n_over += not is_null
            is_good[row] = 0
        misses.update({cause: n for cause, n in ((name, n_over), (f"{name} (null)", n_null)) if n})
    return Goodput(slo, len(errors), sum(is_good), misses, is_good)
