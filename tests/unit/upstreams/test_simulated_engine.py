"""upstreams.simulated.engine: waits rise with load, memory is finite, and the longest answer holds up its batch."""

import asyncio
from typing import Any

import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

from stayfast.core.clock import SystemClock
from stayfast.lab.simulated import EngineModel, FaultKind, FaultRule, Mixture, Provider, ProviderConfig
from stayfast.testing import SimLoop, run
from tests.unit.upstreams.simulated_rig import Heard, chat, hear, hear_for, hear_many

PLAIN = EngineModel(prefill_tokens_per_s=1000, decode_step_s=0.010, decode_step_per_sequence_s=0.001, decode_share=1.0,
                    kv_tokens=100_000, max_running=64)


def provider(loop: SimLoop, **fields: Any) -> Provider:
    """One whose every wait is its engine's."""
    model = EngineModel(**{name: fields.pop(name, getattr(PLAIN, name)) for name in PLAIN.__slots__})
    return Provider("p", ProviderConfig(engine=model, **fields), loop)


def test_simulated_engine_single_request_has_exact_times() -> None:
    """Prefill by its length, then a step a token."""
    async def main(loop: SimLoop) -> Heard:
        return await hear(provider(loop), chat(11, n_prompt_tokens=500))

    heard = run(main)
    assert heard.head_at == pytest.approx(0.5)
    assert heard.took_s == pytest.approx(0.5 + 10 * 0.011)
    gaps = [b - a for (a, _), (b, _) in zip(heard.parts, heard.parts[1:], strict=False)]
    assert gaps == pytest.approx([0.011] * 10)


def test_simulated_engine_prefills_are_fifo() -> None:
    """Three prompts of half a second each: the third has waited for two."""
    async def main(loop: SimLoop) -> list[Heard]:
        return await hear_many(loop, provider(loop), [(0, chat(2, n_prompt_tokens=500)) for _ in range(3)])

    assert [heard.head_at for heard in run(main)] == pytest.approx([0.5, 1.0, 1.5])


