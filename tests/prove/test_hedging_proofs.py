"""The claim `mixed` holds in virtual time, takes every figure over sockets, and falls short without hedges."""

from math import isnan

import pytest

from stayfast.lab.claims.mixed import Mixed, Rivals, make_load
from stayfast.lab.claims.mixed import run_in_virtual_time as mixed_in_virtual_time
from stayfast.lab.harness.claim import Extent
from stayfast.lab.harness.virtual import run_virtual
from stayfast.policy.resilience.hedge import HedgeConfig
from tests.prove.running import run


def test_mixed_claim_virtual_time_beats_fixed_timeouts() -> None:
    """By a fifth with default settings, by a third with as many calls as the best timeout."""
    load = make_load(50.0, 60.0, 30.0)
    rivals = Rivals(load, 1)
    by_default, tuned, plain = (
        rivals.compare("", run_virtual(mixed_in_virtual_time, load, config, 1), 1.0)
        for config in (HedgeConfig(), HedgeConfig(budget=rivals.budget), HedgeConfig("off")))
    for figures, least, most_calls in ((by_default, 0.8, 1.1), (tuned, 0.67, rivals.best.calls)):
        ratio, calls, lost = (next(figure.value for figure in figures if words in figure.name)
                              for words in ("p99, over", "calls", "without an answer"))
        assert ratio < least
        assert calls <= most_calls
        assert lost == 0
    assert not all(figure.holds for figure in plain)


def test_rivals_use_same_random_numbers_as_gateway() -> None:
    """Without hedges a request to the same provider takes as long as in `direct`, to the microsecond."""
    load = make_load(20.0, 10.0, 0.0)
    rivals = Rivals(load, 1)
    samples = run_virtual(mixed_in_virtual_time, load, HedgeConfig("off"), 1).samples
    waits_s = dict(zip(samples.ints["number"], (first - at for first, at in zip(
        samples.floats["first_s"], samples.floats["at_s"], strict=True)), strict=True))
    same = [abs(waits_s[shot.number] - wait_s) < 1e-6 for shot, wait_s in zip(
        rivals.shots, rivals.direct.waits_s, strict=True)]
    assert sum(same) > len(same) / 3  # of two providers the other was asked for the rest


@pytest.mark.sockets
def test_mixed_claim_takes_every_figure() -> None:
    """The run is too short for the goals."""
    finding = run(Mixed(quick=Extent(1000, 1.0, warmup_s=1.0)))
    assert [figure.name for figure in finding.figures if isnan(figure.value)] == []
    assert any(figure.goal is not None for figure in finding.figures)
