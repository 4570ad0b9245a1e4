"""What workers hold as one, on a clock of the test's: several in one process, over one board."""

import os
from pathlib import Path
from random import Random

import pytest

from stayfast.core.types import Outcome
from stayfast.policy.resilience.breaker import BreakerConfig, BreakerState
from stayfast.policy.resilience.limits import LimitConfig
from stayfast.policy.resilience.retry_budget import RetryBudget
from stayfast.testing import ScriptedUpstream, SendText, SimLoop
from stayfast.upstreams.state.permit import acquire_permit
from stayfast.upstreams.state.upstream_state import UpstreamState
from stayfast.workers.shared_memory import SharedCounters, create_files
from stayfast.workers.sync import POLL_S, STUCK_S, WorkerSync


class Worker:
    """One of them: an upstream and a budget."""

    def __init__(self, folder: Path, n: int, n_workers: int, loop: SimLoop, limit: LimitConfig) -> None:
        self.loop = loop
        breaker = BreakerConfig(consecutive_failures=3, open_s=10.0)
        self.member = UpstreamState(ScriptedUpstream("up", [[SendText("x")]], loop), limit, breaker, Random(n))
        self.budget = RetryBudget(0.1, 0.05)
        self.sync = WorkerSync(SharedCounters(folder), n, n_workers, loop)
        self.sync.attach([("up", self.member)], [("m", self.budget)])

    def call(self, outcome: Outcome) -> None:
        """An attempt, to its end."""
        self.loop.stall(0.001)
        now = self.loop.now()
        place = acquire_permit(self.member, self.member.baselines.baseline_for("m", 1, False), now)
        if outcome is Outcome.SUCCESS:
            place.record_first_token(now)
        place.release(outcome, now)


