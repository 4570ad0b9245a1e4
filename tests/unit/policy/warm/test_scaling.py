"""How many replicas a pool needs."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.policy.warm.config import ReplicaPoolConfig
from stayfast.policy.warm.scaling import HoltTrend, PoolLoad, PoolScaler, merge_loads

CALM = PoolLoad(n_replicas=2, n_ready=2, running=4, places=40.0, cold_start_s=30.0)


def advise(load: PoolLoad, config: ReplicaPoolConfig | None = None) -> tuple[int, str]:
    """Of the first look at a pool; the quiet window holds what is ready."""
    advice = PoolScaler(config or ReplicaPoolConfig()).scale(load, 0.0)
    return advice.replicas_wanted, advice.why


@pytest.mark.parametrize(("fields", "wanted", "why"), [
    ({"queue": 2}, 3, "requests wait"),
    ({"running": 60}, 5, "60 requests, against 0.7 of 20 places each"),  # 60 / 14
    ({"backlog_tokens": 30_000.0, "prefill_tokens_per_s": 5000.0}, 4, "backlog 3 s of prefill"),
    ({"kv_used_ratio": 0.95}, 3, "KV memory 95% used"),
    ({}, 2, "2 were needed in the last"),
])
def test_scaler_each_measure_decides(fields: dict[str, float], wanted: int, why: str) -> None:
    found, reason = advise(msgspec.structs.replace(CALM, **fields))
    assert (found, why in reason) == (wanted, True), reason


def test_scaler_unknown_measures_are_not_zero() -> None:
    """Without places, rate and KV memory a busy pool keeps its size, and says why."""
    found, why = advise(PoolLoad(n_replicas=3, n_ready=3, running=50))
    assert found == 3
    assert "only the queue is known" in why


def test_scaler_falls_only_after_the_quiet_window() -> None:
    scaler, busy = PoolScaler(ReplicaPoolConfig(quiet_s=300.0)), msgspec.structs.replace(CALM, running=60)
    assert scaler.scale(busy, 0.0).replicas_wanted == 5
    assert [scaler.scale(CALM, at).replicas_wanted for at in (5.0, 299.0, 301.0, 306.0)] == [5, 5, 1, 1]


def test_scaler_long_cold_starts_make_the_window_longer() -> None:
    scaler, calm = PoolScaler(ReplicaPoolConfig(quiet_s=300.0)), msgspec.structs.replace(CALM, cold_start_s=200.0)
    scaler.scale(msgspec.structs.replace(calm, running=60), 0.0)
    assert scaler.scale(calm, 590.0).replicas_wanted == 5
    assert scaler.scale(calm, 605.0).replicas_wanted == 1


def test_scaler_growing_load_is_met_a_cold_start_ahead() -> None:
    """The same load at the same instant, grown or steady."""
    grown, steady = PoolScaler(ReplicaPoolConfig()), PoolScaler(ReplicaPoolConfig())
    for n in range(20):
        rising = grown.scale(msgspec.structs.replace(CALM, running=10 + 2 * n), 5.0 * n)
        flat = steady.scale(msgspec.structs.replace(CALM, running=48), 5.0 * n)
    assert rising.replicas_wanted > flat.replicas_wanted
    assert "in 30 s" in rising.why


def test_scaler_zero_only_where_the_pool_allows_it() -> None:
    idle = PoolLoad(n_replicas=1, n_ready=0)
    assert advise(idle, ReplicaPoolConfig())[0] == 1
    assert advise(idle, ReplicaPoolConfig(min_warm=0))[0] == 1
    assert advise(idle, ReplicaPoolConfig(min_warm=0, scale_to_zero=True))[0] == 0
    assert advise(msgspec.structs.replace(idle, queue=1), ReplicaPoolConfig(min_warm=0, scale_to_zero=True))[0] == 1


def test_scaler_objective_below_the_floor_is_reported() -> None:
    assert "no number of replicas" in advise(msgspec.structs.replace(CALM, slo_s=0.2, floor_s=0.35))[1]
    assert "no number of replicas" not in advise(msgspec.structs.replace(CALM, slo_s=0.5, floor_s=0.35))[1]


COUNTS = st.integers(0, 500)
LOADS = st.builds(PoolLoad, n_replicas=st.integers(0, 20), n_ready=st.integers(0, 20), queue=COUNTS, running=COUNTS,
                  places=st.none() | st.floats(1, 1e4), backlog_tokens=st.none() | st.floats(0, 1e7),
                  prefill_tokens_per_s=st.none() | st.floats(1, 1e5), kv_used_ratio=st.none() | st.floats(0, 1),
                  engine_queue=st.none() | st.floats(0, 500))


@given(st.lists(st.tuples(LOADS, st.floats(0.1, 600)), min_size=1, max_size=20), st.integers(0, 5), st.integers(5, 30))
def test_scaler_advice_stays_within_its_bounds(loads: list[tuple[PoolLoad, float]], least: int, most: int) -> None:
    scaler, now = PoolScaler(ReplicaPoolConfig(min_warm=least, max_replicas=most)), 0.0
    for load, step_s in loads:
        now += step_s
        advice = scaler.scale(load, now)
        assert max(1, least) <= advice.replicas_wanted <= most
        assert advice.why


def test_merge_loads_adds_requests_and_takes_common_figures_once() -> None:
    one = PoolLoad(3, 2, 1, 5, 40.0, 1000.0, 900.0, n_first=10, n_late=1, engine_queue=4.0, waits=(3, 1, 5, 1))
    other = PoolLoad(3, 3, 2, 7, 40.0, None, None, 0.5, n_first=5, n_late=0, engine_queue=4.0, waits=(5, 2))
    whole = merge_loads(one, other)
    assert (whole.n_ready, whole.queue, whole.running, whole.places) == (3, 3, 12, 40.0)
    assert (whole.backlog_tokens, whole.kv_used_ratio, whole.n_first, whole.n_late) == (1000.0, 0.5, 15, 1)
    assert (whole.engine_queue, whole.waits) == (4.0, (3, 1, 5, 3))


def test_holt_trend_falling_series_is_not_looked_ahead() -> None:
    trend = HoltTrend()
    for n in range(10):
        trend.add(100.0 - n, 5.0 * n)
    assert trend.ahead(91.0, 60.0) == 91.0
