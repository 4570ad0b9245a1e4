"""The comparison of two models in real engine processes, against a forward pass in numpy and against broken models."""

import asyncio
from pathlib import Path
from random import Random

import gguf
import numpy as np
import pytest

from stayfast.engine.quantise.model_file import plan_conversion
from stayfast.engine.quantise.writer import write_quantised
from stayfast.lab.quantise.accuracy import AccuracyFigures, TextTooShort, compare_scores, cut_text, score_source, summarise_losses
from stayfast.lab.quantise.loaded_model import ModelFailed, load_model
from stayfast.lab.quantise.report import LossBounds, QuantiseVerdict, judge
from stayfast.lab.quantise.speed import measure_speed
from stayfast.lab.quantise.token_scores import PositionScores, TokenScorer, cut_chunks
from tests.engine.quantise_rig import forward, read_weights, write_model

pytestmark = pytest.mark.sockets

LETTERS = range(97, 123)  # the tokens that the random model generates
CHUNKS = cut_chunks([], [Random(3).choice(LETTERS) for _ in range(240)], size=40, n_context=8, most=6)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An f16 model of two layers."""
    return write_model(tmp_path_factory.mktemp("model") / "m.f16.gguf", n_embd=128)


def quantised(model: Path, folder: Path, to: str) -> Path:
    """The model in another type."""
    write_quantised(plan_conversion(model, to), folder / f"m.{to}.gguf")
    return folder / f"m.{to}.gguf"


async def compare(before: Path, after: Path) -> tuple[list[list[PositionScores]], AccuracyFigures]:
    """The source's scores, and the figures of both."""
    async with load_model(before, ctx_per_slot=256, n_threads=1) as source:
        scores = await score_source(TokenScorer(source, 1), CHUNKS, lambda share: None)
    async with load_model(after, ctx_per_slot=256, n_threads=1) as other:
        return scores, summarise_losses("text", await compare_scores(TokenScorer(other, 1), CHUNKS, scores, lambda share: None))


def test_score_source_equals_a_forward_pass_in_numpy(model: Path) -> None:
    scores, figures = asyncio.run(compare(model, model))
    weights = read_weights(model)
    for chunk, found in zip(CHUNKS, scores, strict=True):
        expected = forward(weights, chunk.tokens)[chunk.n_context - 1:-1]
        assert [one.text_logprob for one in found] == pytest.approx(
            expected[np.arange(chunk.n_scored), chunk.tokens[chunk.n_context:]], abs=0.005)
        for row, one in zip(expected, found, strict=True):
            assert one.top == pytest.approx({token: row[token] for token in one.top}, abs=0.05)
            assert one.drawn_logprob == pytest.approx(row[one.drawn], abs=0.005)
            assert list(one.top.values()) == sorted(one.top.values(), reverse=True)
    assert (figures.kl.value, figures.perplexity_loss.value, figures.same_first.value) == (0.0, 0.0, 1.0)


@pytest.mark.parametrize("to", ["q5_0", "q4_0"])
def test_compare_scores_kl_is_that_of_the_rounded_weights(model: Path, tmp_path: Path, to: str) -> None:
    """The engine rounds activations, too, where weights are blocks: its KL is a little larger than that of exact arithmetic."""
    new = quantised(model, tmp_path, to)
    _, figures = asyncio.run(compare(model, new))
    old_weights, new_weights = read_weights(model), read_weights(new)
    expected = []
    for chunk in CHUNKS:
        p, q = (forward(weights, chunk.tokens)[chunk.n_context - 1:-1] for weights in (old_weights, new_weights))
        expected.append((np.exp(p) * (p - q)).sum(axis=1).mean())
    assert 0.9 * np.mean(expected) < figures.kl.value < 1.3 * np.mean(expected)
    assert figures.n_positions == 6 * 32
    assert figures.n_drawn == 0


def test_score_token_improbable_token_has_its_own_logprob(model: Path) -> None:
    """A token that is not among the most probable ones is forced; the bias is not in the figure."""
    chunk = CHUNKS[0]
    expected = forward(read_weights(model), chunk.tokens)[-1]
    least = int(np.argmin(expected))

    async def score() -> tuple[float, PositionScores]:
        async with load_model(model, ctx_per_slot=256, n_threads=1) as source:
            scorer = TokenScorer(source, 1)
            return await scorer.score_token(chunk.tokens, least, 0), await scorer.score(chunk.tokens, least, 1)

    logprob, scores = asyncio.run(score())
    assert logprob == pytest.approx(expected[least], abs=0.05)
    assert expected[least] < -10
    assert scores.text_logprob == pytest.approx(logprob, abs=0.01)


def test_judge_broken_quantisation_exceeds_and_a_good_one_holds(model: Path, tmp_path: Path) -> None:
    good, broken = quantised(model, tmp_path, "q8_0"), tmp_path / "broken.gguf"
    broken.write_bytes(good.read_bytes())
    for tensor in gguf.GGUFReader(broken, "r+").tensors:
        if tensor.name == "output.weight":  # the scales of neighbouring blocks swapped, as by a wrong layout
            tensor.data[:] = np.roll(tensor.data, 34, axis=1)
    verdicts = {}
    for path in (good, broken):
        _, figures = asyncio.run(compare(model, path))
        verdicts[path] = judge(figures, None, LossBounds(perplexity=0.02, kl=0.001))[1]
    assert verdicts == {good: QuantiseVerdict.HOLDS, broken: QuantiseVerdict.EXCEEDS}


def test_measure_speed_of_one_model_twice_is_about_equal(model: Path) -> None:
    async def measure() -> tuple[float, float, float]:
        async with load_model(model, ctx_per_slot=256, n_threads=1) as one, load_model(model, ctx_per_slot=256,
                                                                                      n_threads=1) as other:
            found = await measure_speed((one, other), CHUNKS[0].tokens, 1, lambda share: None, most_rounds=6)
            assert one.resident_bytes is None or one.resident_bytes > 1_000_000
            return found.answer_before, found.answer_ratio.low, found.answer_ratio.high

    speed, low, high = asyncio.run(measure())
    assert speed > 0
    assert 0 < low < high


def test_cut_text_short_text_is_refused(model: Path) -> None:
    async def cut() -> None:
        async with load_model(model, ctx_per_slot=256, n_threads=1) as source:
            await cut_text(source, "too short", most_chunks=24)

    with pytest.raises(TextTooShort, match="9 tokens"):
        asyncio.run(cut())


def test_load_model_damaged_file_is_an_error_with_its_cause(model: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "m.gguf"
    damaged.write_bytes(model.read_bytes()[:-50_000])

    async def load() -> None:
        async with load_model(damaged, ctx_per_slot=256):
            pytest.fail("it loaded")

    with pytest.raises(ModelFailed, match="does not load"):
        asyncio.run(load())