class Workers(list[Worker]):
    """All of them."""

    def pass_time(self, seconds: float, *dead: int) -> None:
        """Everybody but the dead looks as often as it does."""
        for _ in range(round(seconds / POLL_S)):
            self[0].loop.stall(POLL_S)
            for n, worker in enumerate(self):
                if n not in dead:
                    worker.sync.poll()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With a board in it."""
    create_files(tmp_path)
    return tmp_path


def _workers(folder: Path, n: int, limit: LimitConfig | None = None) -> Workers:
    loop = SimLoop()
    loop.stall(1000.0)
    loop.close()
    found = Workers(Worker(folder, each, n, loop, limit or LimitConfig("fixed", 1, 10)) for each in range(n))
    found.pass_time(0.1)
    return found


def test_worker_sync_breaker_opens_and_closes_for_all_workers(folder: Path) -> None:
    """Three failures in a row, each at another worker; after the pause two successes at any worker."""
    workers = _workers(folder, 3)
    for worker in workers:
        assert worker.member.breaker.state is BreakerState.CLOSED
        worker.call(Outcome.DROPPED)
        workers.pass_time(0.1)
    assert {worker.member.breaker.state for worker in workers} == {BreakerState.OPEN}
    workers.pass_time(13.0)
    for _ in range(2):
        workers[1].call(Outcome.SUCCESS)
    workers.pass_time(0.1)
    assert {worker.member.breaker.state for worker in workers} == {BreakerState.CLOSED}
    workers.pass_time(1.0)
    assert {worker.member.breaker.state for worker in workers} == {BreakerState.CLOSED}


def test_worker_sync_success_of_another_worker_ends_a_row_of_failures(folder: Path) -> None:
    workers = _workers(folder, 2)
    for _ in range(6):
        workers[0].call(Outcome.DROPPED)
        workers[1].call(Outcome.SUCCESS)
        workers[1].call(Outcome.SUCCESS)
        workers.pass_time(0.1)
    assert {worker.member.breaker.state for worker in workers} == {BreakerState.CLOSED}


def test_worker_sync_new_worker_starts_with_the_open_breaker(folder: Path) -> None:
    """It replaces a crashed one."""
    workers = _workers(folder, 2)
    for _ in range(3):
        workers[0].call(Outcome.DROPPED)
    workers.pass_time(0.1)
    again = Worker(folder, 1, 2, workers[0].loop, LimitConfig())
    again.sync.poll()
    assert again.member.breaker.state is BreakerState.OPEN


def test_worker_sync_learned_limit_is_adopted_by_all(folder: Path) -> None:
    """The busy worker leads; when it has been idle for two seconds, another one does."""
    workers = _workers(folder, 3, LimitConfig("gradient", 2, 100))
    norm = workers[1].member.baselines.baseline_for("m", 1, False)
    place = acquire_permit(workers[1].member, norm, workers[1].loop.now())
    workers.pass_time(0.1)
    workers[1].member.limit.adopt_value(40.0)
    workers.pass_time(0.1)
    assert [worker.member.limit.value for worker in workers] == [40.0] * 3
    workers[0].member.limit.adopt_value(77.0)
    workers.pass_time(0.1)
    assert [worker.member.limit.value for worker in workers] == [40.0] * 3
    place.release(Outcome.IGNORED, workers[1].loop.now())
    workers.pass_time(3.0)
    acquire_permit(workers[2].member, norm, workers[2].loop.now())
    workers.pass_time(0.1)
    workers[2].member.limit.adopt_value(20.0)
    workers.pass_time(0.1)
    assert [worker.member.limit.value for worker in workers] == [20.0] * 3


def test_worker_sync_retry_budget_is_of_all_traffic(folder: Path) -> None:
    """Wherever it comes in and is retried; after a crash nothing is counted twice."""
    workers = _workers(folder, 4)
    for worker in workers:
        for _ in range(250):
            worker.budget.deposit(1.0, worker.loop.now())
    workers.pass_time(0.1)
    now = workers[0].loop.now()
    n = 0
    while workers[0].budget.may_retry(1.0, now):
        workers[0].budget.withdraw_retry(1.0, now)
        n += 1
    assert 100 <= n <= 125
    workers.pass_time(0.1)
    assert not any(worker.budget.may_retry(1.0, now) for worker in workers)
    shares = {round(worker.budget.extra_share(now), 9) for worker in workers}
    assert shares == {n / 1000}
    again = Worker(folder, 0, 4, workers[0].loop, LimitConfig())
    again.budget.deposit(1.0, now)
    again.sync.poll()
    workers.pass_time(0.1, 0)
    assert workers[3].budget.extra_share(now) == pytest.approx(n / 1001)


def test_worker_sync_places_of_a_dead_or_stuck_worker_are_free(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a dead process half a second later, of a stuck one after five; they count again when it polls."""
    workers = _workers(folder, 2)
    member = workers[0].member
    places = [acquire_permit(workers[1].member, member.baselines.baseline_for("m", 1, False), workers[1].loop.now())
              for _ in range(10)]
    common = member.whole_limiter.shared_limit
    assert common is not None
    assert common.n_effective(0, 10) == 10
    workers.pass_time(STUCK_S - 0.2, 1)
    assert common.n_effective(0, 10) == 10
    workers.pass_time(0.3, 1)
    assert common.n_effective(0, 10) == 0
    places[0].release(Outcome.IGNORED, workers[1].loop.now())
    workers.pass_time(0.1)
    assert common.n_elsewhere() == 9

    def gone(pid: int, _: int) -> None:
        raise ProcessLookupError(pid)

    monkeypatch.setattr(os, "kill", gone)
    workers.pass_time(0.6, 1)
    assert common.n_elsewhere() == 0


def test_worker_sync_reload_keeps_unchanged_upstreams(folder: Path) -> None:
    """A replaced upstream no longer counts, and its breaker is not inherited."""
    one, two = _workers(folder, 2)
    now = one.loop.now()
    norm = one.member.baselines.baseline_for("m", 1, False)
    acquire_permit(one.member, norm, now)
    one.sync.attach([("up", one.member)], [("m", one.budget)])
    two.sync.poll()
    common = two.member.whole_limiter.shared_limit
    assert common is not None
    assert common.n_elsewhere() == 1
    for _ in range(3):
        one.call(Outcome.DROPPED)
    fresh = UpstreamState(one.member.upstream, LimitConfig("fixed", 1, 10), BreakerConfig(), Random(1))
    one.sync.attach([("up with another url", fresh)], [("m", one.budget)])
    assert one.member.whole_limiter.shared_limit is None
    Workers([one, two]).pass_time(0.2)
    assert (fresh.breaker.state, fresh.has_room) == (BreakerState.CLOSED, True)


def test_worker_sync_quota_is_shared(folder: Path) -> None:
    one, two = (worker.sync.quota_bucket("t", "requests_per_minute", 60.0, 1.0, 1000.0) for worker in _workers(folder, 2))
    taken = [bucket.take(1.0, 1000.0) for _ in range(40) for bucket in (one, two)]
    assert sum(taken) == 60
    assert two.wait_s(1.0, 1000.0) == pytest.approx(1.0)
    one.charge(-5.0, 1000.0)
    assert two.level(1000.0) == pytest.approx(5.0)
    assert two.level(2000.0) == 60.0
    one.charge(70.0, 2000.0)
    assert not two.take(1.0, 2010.0)
    assert two.take(1.0, 2011.0)


