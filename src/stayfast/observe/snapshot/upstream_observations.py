"""What one worker sees of each upstream besides traffic: connections, quotas, buffering, speed, batching, breakers.

Attempts are stored as they come (a reference each) and evaluated every few seconds, at most MAX_EVALUATED of an
upstream at a time, evenly chosen. A stream is clumped if it has CLUMP_CHUNKS parts, and all of them came within CLUMP_RATIO
of its duration, and faster than one in CLUMP_TOKEN_S: no model writes so fast, so something on the way buffers. Such a
stream has no speed. Batching: `policy.findings.batching`.
When wrong: an upstream that answers from a cache of its own sends all parts at once, too.
"""

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from stayfast.core.events import AttemptDone, BreakerChanged, ConnectionOpened, ConnectionReused
from stayfast.core.samples import QuotaReported
from stayfast.core.snapshot import UpstreamRow
from stayfast.core.types import Outcome
from stayfast.observe.snapshot.tallies import PackedTally, RowTally, TallyWindow, merge_tallies
from stayfast.policy.findings.batching import BatchingEvidence, CallTiming, judge_batching, weigh_calls

SPAN_S: Final = 300.0
SLOT_S: Final = 15.0
HOUR_S: Final = 3600.0
MINUTE_S: Final = 60.0
MAX_RECENT: Final = 64  # attempts of an upstream; weighing the timings of more would hold the loop for longer than 2 ms
MAX_EVALUATED: Final = 32
MAX_BREAKER_CHANGES: Final = 1000
WEIGH_EVERY_S: Final = 30.0  # the timings of the newest attempts, if ENOUGH are new; FEW_ENOUGH after WEIGH_LATEST_S
WEIGH_LATEST_S: Final = 300.0
ENOUGH: Final = 48
FEW_ENOUGH: Final = 16
MAX_WEIGHED: Final = 8  # weighings that count together
CLUMP_CHUNKS: Final = 10
CLUMP_RATIO: Final = 0.02
CLUMP_TOKEN_S: Final = 0.0005
_LEAST_S: Final = 1e-6
_SUCCESS: Final = Outcome.SUCCESS


class QuotaSeen(msgspec.Struct, frozen=True):
    """The newest report, and the least share of each limit in the last hour."""

    at: float
    left: dict[str, float]
    least: dict[str, float]


class ObservedUpstream(msgspec.Struct, frozen=True, omit_defaults=True):
    """One upstream as one worker sees it."""

    tally: PackedTally = PackedTally()
    n_breaker_changes_1h: int = 0
    quota: QuotaSeen | None = None
    batching: BatchingEvidence | None = None


ObservedUpstreams = Mapping[str, ObservedUpstream]


class _Watched:
    """One upstream."""

    __slots__ = ("batching", "breaker_changes", "evaluated_at", "quota_at", "quota_least", "quota_left", "recent",
                 "weighed_at")

    def __init__(self) -> None:
        self.recent: deque[AttemptDone] = deque(maxlen=MAX_RECENT)
        self.breaker_changes: deque[float] = deque(maxlen=MAX_BREAKER_CHANGES)
        self.quota_at = 0.0
        self.quota_left: dict[str, float] = {}
        self.quota_least: deque[tuple[float, dict[str, float]]] = deque()  # (start of the minute, least)
        self.evaluated_at = self.weighed_at = float("-inf")
        self.batching: deque[BatchingEvidence] = deque(maxlen=MAX_WEIGHED)


