"""The comparison of two models in real engine processes, against a forward pass in numpy and against broken models."""

import asyncio
from pathlib import Path
from random import Random

import gguf
import numpy as np
import pytest

from stayfast.engine.quantise.model_file import plan_conversion
from stayfast.engine.quantise.writer import write_quantised
from stayfast.lab.quantise import token_scores
from stayfast.lab.quantise.accuracy import (
    AccuracyFigures,
    TextTooShort,
    compare_scores,
    cut_text,
    score_source,
    summarise_losses,
)
from stayfast.lab.quantise.loaded_model import ModelFailed, load_model
from stayfast.lab.quantise.report import LossBounds, QuantiseVerdict, judge
from stayfast.lab.quantise.speed import measure_speed
from stayfast.lab.quantise.token_scores import LEAST_LOGPROB, PositionScores, cut_chunks, make_scorer
from tests.engine.quantise_rig import forward, read_weights, write_model

pytestmark = pytest.mark.sockets

LETTERS = range(97, 123)  # the tokens that the random model generates
CHUNKS = cut_chunks([], Random(3).choices(LETTERS, k=240), size=40, n_context=8, most=6)


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
        scores = await score_source(await make_scorer(source, 1), CHUNKS, lambda share: None)
    async with load_model(after, ctx_per_slot=256, n_threads=1) as other:
        losses = await compare_scores(await make_scorer(other, 1), CHUNKS, scores, lambda share: None)
    return scores, summarise_losses("text", losses)


def exact_kl(before: Path, after: Path) -> float:
    """By the forward pass in numpy."""
    means = []
    for chunk in CHUNKS:
        p, q = (forward(read_weights(path), chunk.tokens)[chunk.n_context - 1:-1] for path in (before, after))
        means.append((np.exp(p) * (p - q)).sum(axis=1).mean())
    return float(np.mean(means))


def break_model(good: Path, broken: Path) -> Path:
    """A copy of a q8_0 model whose output matrix has blocks in the places of their neighbours, as by a wrong layout."""
    broken.write_bytes(good.read_bytes())
    tensor = next(one for one in gguf.GGUFReader(broken, "r+").tensors if one.name == "output.weight")
    tensor.data[:] = np.roll(tensor.data, 34, axis=1)
    return broken


def test_score_source_equals_a_forward_pass_in_numpy(model: Path) -> None:
    scores, figures = asyncio.run(compare(model, model))
    weights = read_weights(model)
    for chunk, found in zip(CHUNKS, scores, strict=True):
        expected = forward(weights, chunk.tokens)[chunk.n_context - 1:-1]
        assert [one.text_logprob for one in found] == pytest.approx(
            expected[np.arange(chunk.n_scored), chunk.tokens[chunk.n_context:]], abs=0.005)
        for row, one in zip(expected, found, strict=True):
            assert one.top == pytest.approx({token: max(LEAST_LOGPROB, row[token]) for token in one.top}, abs=0.05)
            assert one.drawn_logprob == pytest.approx(row[one.drawn], abs=0.005)
            assert list(one.top.values()) == sorted(one.top.values(), reverse=True)
    assert (figures.kl.value, figures.perplexity_loss.value) == pytest.approx((0.0, 0.0), abs=1e-5)
    assert figures.same_first.value > 0.99


@pytest.mark.parametrize("to", ["q5_0", "q4_0"])
def test_compare_scores_kl_is_that_of_the_rounded_weights(model: Path, tmp_path: Path, to: str) -> None:
    """The engine rounds activations, too, where weights are blocks: its KL is a little larger than that of numpy."""
    new = quantised(model, tmp_path, to)
    _, figures = asyncio.run(compare(model, new))
    expected = exact_kl(model, new)
    assert 0.9 * expected < figures.kl.value < 1.3 * expected
    assert figures.n_positions == 6 * 32
    assert figures.n_drawn == 0


def test_score_token_improbable_token_has_its_own_logprob(tmp_path: Path) -> None:
    """A token outside of the most probable 256 is forced, without the bias in its figure; half a character is found, too."""
    model = write_model(tmp_path / "m.f16.gguf", "f16", n_embd=128, ban=-1.0)
    tokens = CHUNKS[0].tokens
    expected = forward(read_weights(model), tokens)[-1]

    async def score(token: int) -> tuple[float, float]:
        async with load_model(model, ctx_per_slot=256, n_threads=1) as source:
            scorer = await make_scorer(source, 1)
            return await scorer.score_token(tokens, token, 0), (await scorer.score(tokens, token, 1)).text_logprob

    for token in (int(np.argmin(expected)), 48, 0xE2, 257):  # the least probable, a digit, half a character, the end
        assert asyncio.run(score(token)) == pytest.approx((expected[token], expected[token]), abs=0.02)


def test_judge_broken_quantisation_exceeds_and_a_good_one_holds(model: Path, tmp_path: Path) -> None:
    good = quantised(model, tmp_path, "q8_0")
    broken = break_model(good, tmp_path / "broken.gguf")
    verdicts = {}
    for path in (good, broken):
        _, figures = asyncio.run(compare(model, path))
        verdicts[path] = judge(figures, None, LossBounds(perplexity=0.02, kl=0.001))[1]
    assert verdicts == {good: QuantiseVerdict.HOLDS, broken: QuantiseVerdict.EXCEEDS}


def test_compare_scores_drawn_tokens_of_the_engine_estimate_the_rest(model: Path, tmp_path: Path,
                                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    """With the 6 most probable tokens of 26 alone, the rest is drawn by the engine."""
    monkeypatch.setattr(token_scores, "N_TOP", 6)
    broken = break_model(quantised(model, tmp_path, "q8_0"), tmp_path / "broken.gguf")
    _, figures = asyncio.run(compare(model, broken))
    assert figures.n_drawn > 60
    assert figures.unseen > 0.4
    assert figures.kl.low < exact_kl(model, broken) < figures.kl.high


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

    with pytest.raises(ModelFailed, match="truncated"):
        asyncio.run(load())