def test_worker_sync_half_open_breaker_has_one_probe(folder: Path) -> None:
    """Until the probe has ended, or its worker is gone."""
    workers = _workers(folder, 3)
    for _ in range(3):
        workers[0].call(Outcome.DROPPED)
    workers.pass_time(30.0)
    now = workers[0].loop.now()
    assert all(worker.member.load_of(now).needs_probe for worker in workers)
    one = workers[1].member
    place = acquire_permit(one, one.baselines.baseline_for("m", 1, False), now)
    assert not any(worker.member.load_of(now).needs_probe for worker in workers)
    place.release(Outcome.IGNORED, now)
    assert all(worker.member.load_of(now).needs_probe for worker in workers)
    acquire_permit(one, one.baselines.baseline_for("m", 1, False), now)
    workers.pass_time(STUCK_S + 0.2, 1)
    assert workers[0].member.load_of(workers[0].loop.now()).needs_probe
    two = workers[2].member
    acquire_permit(two, two.baselines.baseline_for("m", 1, False), now)
    assert not workers[0].member.load_of(workers[0].loop.now()).needs_probe
    Worker(folder, 2, 3, workers[0].loop, LimitConfig("fixed", 1, 10))  # in the place of one that died
    assert workers[0].member.load_of(workers[0].loop.now()).needs_probe


def test_worker_sync_model_breakers_are_shared(folder: Path) -> None:
    workers = _workers(folder, 2)
    for worker in workers:
        worker.member.set_models(["x", "y"], any_model=True)
        worker.sync.attach([("up", worker.member)], [("m", worker.budget)])
    norm = workers[0].member.baselines.baseline_for("m", 1, False)
    for model in ("x", "z"):
        for _ in range(3):
            now = workers[0].loop.now()
            acquire_permit(workers[0].member, norm, now, model).release(Outcome.DROPPED, now)
            workers.pass_time(0.05)
    found = [[worker.member.health_of(model).breaker.state for model in ("x", "y", "z")] for worker in workers]
    assert found == [[BreakerState.OPEN, BreakerState.CLOSED, BreakerState.OPEN], [BreakerState.OPEN, BreakerState.CLOSED,
                                                                                   BreakerState.CLOSED]]
    workers[0].member.set_models(["y"], any_model=False)
    workers[0].sync.attach([("up", workers[0].member)], [("m", workers[0].budget)])
    workers.pass_time(0.2)
    assert workers[0].member.load_of(workers[0].loop.now(), "y").share == 1.0


def test_worker_sync_raised_quota_adds_the_difference_once(folder: Path) -> None:
    """Two workers reload one after the other: what was used of the old limit counts once."""
    workers = _workers(folder, 2)
    now = workers[0].loop.now()
    old = [worker.sync.quota_bucket("web", "tokens_per_day", 2000.0, 2000 / 86400, now) for worker in workers]
    assert old[0].take(1500, now)
    new = []
    for worker, before in zip(workers, old, strict=True):
        bucket = worker.sync.quota_bucket("web", "tokens_per_day", 4000.0, 4000 / 86400, now)
        bucket.replace(before, now)
        new.append(bucket)
    assert [round(bucket.level(now), 3) for bucket in new] == [2500, 2500]
    assert new[1].take(2500, now)
    assert not new[0].take(10, now)


def test_worker_sync_lane_limits_are_shared(folder: Path) -> None:
    """Where upstreams have a limit for each lane, the learned limit of a lane and its places hold for all workers."""
    workers = _workers(folder, 2, LimitConfig("gradient", 2, 100))
    for worker in workers:
        worker.member.split_by_lane(("short", "long"))
        worker.sync.attach([("up", worker.member)], [("m", worker.budget)])
    one, two = (worker.member for worker in workers)
    norm = one.baselines.baseline_for("m", 1, False)
    acquire_permit(one, norm, workers[0].loop.now(), lane="long")
    workers.pass_time(0.1)
    one.limiter_of("long").limit.adopt_value(2.0)
    workers.pass_time(0.1)
    assert [member.limiter_of("long").limit.value for member in (one, two)] == [2.0, 2.0]
    assert [member.limiter_of("short").limit.value for member in (one, two)] == [100.0, 100.0]
    acquire_permit(two, norm, workers[0].loop.now(), lane="long")
    assert not two.limiter_of("long").has_room
    assert two.limiter_of("short").has_room
    one.split_by_lane(())
    workers[0].sync.attach([("up", one)], [("m", workers[0].budget)])
    assert one.limiter_of("long") is one.whole_limiter
    assert one.has_room
