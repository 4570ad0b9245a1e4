"""How far a quantised model is from the model it was made of, on a text: perplexity, KL divergence, the most probable
token.

Problem: an answer that reads well proves nothing, and a benchmark of questions needs thousands of them to see a loss of
1 %.
Rule: both models predict each token of the same text. For each position, with p the source's distribution and q the new
one's:
    loss of perplexity   exp(mean(log p(next) - log q(next))) - 1; the perplexity itself is exp(-mean(log p(next)))
    KL divergence        sum over S of p_i * (log p_i - log q_i) + (log p_y - log q_y, if y is not in S)
    same first token     whether both give the highest probability to the same token
S are the tokens that are among the 256 most probable of both; y is drawn from p. The second term makes the mean
unbiased for vocabularies of any size, without the transfer of 100,000 figures a position; with at most 256 tokens the
sum is the exact one.
Interval: 95 %, Student's t over the chunks of the text, as the positions of a chunk depend on each other and chunks
hardly do.
Source: the measures are those of llama.cpp's `llama-perplexity --kl-divergence`; the estimator is stratified sampling.
When it is wrong: the text is unlike what the model is used for. The first tokens of a chunk are context only, so that
longer contexts than a chunk are not measured. A model may predict a text equally well and still follow instructions
worse; the questions of the user are for that.
"""

from collections.abc import Callable, Sequence
from math import exp
from statistics import fmean
from typing import Final, NamedTuple

import msgspec

from stayfast.lab.harness.intervals import mean_interval, share_interval
from stayfast.lab.quantise.loaded_model import LoadedModel
from stayfast.lab.quantise.token_scores import PositionScores, TextChunk, TokenScorer, cut_chunks, run_chunks

CHUNK_TOKENS: Final = 192
CONTEXT_TOKENS: Final = 32
LEAST_CHUNKS: Final = 6
_LARGEST_LOG: Final = 600.0  # exp of it is a float


class TextTooShort(ValueError):
    """The text has too few tokens for an interval."""


class Estimate95(msgspec.Struct, frozen=True):
    """A figure and its 95 % interval."""

    value: float
    low: float
    high: float


class AccuracyFigures(msgspec.Struct, frozen=True):
    """Of the scored positions of a text. perplexity_loss: 0.02 means that the perplexity is 2 % higher. kl: nats a token.

    same_first: share of the positions. n_drawn: positions whose KL needed a drawn token. unseen: mean probability outside
    of S.
    """

    text: str
    n_chunks: int
    n_positions: int
    perplexity_before: Estimate95
    perplexity_after: Estimate95
    perplexity_loss: Estimate95
    kl: Estimate95
    same_first: Estimate95
    n_drawn: int
    unseen: float


class PositionLoss(NamedTuple):
    """One position: log-probabilities of the text's token before and after, the estimate of KL, and whether both agree."""

    before: float
    after: float
    kl: float
    is_same_first: bool
    is_drawn: bool
    unseen: float


async def cut_text(model: LoadedModel, text: str, *, most_chunks: int) -> list[TextChunk]:
    """The chunks of a text. Raises TextTooShort, ModelFailed."""
    head, tokens = await model.tokenise(text)
    chunks = cut_chunks(head, tokens, size=CHUNK_TOKENS, n_context=CONTEXT_TOKENS, most=most_chunks)
    if len(chunks) < LEAST_CHUNKS:
        raise TextTooShort(f"the text has {len(tokens):,} tokens; an interval needs {LEAST_CHUNKS * CHUNK_TOKENS:,}: give a "
                           "longer one with --text")
    return chunks


async def score_source(scorer: TokenScorer, chunks: Sequence[TextChunk],
                       report: Callable[[float], None]) -> list[list[PositionScores]]:
    """The scores of the source, by chunk. report: gets the share that is done. Raises ModelFailed."""
    found: list[list[PositionScores]] = [[] for _ in chunks]

    async def work(number: int, slot: int) -> None:
        chunk = chunks[number]
        for at in range(chunk.n_context, len(chunk.tokens)):
            found[number].append(await scorer.score(chunk.tokens[:at], chunk.tokens[at], slot))
        report(sum(map(len, found)) / sum(chunk.n_scored for chunk in chunks))

    await run_chunks(chunks, work)
    return found


async def compare_scores(scorer: TokenScorer, chunks: Sequence[TextChunk], source: Sequence[Sequence[PositionScores]],
                         report: Callable[[float], None]) -> list[list[PositionLoss]]:
    """The losses of the quantised model against the source's scores, by chunk. Raises ModelFailed."""
    found: list[list[PositionLoss]] = [[] for _ in chunks]

    async def work(number: int, slot: int) -> None:
        chunk = chunks[number]
        for at, before in zip(range(chunk.n_context, len(chunk.tokens)), source[number], strict=True):
            found[number].append(await _compare_position(scorer, chunk.tokens[:at], chunk.tokens[at], before, slot))
        report(sum(map(len, found)) / sum(chunk.n_scored for chunk in chunks))

    await run_chunks(chunks, work)
    return found


async def _compare_position(scorer: TokenScorer, tokens: Sequence[int], follows: int, source: PositionScores,
                            slot: int) -> PositionLoss:
    after = await scorer.score(tokens, follows, slot)
    common = source.top.keys() & after.top.keys()
    shares = {token: exp(source.top[token]) for token in common}
    kl = sum(share * (source.top[token] - after.top[token]) for token, share in shares.items())
    is_drawn = source.drawn not in common
    if is_drawn:
        logprob = after.top.get(source.drawn)
        if logprob is None:
            logprob = await scorer.score_token(tokens, source.drawn, slot)
        kl += source.drawn_logprob - logprob
    is_same_first = next(iter(source.top)) == next(iter(after.top))
    return PositionLoss(source.text_logprob, after.text_logprob, kl, is_same_first, is_drawn,
                        max(0.0, 1 - sum(shares.values())))


def summarise_losses(text: str, chunks: Sequence[Sequence[PositionLoss]]) -> AccuracyFigures:
    """The figures of all positions. text: the name of the text."""
    positions = [position for chunk in chunks for position in chunk]
    losses = [fmean(one.before - one.after for one in chunk) for chunk in chunks]
    same = _estimate([fmean(one.is_same_first for one in chunk) for chunk in chunks])
    if same.value in (0.0, 1.0):  # all chunks are equal, so that t would see no spread
        same = Estimate95(same.value, *share_interval(sum(one.is_same_first for one in positions), len(positions)))
    return AccuracyFigures(
        text, len(chunks), len(positions), _perplexity([fmean(-one.before for one in chunk) for chunk in chunks]),
        _perplexity([fmean(-one.after for one in chunk) for chunk in chunks]), _perplexity(losses, less=1.0),
        _estimate([fmean(one.kl for one in chunk) for chunk in chunks]),
        Estimate95(same.value, max(0.0, same.low), min(1.0, same.high)), sum(one.is_drawn for one in positions),
        fmean(one.unseen for one in positions))


def _estimate(means: Sequence[float]) -> Estimate95:
    return Estimate95(fmean(means), *mean_interval(means))


def _perplexity(means: Sequence[float], less: float = 0.0) -> Estimate95:
    """Of equally long chunks' means of a logarithm."""
    ends = _estimate(means)
    return Estimate95(*(exp(min(_LARGEST_LOG, end)) - less for end in (ends.value, ends.low, ends.high)))
