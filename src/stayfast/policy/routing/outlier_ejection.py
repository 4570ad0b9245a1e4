"""Outlier ejection: an upstream that is far worse than its peers gets no requests of a route for a while.

Problem: a breaker compares an upstream with its own past. By that standard an upstream is healthy although it fails every
tenth call, or has been three times as slow as its peers for an hour. Rule, for upstreams with at least 20 calls each:

    failing   its share of failures is over 10 %, and over 3 times that of the others
    slow      its time to first token is over 3 times the median of the others', compared for one model and similar
              prompts: mean of ln(ttft_s) - ln(usual_s of this model and size on the route)

Shares and means are moving averages over about 50 calls. An ejected upstream is out for 30 s, then for 60, 90, ... up to
300 s. When it returns, its share of the requests grows from 10 % to all in 10 s, and only its new calls count. At most
`max_share` of the upstreams are out at a time, and never all; if the others are broken, an ejected one is tried.
Source: Envoy's outlier detection (success rate against the peers, growing ejection times, the largest share); comparing
ratios instead of standard deviations is ours, as a route has two to eight upstreams, not fifty.
When wrong: of upstreams that differ by design (a fast one and a cheap one), the worse is ejected. With only two upstreams
there is no majority, so the one that fails more, or is slower, is ejected.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import exp, log
from statistics import median
from typing import Annotated

from stayfast.core.setting import SettingDoc, check_bounds

LEAST_FAILING = 0.1
FAILING_FACTOR = 3.0
_N_MEAN = 50
WEIGHT = 1 / _N_MEAN
N_SIZE = 300  # answers over which the mean of one prompt size is learned
RECHECK_EVERY_S = 1.0
MAX_CLASSES = 500  # clients may choose model names; the oldest class is dropped
LONGEST_S = 300.0
MOST_OUT = 0.99  # never all
RAMP_S = 10.0
RAMP_FROM = 0.1
_LEAST_S = 1e-4


@dataclass(frozen=True, slots=True)
class EjectConfig:
    """When an upstream is ejected. `max_share`: the share of the route's upstreams that may be out at a time."""

    enabled: Annotated[bool, SettingDoc("Eject outliers.")] = False
    slow_factor: Annotated[float, SettingDoc(
        "Outlier: first tokens take this many times as long as the others', for like prompts.",
        more_than=1, maximum=1000)] = 3.0
    min_calls: Annotated[int, SettingDoc("Fewest calls for a judgement.", minimum=5, maximum=10_000)] = 20
    ejection_s: Annotated[float, SettingDoc("First ejection; later ones are longer.", more_than=0, maximum=LONGEST_S)] = 30.0
    max_share: Annotated[float, SettingDoc(
        "Largest share of a route's upstreams out at a time.", more_than=0, maximum=MOST_OUT)] = 0.5

    def __post_init__(self) -> None:
        check_bounds(self)


class OutlierRecord:
    """The measurements and ejections of one upstream on one route. Changed only by `Outliers`."""

    __slots__ = ("failing", "is_out", "n", "n_out", "n_timed", "out_until", "slowness", "why")

    def __init__(self) -> None:
        self.n = self.n_timed = 0  # calls since its return, and those with a first token
        self.failing = 0.0  # share
        self.slowness = 0.0  # logarithm
        self.n_out = 0  # ejections in a row
        self.is_out = False  # as last reported in `changes`
        self.out_until = float("-inf")
        self.why = ""

    def record_failure(self) -> None:
        self.n = n = self.n + 1
        self.failing += (1.0 - self.failing) * (WEIGHT if n > _N_MEAN else 1 / n)

    def record_ttft(self, log_ratio: float) -> None:
        """A first token arrived; `log_ratio`: the logarithm of its time relative to the usual one."""
        self.n_timed = n = self.n_timed + 1
        self.slowness += (log_ratio - self.slowness) * (WEIGHT if n > _N_MEAN else 1 / n)


