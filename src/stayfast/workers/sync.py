"""State shared by the workers of one parent: slots, limits, breakers, quotas and retry budgets.

Problem: the kernel distributes connections over N workers at random. With separate limits N times as much would pass, and a
tenant could be refused at one worker and accepted at another. Rule: state that must be exact for a request (slots, quotas)
is in shared memory (`workers.shared_memory`). Learned state (breakers, limits, budgets) is each worker's own; twenty times a
second the workers exchange counts:

    breakers   evaluate the calls of all workers; if one opens or closes, the others follow
    limits     one worker, the leader, learns from the calls of all; the others adopt its value. Another one becomes leader
               when the leader has been idle for 2 s
    budgets    count requests and extra attempts of all workers

Each slot has one writer. Counts only grow; held amounts are absolute. When a worker has ended, or has not run for 5 s, the
others set the amounts that it held to 0. Each worker publishes its probes of half-open breakers, so that one runs at a time.
When wrong: workers that start a probe in the same microsecond both do. Readiness, usual latencies, the order of tenants in
the queue, and the health of models that no setting names are each worker's own.
"""

import asyncio
import os
from collections.abc import Iterable, Iterator, Sequence
from math import inf

from stayfast.core.clock import Clock
from stayfast.policy.admission.quota import Bucket, SharedBucket
from stayfast.policy.resilience.breaker import Breaker, BreakerEvidence
from stayfast.policy.resilience.cross_process import Cells, ProbeLease, SharedLimit
from stayfast.policy.resilience.retry_budget import RetryBudget
from stayfast.upstreams.state.limiter import ConcurrencyLimiter
from stayfast.upstreams.state.upstream_state import ModelHealth, UpstreamState
from stayfast.workers.channels import WorkerPeers
from stayfast.workers.shared_memory import OutOfSlots, SharedCounters

POLL_S = 0.05
LATE_S = 0.5  # without a heartbeat, before its process is checked
STUCK_S = 5.0
LEADER_IDLE_S = 2.0
PROBE_SPACING_S = 0.5


