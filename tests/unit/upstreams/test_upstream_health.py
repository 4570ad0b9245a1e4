"""upstreams.state: a healthy upstream stays in use under every traffic pattern; a failing one does not."""

from collections.abc import Callable, Iterable, Iterator
from heapq import heappop, heappush
from itertools import islice
from math import inf
from random import Random
from types import SimpleNamespace
from typing import NamedTuple, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stayfast.core.events import BreakerChanged
from stayfast.core.types import Outcome
from stayfast.lab.load.arrivals import parse_arrivals
from stayfast.lab.simulated import PRESETS, Mixture
from stayfast.policy.resilience.breaker import BreakerConfig, BreakerState
from stayfast.policy.resilience.limits import LimitConfig
from stayfast.testing import RecordingSink
from stayfast.upstreams.base import Upstream
from stayfast.upstreams.state.permit import Permit, acquire_permit
from stayfast.upstreams.state.upstream_state import UpstreamState

ARRIVALS = ("poisson@3", "poisson@250", "gamma:0.006@30", "gamma:0.006@250", "mmpp:5:20s,400:5s", "mmpp:2:5s,1000:2s",
            "mmpp:0.2:60s,60:10s", "ramp:1..400:30s,0.5:30s,400:5s,0.1:60s,300:10s", "bursts")
TAIL = Mixture(0.191, 0.5, 0.068, 3.66, 0.745)
Draw = Callable[[Random, float, int], float | None]  # seconds to a first token, None: refused; of when and beside how many


class Played(NamedTuple):
    """What came of many calls."""

    n_held_up: int
    n_opened: int
    opened_at: float
    member: UpstreamState


def play(arrivals: Iterable[float], draw: Draw, seed: int, *, after_s: float = 2.0) -> Played:
    """Calls at these instants, each held for `after_s` beyond its first token."""
    rng, sink = Random(seed), RecordingSink()
    member = UpstreamState(cast("Upstream", SimpleNamespace(name="up")), LimitConfig(), BreakerConfig(), Random(seed), sink)
    ends: list[tuple[float, int, Permit, bool]] = []
    n_held_up = n = 0
    opened_at = inf

    def until(now: float) -> None:
        nonlocal n
        while ends and ends[0][0] <= now:
            at, _, place, is_first = heappop(ends)
            if is_first:
                place.record_first_token(at)
                n += 1
                heappush(ends, (at + after_s, n, place, False))
            else:
                place.release(Outcome.SUCCESS, at)

    for at in arrivals:
        until(at)
        if not member.has_room:
            n_held_up += 1
            continue
        n += 1
        if member.breaker.state is not BreakerState.CLOSED:
            opened_at = min(opened_at, at)
        place = acquire_permit(member, member.baselines.baseline_for("m", 20, False), at)
        seconds = draw(rng, at, member.n_in_flight)
        if seconds is None:
            place.release(Outcome.DROPPED, at, is_endpoint=False)
        else:
            heappush(ends, (at + seconds, n, place, True))
    until(1e9)
    opened = [fact for fact in sink.facts_of(BreakerChanged) if fact.state == BreakerState.OPEN.value]
    return Played(n_held_up, len(opened), opened_at, member)


def arriving(name: str, rng: Random, n: int) -> Iterator[float]:
    """So many instants."""
    if name == "bursts":
        return islice(bursts([(int(10 ** rng.uniform(0, 3.3)), 10 ** rng.uniform(-1, 2)) for _ in range(n)]), n)
    kind, _, rate = name.partition("@")
    return islice(parse_arrivals(kind, float(rate) if rate else None).instants(rng), n)


def bursts(sizes: Iterable[tuple[int, float]]) -> Iterator[float]:
    """So many at once, then a pause; and again."""
    at = 0.0
    for n, pause_s in sizes:
        yield from [at] * n
        at += pause_s


def of(mixture: Mixture) -> Draw:
    """An upstream that takes no notice of what it gets."""
    return lambda rng, at, n_beside: mixture.draw(rng, rng.random())


@pytest.mark.parametrize("name", [*PRESETS, "tail"])
def test_healthy_presets_open_no_breaker_and_lower_no_limit(name: str) -> None:
    """Whatever the traffic is like: nobody is held up and no breaker opens, in 18,000 calls each."""
    mixture = PRESETS[name].ttft if name in PRESETS else TAIL
    for number, arrivals in enumerate(ARRIVALS):
        played = play(arriving(arrivals, Random(number), 2000), of(mixture), number)
        assert (played.n_held_up, played.n_opened) == (0, 0), arrivals


@settings(max_examples=100, deadline=None)
@given(sizes=st.lists(st.tuples(st.integers(1, 400), st.floats(0, 60)), min_size=1, max_size=25),
       mixture=st.builds(Mixture, st.floats(0.005, 3), st.floats(0, 0.7), st.floats(0, 0.07), st.floats(0.005, 60),
                         st.just(0.7)),
       seed=st.integers(0, 2**32))
def test_healthy_tail_with_bursts_opens_no_breaker(sizes: list[tuple[int, float]], mixture: Mixture, seed: int) -> None:
    """Any bursts and lulls before any stationary heavy tail."""
    played = play(bursts(sizes), of(mixture), seed)
    assert (played.n_held_up, played.n_opened) == (0, 0)


@pytest.mark.parametrize("name", ["gpt-4o-like", "haiku-4.5-like", "gemini-flash-lite-like"])
def test_brownout_opens_breaker_and_keeps_limit(name: str) -> None:
    """Ten times slower from 60 s on: within 3 s; and nobody is held up, as nothing that we do makes it so."""
    mixture = PRESETS[name].ttft
    played = play(arriving("poisson@60", Random(1), 4200),
                  lambda rng, at, n_beside: mixture.draw(rng, rng.random()) * (10 if at >= 60 else 1), 1)
    assert played.n_held_up == 0
    assert 60 < played.opened_at < 63


def test_hanging_calls_open_breaker() -> None:
    """Nothing is answered any more, and still it is known."""
    played = play(arriving("poisson@60", Random(1), 4200), lambda rng, at, n_beside: 0.5 if at < 60 else 1000.0, 1)
    assert (played.n_opened, played.member.breaker.state) == (1, BreakerState.OPEN)


def test_refusals_lower_limit() -> None:
    """An upstream that runs forty and refuses the rest with 429 is soon asked for about forty."""
    played = play(arriving("poisson@60", Random(1), 6000), lambda rng, at, n_beside: 0.5 if n_beside <= 40 else None, 1)
    assert played.n_held_up > 1000
    assert 20 <= played.member.limit.value <= 60
    assert played.n_opened == 0


def test_own_queue_lowers_limit() -> None:
    """An engine that runs 32 at a time, each for two seconds, and is asked for twice that."""
    mixture = Mixture(0.05, 0.2)

    def draw(rng: Random, at: float, n_beside: int) -> float:
        return mixture.draw(rng, rng.random()) + max(0, n_beside - 32) * 2.0 / 32

    calm = list(arriving("poisson@12", Random(1), 500))
    played = play([*calm, *(calm[-1] + at for at in arriving("poisson@32", Random(2), 3000))], draw, 1)
    assert played.member.limit.value < 60