def test_simulated_engine_shared_prefix_is_not_prefilled_again() -> None:
    """Two thirds of it are cached, and usage says so; an engine without a cache computes all of it."""
    async def main(loop: SimLoop) -> list[Heard]:
        first, second = (chat(2, n_prompt_tokens=n, blocks=tuple(range(n // 64)), include_usage=True)
                         for n in (640, 960))
        one = provider(loop, cache_tokens=1000)
        found = [await hear(one, first), await hear(one, second)]
        assert b'"cached_tokens":640' in b"".join(data for _, data in found[1].parts)
        return [*found, await hear(provider(loop, cache_tokens=0), second)]

    assert [heard.head_at for heard in run(main)] == pytest.approx([0.64, 0.32, 0.96])


def test_simulated_engine_token_gaps_grow_with_batch() -> None:
    """Twenty together decode at a step of 10 + 20 ms, one alone at 11 ms."""
    async def main(loop: SimLoop) -> list[Heard]:
        return await hear_many(loop, provider(loop), [(0, chat(101)) for _ in range(20)])

    for heard in run(main):
        assert heard.took_s == pytest.approx(100 * 0.030, rel=0.01)


def test_simulated_engine_prefill_slows_decoding() -> None:
    """With a share of one half, a token during a prefill takes two steps."""
    async def main(loop: SimLoop) -> Heard:
        one = provider(loop, decode_share=0.5, decode_step_per_sequence_s=0.0)
        return (await hear_many(loop, one, [(0, chat(101)), (0.1, chat(1, n_prompt_tokens=500))]))[0]

    assert run(main).took_s == pytest.approx(1.0 + 0.25)


def test_simulated_engine_latency_rises_with_load() -> None:
    """The median of the time to the end at half, once and twice an engine's capacity: each worse than the one before."""
    def median_s(per_s: float) -> float:
        async def main(loop: SimLoop) -> list[Heard]:
            asks = [(number / per_s, chat(50, n_prompt_tokens=50)) for number in range(300)]
            return await hear_many(loop, provider(loop, max_running=8), asks)

        took = sorted(heard.took_s for heard in run(main))
        return took[len(took) // 2]

    # eight at a time, 49 steps of 18 ms each: about 9 requests a second
    slack, full, over = median_s(4), median_s(9), median_s(18)
    assert slack < full < over
    assert over > 5 * slack


def test_simulated_engine_memory_limit_queues_requests() -> None:
    """With room for two of them, the third starts when the first has ended."""
    async def main(loop: SimLoop) -> list[Heard]:
        small = provider(loop, kv_tokens=250, decode_step_per_sequence_s=0.0, prefill_tokens_per_s=1e6)
        return await hear_many(loop, small, [(0, chat(101, n_prompt_tokens=19)) for _ in range(3)])

    heads = [heard.head_at for heard in run(main)]
    assert heads[0] < 0.001
    assert heads[1] < 0.001
    assert heads[2] == pytest.approx(1.0, rel=0.01)


def test_simulated_engine_full_queue_is_refused() -> None:
    """With `max_waiting`, one more gets 503 at once."""
    async def main(loop: SimLoop) -> list[Heard]:
        small = provider(loop, max_running=1, max_waiting=1)
        return await hear_many(loop, small, [(0.01 * number, chat(100)) for number in range(3)])

    assert [heard.head.status for heard in run(main) if heard.head is not None] == [200, 200, 503]


def test_static_engine_batch_waits_for_longest_answer() -> None:
    """A whole answer of 10 tokens beside one of 200 leaves with it; continuous batching lets it go. The next batch waits."""
    def took_s(batching: str) -> list[float]:
        async def main(loop: SimLoop) -> list[Heard]:
            model = provider(loop, batching=batching, decode_step_per_sequence_s=0.0)
            asks = [(0.0, chat(11, stream=False)), (0.0, chat(201, stream=False)), (0.5, chat(11, stream=False))]
            return await hear_many(loop, model, asks)

        return [heard.took_s for heard in run(main)]

    assert took_s("static") == pytest.approx([2.05, 2.05, 1.55 + 0.05 + 0.1], rel=0.01)
    assert took_s("continuous") == pytest.approx([0.1, 2.0, 0.1], rel=0.01)


def test_static_engine_pads_prompts_to_longest() -> None:
    """Two prompts of 10 and 500 tokens cost as much as two of 500."""
    async def main(loop: SimLoop) -> list[Heard]:
        asks = [(0.0, chat(2, n_prompt_tokens=10)), (0.0, chat(2, n_prompt_tokens=500))]
        return await hear_many(loop, provider(loop, batching="static"), asks)

    assert [heard.head_at for heard in run(main)] == pytest.approx([1.05, 1.05])


@pytest.mark.parametrize("batching", ["continuous", "static"])
def test_simulated_engine_cancelled_request_frees_memory(batching: str) -> None:
    """Everybody leaves in every state; the engine is empty and serves the next one as if nothing had been."""
    async def main(loop: SimLoop) -> float:
        one = provider(loop, batching=batching, max_running=3, kv_tokens=2000)
        async with asyncio.TaskGroup() as group:
            for number in range(12):
                group.create_task(hear_for(0.03 + 0.06 * number, one, chat(200, n_prompt_tokens=100)))
        await asyncio.sleep(0.2)
        assert one.engine is not None
        assert (one.engine.n_running, one.engine.n_waiting) == (0, 0)
        assert one.counts.outcomes == {"cancelled": 12}
        return (await hear(one, chat(11))).took_s

    assert run(main) == pytest.approx(0.11 + (0.05 if batching == "static" else 0.0), rel=0.01)


def test_simulated_engine_unnoticed_hangup_keeps_its_slot() -> None:
    """A provider that does not notice goes on decoding for nobody: the next one decodes beside it, and all is counted."""
    async def main(loop: SimLoop) -> tuple[Heard, Provider]:
        one = provider(loop, cancels_on_disconnect=False)
        await hear_for(0.1, one, chat(1000))
        heard = await hear(one, chat(11))
        assert (one.counts.n_running, one.counts.n_tokens_unread) == (1, 0)
        await asyncio.sleep(20)
        return heard, one

    heard, one = run(main)
    assert heard.took_s == pytest.approx(10 * 0.012)
    assert one.counts.n_running == 0
    assert one.counts.n_tokens_unread == 1000
    assert one.counts.n_tokens_after_hangup == 990


@pytest.mark.parametrize(("left_s", "n_after"), [(0.5, 101), (1.05, 101), (2.0, 91)])
def test_simulated_engine_unnoticed_hangup_before_start(left_s: float, n_after: int) -> None:
    """Who leaves before, in or after the prefill still gets all of it made: one second of waiting, one of prefill."""
    async def main(loop: SimLoop) -> Provider:
        model = EngineModel(prefill_tokens_per_s=100, decode_step_s=0.01, decode_step_per_sequence_s=0.0)
        one = Provider("p", ProviderConfig(ttft=Mixture(1.0), engine=model, cancels_on_disconnect=False), loop)
        await hear_for(left_s + 0.095, one, chat(101, n_prompt_tokens=100))
        await asyncio.sleep(2.95 - loop.now())
        assert (one.counts.n_running, one.counts.outcomes) == (1, {})
        await asyncio.sleep(0.1)
        return one

    counts = run(main).counts
    assert (counts.n_running, counts.outcomes) == (0, {"cancelled": 1})
    assert (counts.n_tokens_unread, counts.n_tokens_after_hangup) == (101, n_after)


def test_simulated_engine_stalls_delay_tokens() -> None:
    """After a stall of a second the tokens made meanwhile come at once."""
    async def main(loop: SimLoop) -> Heard:
        rule = FaultRule(FaultKind.STALL, seconds=1.0, after_chunks=3)
        return await hear(provider(loop, faults=(rule,)), chat(20))

    instants = [at for at, _ in run(main).parts]
    assert instants[3] == pytest.approx(1.0 + 3 * 0.011)
    assert instants[-1] == pytest.approx(instants[3])


@pytest.mark.parametrize("batching", ["continuous", "static"])
def test_simulated_engine_runs_on_real_loop(batching: Any) -> None:
    """uvloop rounds timers to milliseconds: nothing is early by more, and nothing spins or breaks."""
    async def main() -> list[Heard]:
        model = EngineModel(batching, decode_step_s=0.0015, batch_window_s=0.01)
        one = Provider("p", ProviderConfig(engine=model), SystemClock())
        async with asyncio.TaskGroup() as group:
            asks = [chat(20, n_prompt_tokens=10, stream=stream) for stream in [True, False] * 4]
            tasks = [group.create_task(hear(one, ask)) for ask in asks]
        return [task.result() for task in tasks]

    for heard in uvloop.run(main()):
        assert heard.answering.outcome == "completed"
        assert heard.took_s >= 19 * 0.0015 - 0.002


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 2), st.integers(0, 300), st.integers(1, 60), st.floats(0.01, 3), st.booleans()),
                min_size=1, max_size=25), st.sampled_from(["continuous", "static"]), st.integers(300, 1000))
def test_simulated_engine_random_requests_leave_no_state(
        asks: list[tuple[float, int, int, float, bool]], batching: str, kv_tokens: int) -> None:
    """Every request ends or is left, memory and places all come back, and no answer is faster than the engine can."""
    async def main(loop: SimLoop) -> None:
        one = provider(loop, batching=batching, kv_tokens=kv_tokens, max_running=4)

        async def ask(at: float, n_prompt: int, n_output: int, patience_s: float, stream: bool) -> None:
            await asyncio.sleep(at)
            answering = await hear_for(patience_s, one, chat(n_output, n_prompt_tokens=n_prompt, stream=stream))
            assert answering.ended_at is not None
            if answering.outcome == "completed":
                assert answering.ended_at - at >= n_prompt / 1000 + (n_output - 1) * 0.011 - 1e-6

        async with asyncio.TaskGroup() as group:
            for each in asks:
                group.create_task(ask(*each))
        await asyncio.sleep(60)
        assert one.engine is not None
        assert (one.engine.n_running, one.engine.n_waiting, one.engine.n_kv_free) == (0, 0, kv_tokens)
        assert sum(one.counts.outcomes.values()) == len(asks)

    run(main)