class WorkerSync:
    """One worker's part. One loop's; only `run` awaits."""

    def __init__(self, counters: SharedCounters, n: int, n_workers: int, clock: Clock) -> None:
        self._counters = counters
        self._n = n
        self._n_workers = n_workers
        self._others = tuple(other for other in range(n_workers) if other != n)
        self._clock = clock
        self._held_names: set[str] = set()  # names of the amounts that workers hold
        self._upstreams: dict[UpstreamState, list[_BreakerSync | _LimitSync]] = {}
        self._breakers: dict[ModelHealth, _BreakerSync] = {}
        self._limits: dict[ConcurrencyLimiter, _LimitSync] = {}
        self._budgets: dict[RetryBudget, _BudgetSync] = {}
        self._ended: set[int] = set()  # ended workers, whose amounts were set to 0
        self.admission_limit = self._make_shared_limit("places")
        self._write_heartbeat(clock.now())
        counters.numbers[self.slot_of("pid", n)] = os.getpid()

    def slot_of(self, name: str, n: int) -> int:
        """Worker `n`'s slot of a name. Raises OutOfSlots."""
        return self._counters.slot(f"{name} of {n}")

    def quota_bucket(self, tenant: str, limit: str, capacity: float, per_s: float, now: float) -> Bucket:
        """One limit of a tenant's quota, for all workers; for this worker alone if no slot is left."""
        try:
            cell = self._counters.slot(f"{limit} {capacity!r} of tenant {tenant}")
        except OutOfSlots:
            return Bucket(capacity, per_s, now)
        return SharedBucket(capacity, per_s, now, self._counters.numbers, cell)

    def attach(self, members: Sequence[tuple[str, UpstreamState]], budgets: Iterable[tuple[str, RetryBudget]]) -> None:
        """Share these upstreams and budgets, and no others, from now on. Names are the same in all workers; an upstream with
        changed settings has another name. Raises OutOfSlots.
        """
        before, self._upstreams = self._upstreams, {}
        known, self._breakers = self._breakers, {}
        learned, self._limits = self._limits, {}
        for name, member in members:
            self._upstreams[member] = [
                *(self._share_breaker(name, health, known.get(health)) for health in member.shared_healths),
                *(self._share_limit(name, limited, learned.get(limited)) for limited in member.all_limiters
                  if not limited.limit.is_off)]
        for member in before:
            if member not in self._upstreams:
                for limited in member.all_limiters:
                    limited.shared_limit = None
                for health in member.healths:
                    health.breaker.probes = None
        self._budgets = {budget: self._budgets.get(budget) or _BudgetSync(budget, self._make_counts(f"budget {name}", 4))
                         for name, budget in budgets}

    async def run(self) -> None:
        """Exchange state until cancelled."""
        while True:
            await asyncio.sleep(POLL_S)
            self.poll()

    def poll(self) -> None:
        """Exchange state once."""
        now = self._clock.now()
        self._write_heartbeat(now)
        for member, shared in self._upstreams.items():
            for part in shared:
                part.poll(now)
            member.adopt_news()
        for budget in self._budgets.values():
            budget.poll(now)
        for other in self._others:
            if self._has_ended(other, now):
                if other not in self._ended:
                    self._ended.add(other)
                    for name in self._held_names:
                        self._counters.numbers[self.slot_of(name, other)] = 0.0
            else:
                self._ended.discard(other)

    def is_first(self, now: float) -> bool:
        """Whether all workers with lower numbers have ended, so that this one speaks for the gateway."""
        return all(self._has_ended(other, now) for other in range(self._n))

    def _write_heartbeat(self, now: float) -> None:
        self._counters.numbers[self.slot_of("beat", self._n)] = now

    def _has_ended(self, other: int, now: float) -> bool:
        numbers = self._counters.numbers
        late_s = now - numbers[self.slot_of("beat", other)]
        if late_s < LATE_S:
            return False
        pid = int(numbers[self.slot_of("pid", other)])
        if late_s >= STUCK_S or not pid:
            return True
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        return False

    def _make_shared_limit(self, name: str) -> SharedLimit:
        taken, waiting = f"{name} taken", f"{name} waiting"
        self._held_names |= {taken, waiting}
        common = SharedLimit(self._counters.numbers, (self.slot_of(taken, self._n), self.slot_of(waiting, self._n)),
                        [(self.slot_of(taken, other), self.slot_of(waiting, other)) for other in self._others])
        common.set_taken(0)
        common.set_waiting(0)
        return common

    def _share_limit(self, name: str, limited: ConcurrencyLimiter, found: "_LimitSync | None") -> "_LimitSync":
        if found is None:
            name = f"upstream {name} {limited.lane}" if limited.lane else f"upstream {name}"
            limited.shared_limit = self._make_shared_limit(name)
            limited.shared_limit.set_taken(limited.n_in_flight)
            cells = [self._counters.slot(f"{name} {what}") for what in ("limit", "leader", "led_at")]
            found = _LimitSync(limited, self._n, self._counters.numbers, cells)
        self._limits[limited] = found
        return found

    def _share_breaker(self, name: str, health: ModelHealth, found: "_BreakerSync | None") -> "_BreakerSync":
        if found is None:
            name = f"upstream {name}" if health.model is None else f"upstream {name} for {health.model}"
            self._held_names |= {f"{name} breaker", f"{name} probes"}
            published = [self.slot_of(f"{name} breaker", n) for n in range(self._n_workers)]
            probes = [self.slot_of(f"{name} probes", n) for n in range(self._n_workers)]
            health.breaker.probes = ProbeLease(self._counters.numbers, probes.pop(self._n), probes)
            health.breaker.probes.set_running(0)  # an earlier worker of this number may have died during one
            found = _BreakerSync(health.breaker, self._n, published, self._make_counts(f"{name} calls", 3))
        self._breakers[health] = found
        return found

    def _make_counts(self, name: str, n_numbers: int) -> "_Counts":
        cells = [[self.slot_of(f"{name} {number}", n) for number in range(n_numbers)] for n in range(self._n_workers)]
        return _Counts(self._counters.numbers, cells.pop(self._n), cells)

    def __repr__(self) -> str:
        return f"<WorkerSync {self._n} of {self._n_workers}, {len(self._ended)} gone>"


