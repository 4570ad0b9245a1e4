"""Where the time went inside the target, by its own `Server-Timing`: the usual requests against the slowest.

The usual slice is the 20 % of answers around the median of e2e_sched (p40 to p60), the slow one all at or above its p99. A
stage's figure is its mean over the slice's answers (0 where it did not run), so that a slice's parts add up to its mean
e2e_sched; what the header does not explain (network, the client's own lateness, what ran after it was written) is
`elsewhere`. Allowances are read from a parameter `allow` (milliseconds) or a description that ends in `of NUMBER`.
"""

import re
from math import isfinite
from typing import Final

import msgspec

from stayfast.lab.load.samples import Samples

ELSEWHERE: Final = "elsewhere"
MAX_STAGES = 14  # a header is another's text: what comes after so many names is `others`
OTHERS: Final = "others"
_TOKEN = r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}"  # noqa: S105
_VALUE = rf'(?:"(?:[^"\\]|\\.)*"|{_TOKEN})'
_ENTRY = re.compile(rf"\s*({_TOKEN})((?:\s*;\s*{_TOKEN}\s*(?:=\s*{_VALUE})?)*)\s*(?:,|$)")
_PARAMETER = re.compile(rf";\s*({_TOKEN})\s*=\s*({_VALUE})")
_ALLOWANCE = re.compile(r"(?:^|\bof )\s*([0-9]+(?:\.[0-9]+)?)\s*(?:ms)?$")
_MAX_HEADER = 4096


class Timing(msgspec.Struct, frozen=True, gc=False):
    """One entry of a `Server-Timing` value."""

    name: str
    spent_s: float
    allowance_s: float | None = None


class Stage(msgspec.Struct, frozen=True):
    """A stage's mean seconds over one slice; the allowance is the mean of those that had one."""

    name: str
    spent_s: float
    allowance_s: float | None = None
    n_over: int = 0  # requests in which it used more than its allowance


class Slice(msgspec.Struct, frozen=True):
    """Some of the answers, and where their time went; `stages` in the order in which they ran, then `elsewhere`."""

    title: str
    n: int
    mean_s: float  # of e2e_sched
    stages: tuple[Stage, ...]


def parse(header: str) -> list[Timing]:
    """The entries of a `Server-Timing` value that have a duration; `total` aside. Nonsense is skipped, never an error."""
    found = []
    for name, parameters in _ENTRY.findall(header[:_MAX_HEADER]):
        given = {key.lower(): value.strip('"') for key, value in _PARAMETER.findall(parameters)}
        spent_ms = _number(given.get("dur", ""))
        if spent_ms is None or name == "total":
            continue
        allowed = given.get("allow") or given.get("desc", "")
        match = _ALLOWANCE.search(allowed)
        found.append(Timing(name, spent_ms / 1e3, float(match[1]) / 1e3 if match else None))
    return found


def breakdown(samples: Samples, usual_s: tuple[float, float], slow_s: float) -> tuple[Slice, Slice] | None:
    """Two slices of the whole answers, by bounds of e2e_sched in seconds; None where no answer said its timing."""
    rows: tuple[list[int], list[int]] = [], []
    at, last = samples.floats["at_s"], samples.floats["last_s"]
    for row, (error, timing) in enumerate(zip(samples.errors, samples.server_timings, strict=True)):
        if error or not timing:
            continue
        took_s = last[row] - at[row]
        if usual_s[0] <= took_s <= usual_s[1]:
            rows[0].append(row)
        if took_s >= slow_s:
            rows[1].append(row)
    if not rows[0] or not rows[1]:
        return None
    return (_slice("usual (p40 to p60)", rows[0], samples), _slice("slowest (p99 and above)", rows[1], samples))


def _slice(title: str, rows: list[int], samples: Samples) -> Slice:
    spent: dict[str, float] = {}
    allowed: dict[str, tuple[float, int]] = {}
    n_over: dict[str, int] = {}
    for row in rows:
        for timing in parse(samples.server_timings[row]):
            name = timing.name if timing.name in spent or len(spent) < MAX_STAGES else OTHERS
            spent[name] = spent.get(name, 0.0) + timing.spent_s
            if timing.allowance_s is not None:
                total_s, n = allowed.get(name, (0.0, 0))
                allowed[name] = (total_s + timing.allowance_s, n + 1)
                n_over[name] = n_over.get(name, 0) + (timing.spent_s > timing.allowance_s)
    n_rows = len(rows)
    mean_s = sum(samples.floats["last_s"][row] - samples.floats["at_s"][row] for row in rows) / n_rows
    stages = [Stage(name, total_s / n_rows, allowed[name][0] / allowed[name][1] if name in allowed else None,
                    n_over.get(name, 0)) for name, total_s in spent.items()]
    rest_s = mean_s - sum(stage.spent_s for stage in stages)
    return Slice(title, n_rows, mean_s, (*stages, Stage(ELSEWHERE, max(0.0, rest_s))))


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if isfinite(value) and value >= 0 else None
