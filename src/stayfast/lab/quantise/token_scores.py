"""The log-probabilities that a model gives to the tokens of a text, position by position, from the engine that serves it.

The server returns the N_TOP most probable tokens of a position with their log-probabilities over the whole vocabulary,
before sampling. A token that is not among them is forced by a bias, and is then returned with its log-probability
without the bias. So the figure of any single token is exact, for vocabularies of any size. The server returns nothing
for a token that is a part of a UTF-8 character; then the figures of the whole vocabulary are fetched, while another
token is forced.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from math import exp
from random import Random
from typing import Any, Final, NamedTuple

import msgspec

from stayfast.lab.quantise.loaded_model import N_SLOTS, LoadedModel, ModelFailed

N_TOP: Final = 256
_FORCE: Final = 1e6  # a bias that no other token reaches
_ALL: Final = 1 << 24  # more than any vocabulary
LEAST_LOGPROB: Final = -103.28  # the engine has probabilities in f32: smaller ones than 1.4e-45 are 0 there


class PositionScores(NamedTuple):
    """One position. text_logprob: of the token that follows in the text. top: the N_TOP most probable tokens, the first is
    the most probable. drawn: a token drawn from the whole distribution, with its log-probability. Natural logarithms.
    """

    text_logprob: float
    top: dict[int, float]
    drawn: int
    drawn_logprob: float


class _TopToken(msgspec.Struct):
    id: int
    logprob: float | None = None


class _Chosen(_TopToken):
    top_logprobs: list[_TopToken] = []


class _Answer(msgspec.Struct):
    completion_probabilities: list[_Chosen] = []
    tokens: list[int] = []


_DECODER: Final = msgspec.json.Decoder(_Answer)


class TokenScorer:
    """Scores positions with one model. seed: of the tokens that are drawn. whole_token: any that is a whole character."""

    def __init__(self, model: LoadedModel, seed: int, whole_token: int) -> None:
        self._model = model
        self._seed = seed
        self._whole_token = whole_token

    async def score(self, before: Sequence[int], follows: int, slot: int) -> PositionScores:
        """The position after `before`. Raises ModelFailed."""
        top = await self._top_tokens(before, slot, N_TOP)
        logprob = top[follows] if follows in top else await self.score_token(before, follows, slot)
        return PositionScores(logprob, top, *await self._draw(before, top, slot))

    async def score_token(self, before: Sequence[int], token: int, slot: int) -> float:
        """The log-probability of any token after `before`. Raises ModelFailed."""
        found = (await self._post(before, slot, 1, logit_bias=[[token, _FORCE]])).completion_probabilities
        if not found:
            return (await self._top_tokens(before, slot, _ALL))[token]
        if found[0].id != token:
            raise ModelFailed(f"the engine does not let token {token} be forced")
        return _finite(found[0].logprob)

    async def _top_tokens(self, before: Sequence[int], slot: int, n_top: int) -> dict[int, float]:
        found = (await self._post(before, slot, n_top, logit_bias=[[self._whole_token, _FORCE]])).completion_probabilities
        if not found or not found[0].top_logprobs:
            raise ModelFailed("the engine returned no log-probabilities")
        return {one.id: _finite(one.logprob) for one in found[0].top_logprobs}

    async def _draw(self, before: Sequence[int], top: Mapping[int, float], slot: int) -> tuple[int, float]:
        """A token drawn from the whole distribution: here if it is in `top`, else by the engine, without those."""
        rng = Random(f"{self._seed} {before}")
        rest = rng.random()
        for token, logprob in top.items():
            rest -= exp(logprob)
            if rest < 0:
                return token, logprob
        if len(top) < N_TOP:  # the whole vocabulary, whose shares add up to 1 but for rounding
            return next(iter(top.items()))
        found = await self._post(before, slot, 1, logit_bias=[[token, False] for token in top], seed=rng.getrandbits(31))
        if not found.tokens:
            return next(iter(top.items()))  # nothing is left to draw
        drawn = found.tokens[0]
        return drawn, (_finite(found.completion_probabilities[0].logprob) if found.completion_probabilities
                       else await self.score_token(before, drawn, slot))

    async def _post(self, before: Sequence[int], slot: int, n_top: int, **options: Any) -> _Answer:
        return _DECODER.decode(await self._model.post("/completion", {
            "prompt": list(before), "n_predict": 1, "n_probs": n_top, "id_slot": slot, "cache_prompt": True,
            "samplers": ["temperature"], "temperature": 1.0, "return_tokens": True,
            "response_fields": ["completion_probabilities", "tokens"], **options}))


async def make_scorer(model: LoadedModel, seed: int) -> TokenScorer:
    """A scorer of a model. Raises ModelFailed."""
    _, plain = await model.tokenise("a")
    return TokenScorer(model, seed, plain[-1])


def _finite(logprob: float | None) -> float:
    return LEAST_LOGPROB if logprob is None else max(LEAST_LOGPROB, logprob)


class TextChunk(NamedTuple):
    """Tokens of a part of a text; those from `n_context` on are scored, with all tokens of the part before them."""

    tokens: list[int]
    n_context: int

    @property
    def n_scored(self) -> int:
        return len(self.tokens) - self.n_context


def cut_chunks(head: Sequence[int], tokens: Sequence[int], *, size: int, n_context: int, most: int) -> list[TextChunk]:
    """Parts of `size` tokens that do not overlap, each after the tokens `head`; spread over the text if there are more than
    `most`. A rest is left out.
    """
    starts = range(0, len(tokens) - size + 1, size)
    step = max(1.0, len(starts) / most)
    chosen = [starts[int(n * step)] for n in range(min(most, len(starts)))]
    return [TextChunk([*head, *tokens[start:start + size]], len(head) + n_context) for start in chosen]


async def run_chunks(chunks: Sequence[TextChunk], work: Callable[[int, int], Awaitable[None]]) -> None:
    """Run `work(number of the chunk, slot)` for all, one a slot at a time. Raises ModelFailed."""
    numbers = iter(range(len(chunks)))

    async def use(slot: int) -> None:
        for number in numbers:
            await work(number, slot)

    try:
        async with asyncio.TaskGroup() as tasks:
            for slot in range(N_SLOTS):
                tasks.create_task(use(slot))
    except* ModelFailed as failed:
        raise failed.exceptions[0] from None