class Outliers:
    """The outlier ejection of one route. Pure state; changed only by its owner. Instants are seconds and never go back."""

    __slots__ = ("_config", "_records", "_usual", "changes", "has_no_ejections", "recheck_at")

    def __init__(self, config: EjectConfig) -> None:
        self._config = config
        self.changes: list[tuple[str, bool, str]] = []  # upstream, whether it is out, reason; the owner empties it
        self._records: dict[str, OutlierRecord] = {}
        self._usual: dict[tuple[str, bool, int], list[float]] = {}  # by model, form and size: n, mean ln(ttft_s)
        self.recheck_at = float("-inf")  # when `traffic_shares` must be called again even if `has_no_ejections`
        self.has_no_ejections = True  # no upstream is out or returning

    def record_first_token(self, upstream: str, ttft_s: float, n_bytes: int, *, model: str = "", is_whole: bool) -> None:
        """model: as clients name it; upstreams may have other names for it."""
        one = self._records.get(upstream) or self._record(upstream)
        one.n = n = one.n + 1
        one.failing -= one.failing * (WEIGHT if n > _N_MEAN else 1 / n)
        size, log_s = (model, is_whole, n_bytes.bit_length()), log(max(ttft_s, _LEAST_S))
        usual = self._usual.get(size)
        if usual is None:
            if len(self._usual) >= MAX_CLASSES:
                del self._usual[next(iter(self._usual))]
            usual = self._usual[size] = [0, log_s]
        n_known, mean = usual
        one.record_ttft(log_s - mean)
        if n_known < N_SIZE:
            usual[0] = n_known = n_known + 1
        usual[1] = mean + (log_s - mean) / n_known

    def record_lower_bound(self, upstream: str, seconds: float, n_bytes: int, *, model: str = "", is_whole: bool) -> None:
        """A call without a first token was cancelled after `seconds` for a faster one: a lower bound of its time."""
        one, known = self._record(upstream), self._usual.get((model, is_whole, n_bytes.bit_length()))
        if known is not None:
            one.record_ttft(max(one.slowness, log(max(seconds, _LEAST_S)) - known[1]))

    def record_failure(self, upstream: str) -> None:
        self._record(upstream).record_failure()

    def traffic_shares(self, upstreams: Sequence[str], now: float) -> list[float]:
        """For each upstream, the share of its usual requests that it gets: 0 while it is out, 1 when it is healthy."""
        if now >= self.recheck_at:
            self.recheck_at = now + RECHECK_EVERY_S
            self._recompute(upstreams, now)
            self.has_no_ejections = not any(one.n_out for one in self._records.values())
        return [1.0] * len(upstreams) if self.has_no_ejections else [self._share_of(self._records.get(name), now)
                                                                     for name in upstreams]

    def ejected(self, now: float) -> dict[str, str]:
        """The upstreams that are out, with the reasons."""
        return {name: one.why for name, one in self._records.items() if one.out_until > now}

    def _share_of(self, one: OutlierRecord | None, now: float) -> float:
        if one is None or not one.n_out:
            return 1.0
        age_s = now - one.out_until
        return 0.0 if age_s < 0 else min(1.0, RAMP_FROM + (1 - RAMP_FROM) * age_s / RAMP_S)

    def _recompute(self, upstreams: Sequence[str], now: float) -> None:
        for name, one in self._records.items():
            if one.is_out and one.out_until <= now:
                one.is_out = False
                self.changes.append((name, False, f"ejection time is over, it is tried again: {one.why}"))
        n_may = int(self._config.max_share * len(upstreams)) - sum(self._record(name).out_until > now for name in upstreams)
        judged = [name for name in upstreams
                  if (one := self._record(name)).out_until <= now and one.n >= self._config.min_calls]
        worst = sorted(judged, key=lambda name: (self._records[name].failing, self._records[name].slowness), reverse=True)
        for name in worst:
            one = self._records[name]
            peers = [self._records[other] for other in judged if other != name and self._records[other].out_until <= now]
            why = self._find_reason(one, peers) if peers else ""
            if why and n_may > 0:
                n_may -= 1
                self._eject(one, why, now)
                self.changes.append((name, True, f"{why}, ejected for {one.out_until - now:.0f} s"))
            elif not why and one.n_out and one.n >= 2 * self._config.min_calls:
                one.n_out = 0

    def _find_reason(self, one: OutlierRecord, peers: Iterable[OutlierRecord]) -> str:
        """Why an upstream is an outlier among its peers; empty: it is none."""
        peers = list(peers)
        failing = sum(peer.failing for peer in peers) / len(peers)
        if one.failing > max(LEAST_FAILING, FAILING_FACTOR * failing):
            return f"{one.failing:.0%} of its calls failed, {failing:.0%} of the others' calls"
        timed = [peer.slowness for peer in peers if peer.n_timed >= self._config.min_calls]
        if timed and one.n_timed >= self._config.min_calls:
            usual = median(timed)
            if one.slowness - usual > log(self._config.slow_factor):
                return f"its first tokens took {exp(one.slowness - usual):.1f} times as long as the others'"
        return ""

    def _eject(self, one: OutlierRecord, why: str, now: float) -> None:
        one.n_out += 1
        one.is_out = True
        one.out_until = now + min(LONGEST_S, one.n_out * self._config.ejection_s)
        one.why = why
        one.n = one.n_timed = 0
        one.failing = one.slowness = 0.0

    def _record(self, name: str) -> OutlierRecord:
        found = self._records.get(name)
        if found is None:
            self._records[name] = found = OutlierRecord()
        return found

    def __repr__(self) -> str:
        out = ", ".join(f"{name} out: {one.why}" for name, one in self._records.items() if one.n_out)
        return f"<Outliers of {len(self._records)}{f'; {out}' if out else ''}>"
