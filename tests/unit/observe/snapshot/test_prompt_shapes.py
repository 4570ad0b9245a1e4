"""Rows of prompts from samples."""

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.core.samples import PromptSampled
from stayfast.core.snapshot import PromptRow
from stayfast.observe.snapshot.prompt_shapes import PromptShapes, merge_prompts

SAMPLES = st.lists(st.builds(
    PromptSampled, route=st.sampled_from(("a", "b")), at=st.floats(1000, 4000), input_tokens=st.floats(0, 1e6),
    n_messages=st.integers(0, 100), max_tokens=st.none() | st.integers(1, 1000), ttft_s=st.none() | st.floats(0, 100),
    e2e_s=st.none() | st.floats(0, 100), output_tokens=st.none() | st.integers(0, 1000), has_parts=st.booleans()),
    max_size=30)


def row_of(samples: list[PromptSampled]) -> PromptRow:
    (row,) = merge_prompts([parts_of(samples)])
    return row


def parts_of(samples: list[PromptSampled]) -> Any:
    shapes = PromptShapes()
    shapes.consume(samples)
    return shapes.collect(samples[-1].at if samples else 0.0)


def sample(number: int, **fields: Any) -> PromptSampled:
    return PromptSampled(**{"route": "chat", "at": 100.0 + number, "input_tokens": 500.0, **fields})


def test_prompt_row_sizes_are_spreads() -> None:
    row = row_of([sample(n, system_tokens=300.0, history_tokens=150.0, n_messages=3, output_tokens=40) for n in range(50)])
    assert row.n == row.input_tokens.n == 50
    assert row.system_tokens.p50 == pytest.approx(300, rel=0.012)
    assert row.history_tokens.p99 == pytest.approx(150, rel=0.012)
    assert row.tool_tokens.p50 == 0.0


def test_prompt_row_growing_conversations_have_their_slope() -> None:
    row = row_of([sample(n, n_messages=n % 20 + 1, input_tokens=200.0 + 80 * (n % 20)) for n in range(200)])
    assert row.growth_tokens == pytest.approx(80, rel=0.01)


def test_prompt_row_slow_by_input_correlates_with_input_only() -> None:
    rng, samples = Random(1), []
    for number in range(400):
        tokens = rng.lognormvariate(7, 1)
        samples.append(sample(number, input_tokens=tokens, ttft_s=0.2 + tokens * 0.0005 * rng.uniform(0.8, 1.2),
                              n_running=rng.randint(1, 40), e2e_s=rng.uniform(2, 9), output_tokens=rng.randint(5, 500)))
    row = row_of(samples)
    assert (row.ttft_by_input or 0) > 0.9
    assert abs(row.ttft_by_load or 0) < 0.2
    assert abs(row.e2e_by_output or 0) < 0.2
    assert row.s_per_1k_input == pytest.approx(0.5, rel=0.2)


def test_prompt_row_slow_by_load_correlates_with_load_only() -> None:
    rng = Random(2)
    row = row_of([sample(n, input_tokens=rng.lognormvariate(7, 1), n_running=load, ttft_s=0.05 * load)
                  for n in range(200) if (load := rng.randint(1, 40))])
    assert (row.ttft_by_load or 0) > 0.99
    assert abs(row.ttft_by_input or 0) < 0.2


def test_prompt_row_options_are_counted() -> None:
    row = row_of([sample(1, max_tokens=100, bias_digest=1), sample(2, bias_digest=2), sample(3, bias_digest=2, n_images=2),
                  sample(4, client_timeout_s=600.0, shared_prefix_ratio=0.5), sample(5, shared_prefix_ratio=1.0)])
    assert (row.n_uncapped, row.n_logit_bias, row.n_logit_biases, row.n_images) == (4, 3, 2, 2)
    assert row.client_timeout_s.n == row.max_tokens.n == 1
    assert row.shared_prefix_ratio == 0.75
    assert row.ttft_by_input is row.growth_tokens is row.s_per_1k_input is None


def test_prompt_row_unmeasured_prompt_counts_by_its_tokens_only() -> None:
    row = row_of([sample(1), sample(2, input_tokens=90_000.0, has_parts=False)])
    assert (row.input_tokens.n, row.system_tokens.n) == (2, 1)


def test_prompt_row_of_an_hour_ago_is_gone() -> None:
    shapes = PromptShapes()
    shapes.consume([sample(1)])
    assert shapes.collect(100.0 + 4000) == {}


@given(SAMPLES, SAMPLES)
def test_merge_prompts_any_two_workers_counts_all(one: list[PromptSampled], other: list[PromptSampled]) -> None:
    one.sort(key=lambda fact: fact.at)
    other.sort(key=lambda fact: fact.at)
    rows = {row.route: row for row in merge_prompts([parts_of(one), parts_of(other)])}
    assert sum(row.n for row in rows.values()) == len(one) + len(other)
    for row in rows.values():
        assert row.input_tokens.n == row.n
        assert row.ttft_by_input is None or -1 <= row.ttft_by_input <= 1
