"""Tokens per second of both models, in turn: prompts, and answers of one request at a time.

Rule: in each round both models read the same prompt and generate the same number of tokens, in an order that
alternates, so that a busy machine slows down both. The times are the engine's own. The interval is Student's t over the
logarithms of the rounds' ratios.
When it is wrong: with many requests at a time a decode step is bound by arithmetic, not by reading the weights, and
smaller weights gain less. The prompt is computed anew in each round, of which there are as many as fit into 20 s, but 8
to 40.
"""

from collections.abc import Callable, Mapping, Sequence
from math import exp, log
from statistics import fmean, median
from typing import Final

import msgspec

from stayfast.core.clock import SystemClock
from stayfast.lab.harness.intervals import mean_interval
from stayfast.lab.quantise.accuracy import Estimate95
from stayfast.lab.quantise.loaded_model import LoadedModel, ModelFailed

LEAST_ROUNDS: Final = 8
MOST_ROUNDS: Final = 40
ENOUGH_S: Final = 20.0  # no further rounds after this time
PROMPT_TOKENS: Final = 128
ANSWER_TOKENS: Final = 64


class SpeedFigures(msgspec.Struct, frozen=True):
    """Tokens per second, medians of the rounds. ratio: after / before."""

    n_rounds: int
    n_threads: int
    prompt_before: float
    prompt_after: float
    prompt_ratio: Estimate95
    answer_before: float
    answer_after: float
    answer_ratio: Estimate95


class _Timings(msgspec.Struct):
    prompt_per_second: float
    predicted_per_second: float


class _Answer(msgspec.Struct):
    timings: _Timings


async def measure_speed(models: Sequence[LoadedModel], tokens: Sequence[int], n_threads: int,
                        report: Callable[[float], None], *, most_rounds: int = MOST_ROUNDS) -> SpeedFigures:
    """models: before and after. tokens: of any text; its first ones are the prompt. Raises ModelFailed."""
    rounds: list[Mapping[int, _Timings]] = []
    began = SystemClock.now()
    for number in range(most_rounds + 1):
        order = (0, 1) if number % 2 else (1, 0)
        found = {which: await _time_request(models[which], tokens[:PROMPT_TOKENS]) for which in order}
        if number:  # the first round warms up
            rounds.append(found)
        report(number / most_rounds)
        if number >= LEAST_ROUNDS and SystemClock.now() - began > ENOUGH_S:
            break
    prompts, answers = ([[getattr(one[which], name) for one in rounds] for which in (0, 1)]
                        for name in ("prompt_per_second", "predicted_per_second"))
    return SpeedFigures(len(rounds), n_threads, median(prompts[0]), median(prompts[1]), _ratio(*prompts), median(answers[0]),
                        median(answers[1]), _ratio(*answers))


async def _time_request(model: LoadedModel, prompt: Sequence[int]) -> _Timings:
    body = await model.post("/completion", {
        "prompt": list(prompt), "n_predict": ANSWER_TOKENS, "ignore_eos": True, "temperature": 0, "cache_prompt": False,
        "id_slot": 0, "response_fields": ["timings"]})
    timings = msgspec.json.decode(body, type=_Answer).timings
    if min(timings.prompt_per_second, timings.predicted_per_second) <= 0:
        raise ModelFailed("the engine reports no times")
    return timings


def _ratio(before: Sequence[float], after: Sequence[float]) -> Estimate95:
    logs = [log(new / old) for old, new in zip(before, after, strict=True)]
    low, high = mean_interval(logs)
    return Estimate95(exp(fmean(logs)), exp(low), exp(high))