def make_worker_sync(siblings: WorkerPeers | None, clock: Clock) -> WorkerSync | None:
    """None for a single worker, or without shared memory."""
    if siblings is None or siblings.directory is None or not siblings.others:
        return None
    try:
        return WorkerSync(SharedCounters(siblings.directory), siblings.n, 1 + len(siblings.others), clock)
    except (OSError, ValueError):
        return None


class _Counts:
    """Counts of each worker, which only grow; a restarted worker continues them."""

    __slots__ = ("_others", "_own", "_seen", "cells")

    def __init__(self, cells: Cells, own: Sequence[int], others: Sequence[Sequence[int]]) -> None:
        self.cells = cells
        self._own = own
        self._others = others
        self._seen = [[cells[cell] for cell in each] for each in others]

    def add(self, more: Sequence[float]) -> None:
        """Add to this worker's counts."""
        for cell, number in zip(self._own, more, strict=True):
            self.cells[cell] += number

    def news(self) -> Iterator[list[float]]:
        """For each other worker with new counts, the increase since the last call."""
        for cells, seen in zip(self._others, self._seen, strict=True):
            now = [self.cells[cell] for cell in cells]
            if now != seen:
                yield [new - old for new, old in zip(now, seen, strict=True)]
                seen[:] = now


class _BudgetSync:
    """The retry budget of one route or upstream."""

    __slots__ = ("_budget", "_counts", "_exported")

    def __init__(self, budget: RetryBudget, counts: _Counts) -> None:
        self._budget = budget
        self._counts = counts
        self._exported = budget.export_counts()

    def poll(self, now: float) -> None:
        exported = self._budget.export_counts()
        if exported != self._exported:
            self._counts.add([new - old for new, old in zip(exported, self._exported, strict=True)])
            self._exported = exported
        for n_requests, paid_in, hedged, retried in self._counts.news():
            self._budget.add_counts((n_requests, paid_in, hedged, retried), now)


class _BreakerSync:
    """The breaker of one model at one upstream."""

    __slots__ = ("_breaker", "_cells", "_counts", "_n", "_polled_at", "_published", "_seen")

    def __init__(self, breaker: Breaker, n: int, published: Sequence[int], counts: _Counts) -> None:
        self._breaker = breaker
        self._cells = counts.cells
        self._n = n
        self._published = published  # by worker
        self._seen = [0.0] * len(published)
        self._counts = counts
        self._polled_at = -inf

    def poll(self, now: float) -> None:
        breaker, cells = self._breaker, self._cells
        evidence = breaker.evidence_since(self._polled_at)
        self._polled_at = now
        if any(evidence):
            self._counts.add(evidence)
        for n, cell in enumerate(self._published):
            state = cells[cell]
            if n != self._n and state != self._seen[n]:
                self._seen[n] = state
                later_s = (self._n - n) % len(self._published) * PROBE_SPACING_S
                breaker.adopt_state(state + later_s if state > 0 else state, now)
        for n_good, n_failed, n_slow in self._counts.news():
            breaker.add_evidence(BreakerEvidence(int(n_good), int(n_failed), int(n_slow)), now)
        if breaker.published_state:
            cells[self._published[self._n]] = breaker.published_state


class _LimitSync:
    """The limit of an upstream, or of one of its lanes."""

    __slots__ = ("_cells", "_leader", "_led_at", "_limited", "_n", "_value")

    def __init__(self, limited: ConcurrencyLimiter, n: int, cells: Cells, own: Sequence[int]) -> None:
        self._limited = limited
        self._cells = cells
        self._n = n
        self._value, self._leader, self._led_at = own

    def poll(self, now: float) -> None:
        """The leader learns. Without a leader, the first busy worker becomes it."""
        limited, cells = self._limited, self._cells
        if not limited.limit.is_adaptive:
            return
        is_busy = limited.n_in_flight > 0
        if is_busy and now - cells[self._led_at] > LEADER_IDLE_S:
            cells[self._leader] = self._n + 1
        if cells[self._leader] != self._n + 1:
            if cells[self._value]:
                limited.limit.adopt_value(cells[self._value])
            return
        cells[self._value] = limited.limit.value
        if is_busy:
            cells[self._led_at] = now
