"""The estimates of losses, without an engine."""

import asyncio
from collections.abc import Sequence
from math import exp, log
from random import Random
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.lab.quantise.accuracy import PositionLoss, compare_scores, summarise_losses
from stayfast.lab.quantise.token_scores import PositionScores, TextChunk, TokenScorer, cut_chunks, run_chunks


class FixedScorer(TokenScorer):
    """One distribution at each position, of which the first `n_top` tokens are returned."""

    def __init__(self, shares: Sequence[float], n_top: int, rng: Random) -> None:
        self._shares, self._n_top, self._rng = shares, n_top, rng

    async def score(self, before: Sequence[int], follows: int, slot: int) -> PositionScores:
        """As of an engine."""
        order = sorted(range(len(self._shares)), key=lambda token: -self._shares[token])
        drawn = self._rng.choices(range(len(self._shares)), self._shares)[0]
        top = {token: log(self._shares[token]) for token in order[:self._n_top]}
        return PositionScores(log(self._shares[follows]), top, drawn, log(self._shares[drawn]))

    async def score_token(self, before: Sequence[int], token: int, slot: int) -> float:
        """The exact figure."""
        return log(self._shares[token])


P = (0.4, 0.25, 0.15, 0.1, 0.06, 0.04)
Q = (0.3, 0.3, 0.05, 0.2, 0.05, 0.1)
KL = sum(p * log(p / q) for p, q in zip(P, Q, strict=True))


def measure(n_top: int, n: int) -> list[PositionLoss]:
    """The losses of Q against P at n positions."""
    rng, chunk = Random(7), TextChunk([0] * n, 0)

    async def compare() -> list[PositionLoss]:
        source = FixedScorer(P, n_top, rng)
        scores = [await source.score([], 0, 0) for _ in range(n)]
        [found] = await compare_scores(FixedScorer(Q, n_top, rng), [chunk], [scores], lambda share: None)
        return found

    return asyncio.run(compare())


def test_compare_scores_whole_vocabulary_is_exact() -> None:
    found = measure(6, 3)
    assert [one.kl for one in found] == pytest.approx([KL] * 3)
    assert not any(one.is_drawn for one in found)
    assert found[0].before - found[0].after == pytest.approx(log(0.4 / 0.3))


@pytest.mark.parametrize("n_top", [1, 2, 4])
def test_compare_scores_few_tokens_are_unbiased(n_top: int) -> None:
    found = measure(n_top, 20_000)
    assert fmean(one.kl for one in found) == pytest.approx(KL, abs=0.012)
    assert 0.05 < fmean(one.is_drawn for one in found) < 0.9


def test_summarise_losses_equal_models_have_no_loss_and_no_certainty_of_agreement() -> None:
    chunks = [[PositionLoss(-1.0, -1.0, 0.0, True, False, 0.0)] * 20 for _ in range(5)]
    found = summarise_losses("text", chunks)
    assert (found.kl.value, found.perplexity_loss.high) == (0.0, 0.0)
    assert found.perplexity_before.value == pytest.approx(exp(1))
    assert 0.9 < found.same_first.low < 1.0  # 100 positions cannot show more


@given(st.lists(st.lists(st.floats(-20, -0.01), min_size=4, max_size=4), min_size=2, max_size=8), st.floats(-0.5, 0.5))
def test_summarise_losses_perplexities_and_loss_agree(chunks: list[list[float]], worse: float) -> None:
    found = summarise_losses("text", [[PositionLoss(one, one - worse, abs(worse), True, False, 0.0) for one in chunk]
                                      for chunk in chunks])
    assert found.perplexity_after.value / found.perplexity_before.value - 1 == pytest.approx(found.perplexity_loss.value,
                                                                                           abs=1e-9)
    assert found.perplexity_loss.value == pytest.approx(exp(worse) - 1)
    assert found.perplexity_loss.low <= found.perplexity_loss.value + 1e-9


@given(st.integers(0, 400), st.integers(2, 40), st.integers(1, 12), st.lists(st.integers(0, 9), max_size=2))
def test_cut_chunks_do_not_overlap_and_have_one_size(n: int, size: int, most: int, head: list[int]) -> None:
    chunks = cut_chunks(head, range(n), size=size, n_context=1, most=most)
    assert len(chunks) == min(most, n // size)
    tokens = [token for chunk in chunks for token in chunk.tokens[len(head):]]
    assert len(tokens) == len(set(tokens)) == size * len(chunks)
    assert all(chunk.tokens[:len(head)] == head and chunk.n_scored == size - 1 for chunk in chunks)


def test_run_chunks_each_once_and_one_a_slot() -> None:
    running: set[int] = set()
    seen: list[int] = []

    async def work(number: int, slot: int) -> None:
        assert slot not in running
        running.add(slot)
        await asyncio.sleep(0)
        running.discard(slot)
        seen.append(number)

    asyncio.run(run_chunks([TextChunk([1], 0)] * 7, work))
    assert sorted(seen) == list(range(7))
