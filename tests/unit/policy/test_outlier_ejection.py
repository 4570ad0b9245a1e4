"""policy.routing.outlier_ejection: upstreams far worse than their peers."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.policy.routing.outlier_ejection import LONGEST_S, EjectConfig, Outliers

NAMES = ("a", "b", "c", "d")
N_BYTES = 4000


class Fleet:
    """Upstreams that are called ten times a second each, as long as they are not out."""

    def __init__(self, config: EjectConfig | None = None) -> None:
        self.outliers = Outliers(config or EjectConfig(enabled=True))
        self.now = 0.0
        self.n_calls = 0

    def run(self, seconds: float, bad: str = "", *, ttft_s: float = 0.2, fails_each: int = 0,
            n_bytes: int = N_BYTES) -> None:
        """Let some time pass in which `bad` is slow, or fails one call in so many."""
        until = self.now + seconds
        while self.now < until:
            self.now += 0.1
            self.n_calls += 1
            for name, share in zip(NAMES, self.outliers.traffic_shares(NAMES, self.now), strict=True):
                if share <= 0:
                    continue
                if name == bad and fails_each and self.n_calls % fails_each == 0:
                    self.outliers.record_failure(name)
                else:
                    self.outliers.record_first_token(name, ttft_s if name == bad else 0.2, n_bytes if name == bad
                                                     else N_BYTES,
                                           is_whole=False)

    @property
    def out(self) -> set[str]:
        """Who is left out now."""
        return set(self.outliers.ejected(self.now))


def test_outliers_failing_upstream_is_ejected_and_returns() -> None:
    """One call in five, of which a breaker would see nothing; for 30 s, then by a share that grows."""
    fleet = Fleet()
    fleet.run(20)
    assert fleet.out == set()
    fleet.run(6, "b", fails_each=5)
    assert fleet.out == {"b"}
    assert "of its calls failed" in fleet.outliers.ejected(fleet.now)["b"]
    fleet.run(25)
    assert fleet.out == {"b"}
    fleet.run(6)
    assert fleet.out == set()
    assert 0.1 <= fleet.outliers.traffic_shares(NAMES, fleet.now)[1] < 0.5
    fleet.run(20)
    assert fleet.outliers.traffic_shares(NAMES, fleet.now) == [1.0] * 4


def test_outliers_common_failures_eject_none() -> None:
    """A bad minute of all is no reason to leave one out."""
    outliers = Outliers(EjectConfig(enabled=True))
    for n in range(400):
        for name in NAMES:
            if n % 4 == 0:
                outliers.record_failure(name)
            else:
                outliers.record_first_token(name, 0.2, N_BYTES, is_whole=False)
        assert outliers.traffic_shares(NAMES, n / 10) == [1.0] * 4


def test_outliers_slow_upstream_is_ejected() -> None:
    """Four times as slow for the same prompts; the same time for longer prompts is nothing."""
    fleet = Fleet()
    fleet.run(30, "c", ttft_s=0.8)
    assert fleet.out == {"c"}
    long = Fleet()
    long.run(30, "c", ttft_s=0.8, n_bytes=100 * N_BYTES)
    assert long.out == set()


def test_outliers_repeated_ejection_lasts_longer() -> None:
    """30 s, then 60, up to five minutes."""
    fleet, spells, began_at = Fleet(), [], 0.0
    for _ in range(4000):
        was_out = "a" in fleet.out
        fleet.run(0.5, "a", fails_each=2)
        is_out = "a" in fleet.out
        if is_out and not was_out:
            began_at = fleet.now
        elif was_out and not is_out:
            spells.append(fleet.now - began_at)
    assert spells[:3] == pytest.approx([30, 60, 90], abs=2)
    assert max(spells) <= LONGEST_S + 1


@pytest.mark.parametrize(("max_share", "n_out"), [(0.1, 0), (0.3, 1), (0.5, 2)])
def test_outliers_max_share_bounds_ejections(max_share: float, n_out: int) -> None:
    """Of four, three are slow, each far more than the next: by the median of the others' two are outliers."""
    outliers = Outliers(EjectConfig(enabled=True, max_share=max_share))
    for n in range(300):
        shares = outliers.traffic_shares(NAMES, n / 10)
        for name, ttft_s in zip(NAMES, (0.1, 0.2, 5.0, 50.0), strict=True):
            outliers.record_first_token(name, ttft_s, N_BYTES, is_whole=False)
    assert [share == 0 for share in shares].count(True) == n_out


@given(calls=st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(["fail", "slow", "lost", "well"])), max_size=400),
       n=st.integers(1, 4), max_share=st.sampled_from([0.1, 0.5, 0.99]))
def test_outliers_never_eject_all(calls: list[tuple[str, str]], n: int, max_share: float) -> None:
    """Whatever becomes of calls, at most `max_share` are out at a time, so one at least is not."""
    outliers = Outliers(EjectConfig(enabled=True, max_share=max_share, min_calls=5))
    names, now = NAMES[:n], 0.0
    for name, what in calls:
        now += 0.3
        if what == "fail":
            outliers.record_failure(name)
        elif what == "lost":
            outliers.record_lower_bound(name, 9.0, N_BYTES, is_whole=False)
        else:
            outliers.record_first_token(name, 9.0 if what == "slow" else 0.1, N_BYTES, is_whole=False)
        shares = outliers.traffic_shares(names, now)
        assert sum(share == 0 for share in shares) <= max_share * n
        assert max(shares) > 0


@pytest.mark.parametrize("wrong", [{"slow_factor": 1.0}, {"min_calls": 1}, {"ejection_s": 0.0}, {"max_share": 1.0}])
def test_eject_config_out_of_bounds_is_rejected(wrong: dict[str, Any]) -> None:
    """Each with its own name first."""
    with pytest.raises(ValueError, match=next(iter(wrong))):
        EjectConfig(**wrong)


def test_outliers_upstream_with_most_of_a_slow_model_is_not_ejected() -> None:
    """Affinity sends a reasoning model's conversations to one upstream: its first tokens are slow, like anywhere else."""
    outliers, now = Outliers(EjectConfig(enabled=True)), 0.0
    for _ in range(100):
        now += 0.1
        for name in NAMES:
            outliers.record_first_token(name, 0.3, N_BYTES, model="quick", is_whole=False)
            outliers.record_first_token(name, 20.0, N_BYTES, model="reasoning", is_whole=False)
            for _ in range(9 if name == "b" else 0):
                outliers.record_first_token(name, 20.0, N_BYTES, model="reasoning", is_whole=False)
        outliers.traffic_shares(NAMES, now)
    assert outliers.ejected(now) == {}