class UpstreamObservations:
    """For one event loop. Bounded by the upstreams in the settings."""

    __slots__ = ("_watched", "_window")

    def __init__(self) -> None:
        self._watched: defaultdict[str, _Watched] = defaultdict(_Watched)
        self._window = TallyWindow(SPAN_S, SLOT_S)

    def note_attempts(self, attempts: Sequence[AttemptDone]) -> None:
        watched = self._watched
        for fact in attempts:
            if fact.is_stream and fact.outcome is _SUCCESS:
                watched[fact.upstream].recent.append(fact)  # evaluated later: a reference is cheap

    def note_reused(self, reused: Sequence[ConnectionReused], now: float) -> None:
        by_upstream: defaultdict[str, int] = defaultdict(int)
        for fact in reused:
            by_upstream[fact.upstream] += 1
        for upstream, n in by_upstream.items():
            self._window.at(upstream, now).counts["n_reused"] += n

    def note_opened(self, fact: ConnectionOpened, now: float) -> None:
        tally = self._window.at(fact.upstream, now)
        tally.counts["n_opened"] += 1
        tally.counts["n_tls_resumed"] += fact.tls_resumed
        tally.histograms["handshake_s"].add(fact.handshake_s)
        if fact.connect_s is not None:
            tally.histograms["connect_s"].add(fact.connect_s)

    def note_breaker(self, fact: BreakerChanged, now: float) -> None:
        self._watched[fact.upstream].breaker_changes.append(now)

    def note_quota(self, fact: QuotaReported) -> None:
        one = self._watched[fact.upstream]
        one.quota_at, one.quota_left = fact.at, fact.left
        minute = fact.at // MINUTE_S * MINUTE_S
        if not one.quota_least or one.quota_least[-1][0] != minute:
            one.quota_least.append((minute, {}))
        least = one.quota_least[-1][1]
        for kind, left in fact.left.items():
            least[kind] = min(left, least.get(kind, left))

    def quota_left(self) -> dict[str, dict[str, float]]:
        """By upstream: what its newest report says is left."""
        return {name: one.quota_left for name, one in self._watched.items() if one.quota_left}

    def evaluate(self, now: float) -> None:
        """Evaluate the attempts since the last time; call it every few seconds."""
        for name, one in self._watched.items():
            self._evaluate(self._window.at(name, now), one, now)

    def collect(self, now: float) -> ObservedUpstreams:
        self.evaluate(now)
        tallies = self._window.collect(now)
        return {name: self._part(tallies.get(name, PackedTally()), self._watched.get(name), now)
                for name in dict.fromkeys((*tallies, *self._watched))}

    def _evaluate(self, tally: RowTally, one: _Watched, now: float) -> None:
        """Add the attempts since the last evaluation."""
        recent = one.recent
        while recent and recent[0].ended_at <= now - HOUR_S:
            recent.popleft()
        fresh = [fact for fact in recent if fact.ended_at > one.evaluated_at]
        for fact in fresh[::max(1, len(fresh) // MAX_EVALUATED)]:
            _add_stream(tally, fact)
        one.evaluated_at = max([fact.ended_at for fact in fresh], default=one.evaluated_at)
        n_new = sum(1 for fact in recent if fact.ended_at > one.weighed_at)
        if now >= one.weighed_at + WEIGH_EVERY_S and (n_new >= ENOUGH or (
                n_new >= FEW_ENOUGH and now >= one.weighed_at + WEIGH_LATEST_S)):
            one.weighed_at = now
            one.batching.append(weigh_calls(_timings(recent)))

    def _part(self, tally: PackedTally, one: _Watched | None, now: float) -> ObservedUpstream:
        if one is None:
            return ObservedUpstream(tally)
        changes, least = one.breaker_changes, one.quota_least
        while changes and changes[0] <= now - HOUR_S:
            changes.popleft()
        while least and least[0][0] <= now - HOUR_S - MINUTE_S:
            least.popleft()
        quota = QuotaSeen(one.quota_at, one.quota_left, _least_of(known for _, known in least)) if least else None
        batching = BatchingEvidence()
        for evidence in one.batching:
            batching.merge(evidence)
        return ObservedUpstream(tally, len(changes), quota, batching if one.batching else None)


def _add_stream(tally: RowTally, fact: AttemptDone) -> None:
    ttft_s, last_s, n = fact.ttft_s, fact.last_s, fact.n_content
    if ttft_s is None or last_s is None:
        return
    spent_s, n_tokens = last_s - ttft_s, fact.usage.output if fact.usage is not None else 0
    if n >= CLUMP_CHUNKS:
        tally.counts["n_streams"] += 1
        if spent_s < CLUMP_RATIO * last_s and spent_s < CLUMP_TOKEN_S * n:
            tally.counts["n_clumped"] += 1
            return
    if spent_s > _LEAST_S and n_tokens > 1 and n > 1:
        tally.histograms["tokens_per_s"].add((n_tokens - 1) / spent_s)


def _timings(attempts: Iterable[AttemptDone]) -> list[CallTiming]:
    return [CallTiming(fact.began_at, fact.began_at + fact.ttft_s, fact.began_at + fact.last_s,
                       fact.usage.output if fact.usage is not None else 0)
            for fact in attempts if fact.ttft_s is not None and fact.last_s is not None]


def _least_of(reports: Iterable[Mapping[str, float]]) -> dict[str, float]:
    least: dict[str, float] = {}
    for report in reports:
        for kind, left in report.items():
            least[kind] = min(left, least.get(kind, left))
    return least


def complete_upstreams(rows: Iterable[UpstreamRow], parts: Iterable[ObservedUpstreams],
                       engines: Mapping[str, dict[str, float]] | None = None, bounds: Mapping[str, str] | None = None
                       ) -> tuple[UpstreamRow, ...]:
    """The rows with what all workers saw. engines: figures of self-hosted engines, by upstream. bounds: what
    these are bound by.
    """
    known = list(parts)
    tallies = merge_tallies({name: part.tally for name, part in one.items()} for one in known)
    return tuple([_complete(row, tallies.get(row.name) or RowTally(), [one[row.name] for one in known if row.name in one],
                            (engines or {}).get(row.name, {}), (bounds or {}).get(row.name, "")) for row in rows])


def _complete(row: UpstreamRow, tally: RowTally, parts: Sequence[ObservedUpstream], engine: dict[str, float],
              bound_by: str) -> UpstreamRow:
    quotas = [part.quota for part in parts if part.quota is not None]
    evidence = BatchingEvidence()
    for part in parts:
        if part.batching is not None:
            evidence.merge(part.batching)
    n_streams = tally.n("n_streams")
    return msgspec.structs.replace(
        row, n_breaker_changes_1h=row.n_breaker_changes_1h or sum(part.n_breaker_changes_1h for part in parts),
        tokens_per_s=tally.spread("tokens_per_s"), handshake_s=tally.spread("handshake_s"),
        connect_s=tally.spread("connect_s"), n_opened=tally.n("n_opened"), n_reused=tally.n("n_reused"),
        n_tls_resumed=tally.n("n_tls_resumed"),
        quota_left=max(quotas, key=lambda quota: quota.at).left if quotas else {},
        quota_left_1h=_least_of(quota.least for quota in quotas),
        clumped_ratio=tally.counts["n_clumped"] / n_streams if n_streams else None,
        batching=judge_batching(evidence), engine=engine, bound_by=bound_by)
