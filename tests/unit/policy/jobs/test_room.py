"""How many jobs an upstream has room for."""

from math import inf, log

from hypothesis import given
from hypothesis import strategies as st

from stayfast.policy.jobs.room import (
    BASELINE_S,
    BLOCK,
    MEASURE_S,
    N_BASELINE,
    QUIET_S,
    JobAllowance,
    UpstreamUse,
    room_for_jobs,
)

EVERY_S = 0.2


def feed(allowance: JobAllowance, now: float, ttft_s: float, n_jobs: int, n: int = N_BASELINE) -> float:
    """So many first tokens of interactive requests; returns the instant after them."""
    for _ in range(n):
        allowance.note_interactive(now)
        allowance.add_first_token(now, ttft_s, 100, 3, n_jobs)
        now += EVERY_S
    return now


def measured(now: float = 0.0) -> tuple[JobAllowance, float]:
    """An allowance with a baseline of 0.3 s."""
    allowance = JobAllowance(now)
    for _ in range(BLOCK):
        allowance.note_interactive(now)
    assert allowance.n_allowed(now, 100) == 0  # it measures first
    return allowance, feed(allowance, now, 0.3, 0)


@given(limit=st.integers(1, 1000) | st.just(inf), n_in_flight=st.integers(0, 1000), n_jobs=st.integers(0, 1000),
       n_allowed=st.integers(0, 1000), is_quiet=st.booleans())
def test_room_is_never_more_than_the_free_places_without_the_reserve(
        *, limit: float, n_in_flight: int, n_jobs: int, n_allowed: int, is_quiet: bool) -> None:
    """And nothing while an interactive request waits."""
    use = UpstreamUse(limit, n_in_flight + n_jobs, n_jobs)
    room = room_for_jobs(use, n_allowed, is_quiet=is_quiet)
    assert 0 <= room <= max(0, n_allowed - n_jobs)
    if room and limit != inf:
        assert n_in_flight + n_jobs + room <= limit - int(limit / 4)
        assert is_quiet or n_in_flight + n_jobs + room < limit
    assert room_for_jobs(UpstreamUse(limit, n_in_flight, 0, is_waited_for=True), n_allowed, is_quiet=is_quiet) == 0


def test_allowance_without_any_traffic_grows_to_the_limit_in_seconds() -> None:
    """At night a machine is the jobs'."""
    allowance = JobAllowance(0.0)
    assert allowance.n_allowed(0.0, 64) == 1
    assert allowance.n_allowed(1.0, 64) == 4
    assert allowance.n_allowed(4.0, 64) == 64


def test_allowance_after_a_quiet_time_returns_to_its_last_value_with_the_next_request() -> None:
    """What a quiet time allowed says nothing about a busy one."""
    allowance, now = measured()
    before = allowance.n_allowed(now, 64)
    assert allowance.n_allowed(now + QUIET_S + 0.1, 64) == before
    assert allowance.n_allowed(now + QUIET_S + 5, 64) == 64
    allowance.note_interactive(now + QUIET_S + 6)
    assert allowance.n_allowed(now + QUIET_S + 6, 64) == before


def test_allowance_grows_while_nothing_is_slower() -> None:
    """By one, or by a quarter, for each decision."""
    allowance, now = measured()
    values = []
    for _ in range(5):
        before, n_jobs = allowance.allowed, int(allowance.allowed)
        now = feed(allowance, now, 0.3, n_jobs, n=4 * BLOCK + 1)
        assert allowance.allowed <= before + max(1.0, before / 4)
        values.append(allowance.allowed)
    assert values == sorted(values)
    assert values[-1] > values[0]


def test_allowance_that_is_not_used_does_not_grow() -> None:
    """What few jobs do tells nothing about many."""
    allowance, now = measured()
    allowance.allowed = 10.0
    feed(allowance, now, 0.3, 2, n=200)
    assert allowance.allowed == 10.0


@given(slower=st.floats(1.06, 10.0))
def test_allowance_shrinks_by_a_factor_while_requests_are_slower(slower: float) -> None:
    """Beyond the target of 5 %, never below one job."""
    allowance, now = measured()
    allowance.allowed = 40.0
    now = feed(allowance, now, 0.3 * slower, 40, n=4 * BLOCK + 1)
    assert 20.0 <= allowance.allowed <= 36.0
    assert abs(allowance.excess - log(slower)) < 0.05
    feed(allowance, now, 0.3 * slower, 40, n=1000)
    assert allowance.allowed >= 1.0


def test_allowance_of_slower_tokens_shrinks_too() -> None:
    """An engine whose first tokens come as ever, but whose answers take longer."""
    allowance, now = measured()
    for _ in range(N_BASELINE):
        allowance.add_gap(now, 0.01, 3, 0)
    allowance.allowed = 10.0
    for _ in range(100):
        allowance.add_gap(now, 0.013, 3, 10)
        now = feed(allowance, now, 0.3, 10, n=1)
    assert allowance.allowed < 10.0


def test_allowance_measures_again_when_its_baseline_is_old() -> None:
    """No new jobs until there are samples without jobs, or for MEASURE_S."""
    allowance, now = measured()
    assert allowance.n_allowed(now, 64) >= 1
    for _ in range(int(BASELINE_S) + 1):
        now += 1
        allowance.note_interactive(now)
    assert allowance.n_allowed(now, 64) == 0
    renewed = feed(allowance, now, 0.5, 0)
    assert allowance.n_allowed(renewed, 64) >= 1


def test_allowance_after_a_few_requests_lets_one_job_run_without_a_baseline() -> None:
    """A try by hand must not stop the first batch for half a minute."""
    allowance, now = JobAllowance(0.0), 0.0
    for _ in range(3):
        for _ in range(BLOCK - 1):
            allowance.note_interactive(now)
            assert allowance.n_allowed(now, 64) == 1
            now += EVERY_S
        now += QUIET_S


def test_allowance_does_not_wait_for_ever_for_a_baseline() -> None:
    """With few requests, one job must do."""
    allowance = JobAllowance(0.0)
    now = 0.0
    for _ in range(BLOCK):
        allowance.note_interactive(now)
    assert allowance.n_allowed(now, 64) == 0
    for _ in range(int(MEASURE_S) + 1):
        now += 1
        allowance.note_interactive(now)
    assert allowance.n_allowed(now, 64) == 1


@given(samples=st.lists(st.tuples(st.floats(0, 100), st.integers(0, 10**6), st.integers(0, 500), st.integers(0, 50),
                                  st.floats(0, 100)), max_size=200), limit=st.integers(1, 500))
def test_allowance_stays_within_bounds_for_any_samples(samples: list[tuple[float, int, int, int, float]],
                                                       limit: int) -> None:
    """No sample breaks it."""
    allowance, now = JobAllowance(0.0), 0.0
    for ttft_s, n_tokens, n_interactive, n_jobs, wait_s in samples:
        now += wait_s
        allowance.note_interactive(now)
        allowance.add_first_token(now, ttft_s, n_tokens, n_interactive, n_jobs)
        assert 0 <= allowance.n_allowed(now, limit) <= limit
        assert allowance.allowed >= 1.0
