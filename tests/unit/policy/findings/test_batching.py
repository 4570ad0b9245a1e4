"""The verdict on how an upstream batches, from timings of simulated engines, providers and calls made up here."""

import asyncio
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.core.deadline import Timeouts
from stayfast.core.events import AttemptDone
from stayfast.lab.simulated import PRESETS, EngineModel, ProviderConfig, Simulated
from stayfast.policy.findings.batching import CallTiming, judge_batching, weigh_calls
from stayfast.testing import SimLoop, run
from tests.flow.rig import Rig, chat, read

TIMES = st.floats(0, 100)


def timings(config: ProviderConfig, *, calls_per_s: float, n: int = 250, seed: int = 1) -> list[CallTiming]:
    """Poisson arrivals of streamed requests with answers of different lengths, through a gateway."""
    async def main(loop: SimLoop) -> list[CallTiming]:
        limits = Timeouts(total_s=600, first_token_s=120)  # a saturated engine has a long queue
        rig, rng = Rig(loop, upstreams=[Simulated("sim", config, loop)], timeouts=limits), Random(seed)

        async def serve() -> None:
            body = chat(max_tokens=round(rng.uniform(20, 300)), ignore_eos=True,
                        messages=[{"role": "user", "content": "word " * round(rng.uniform(20, 400))}])
            await read(await rig.serve(body))

        running = []
        for number in range(n):
            rate = calls_per_s * (0.3 if number % 100 < 40 else 1.4)  # quiet and busy times
            await asyncio.sleep(rng.expovariate(rate))
            running.append(asyncio.create_task(serve()))
        await asyncio.gather(*running)
        return [CallTiming(one.began_at, one.began_at + one.ttft_s, one.began_at + (one.last_s or 0.0), one.usage.output)
                for one in rig.sink.facts_of(AttemptDone) if one.ttft_s is not None and one.usage is not None]

    return run(main)


def engine(**fields: Any) -> ProviderConfig:
    return ProviderConfig(engine=EngineModel(**fields))


@pytest.mark.parametrize("calls_per_s", [4.0, 15.0])
def test_judge_batching_continuous_engine_is_continuous(calls_per_s: float) -> None:
    config = engine(decode_step_per_sequence_s=0.0005)
    assert judge_batching(weigh_calls(timings(config, calls_per_s=calls_per_s))) == "continuous"


def test_judge_batching_saturated_continuous_engine_is_not_static() -> None:
    found = weigh_calls(timings(engine(max_running=4, decode_step_per_sequence_s=0.002), calls_per_s=4.0))
    assert found.n_joined > 0.7 * found.n_chances
    assert judge_batching(found) in ("continuous", "")


@pytest.mark.parametrize("calls_per_s", [2.0, 8.0])
def test_judge_batching_static_engine_is_static(calls_per_s: float) -> None:
    config = engine(batching="static", max_running=16)
    assert judge_batching(weigh_calls(timings(config, calls_per_s=calls_per_s))) == "static"


def test_judge_batching_one_slot_is_single() -> None:
    assert judge_batching(weigh_calls(timings(engine(max_running=1), calls_per_s=0.8))) == "single"


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("seed", range(3))
def test_judge_batching_hosted_provider_is_unknown(preset: str, seed: int) -> None:
    found = weigh_calls(timings(ProviderConfig(preset=preset, seed=seed), calls_per_s=5.0, seed=seed))
    assert found.n_chances >= 20 or preset == "instant"
    assert judge_batching(found) == ""


def test_judge_batching_few_calls_is_unknown() -> None:
    config = engine(batching="static")
    assert judge_batching(weigh_calls(timings(config, calls_per_s=2.0, n=15))) == ""
    assert judge_batching(weigh_calls([])) == ""


def test_merge_evidence_of_two_workers_has_the_verdict_of_all() -> None:
    calls = timings(engine(batching="static"), calls_per_s=6.0)
    one, other = weigh_calls(calls[::2]), weigh_calls(calls[1::2])
    one.merge(other)
    assert one.n_calls == len(calls)
    assert judge_batching(one) == "static"


@given(st.lists(st.tuples(TIMES, TIMES, TIMES, st.integers(0, 500)), max_size=30))
def test_weigh_calls_any_timings_are_counted_within_bounds(parts: list[tuple[float, float, float, int]]) -> None:
    found = weigh_calls([CallTiming(began, began + wait, began + wait + took, n) for began, wait, took, n in parts])
    assert 0 <= found.n_joined <= found.n_chances <= found.n_calls == len(parts)
    assert judge_batching(found) in ("continuous", "static", "single", "")
