"""Which share of honest answers each time limit would cut: the figures behind the defaults of `timeouts`.

    .venv/bin/python scripts/default_limits.py TRACE.csv...   # columns input_tokens, output_tokens

For each trace the answers of the simulated providers (`stayfast sim --list-presets`), of a reasoning model that thinks in
silence (`stayfast prove silent`), and of an engine of one's own whose time to the first token is its prompt's length. The
engine's rates are assumptions: PREFILL_RATE and DECODE_RATE tokens a second, and a queue of one prompt before each.
"""

import csv
import sys
from collections.abc import Callable, Iterator
from math import exp
from pathlib import Path
from random import Random

from stayfast.lab.simulated.config import PRESETS

FIRST_TOKEN_S, TOTAL_S = (10, 30, 60, 120), (60, 120, 300, 600)
REASONING_MEDIAN_S, REASONING_SIGMA, REASONING_RATE = 20.0, 0.3, 60.0
PREFILL_RATE, DECODE_RATE = 4000.0, 25.0
N = 200_000

Draw = Callable[[Random, int, int], tuple[float, float]]  # rng, tokens of prompt and answer: seconds to the first, and total


def provider(name: str) -> Draw:
    numbers = PRESETS[name]

    def draw(rng: Random, n_input: int, n_output: int) -> tuple[float, float]:
        ttft_s = numbers.ttft.draw(rng, rng.random())
        return ttft_s, ttft_s + numbers.gaps.draw(rng, n_output)

    return draw


def reasoning(rng: Random, n_input: int, n_output: int) -> tuple[float, float]:
    ttft_s = REASONING_MEDIAN_S * exp(REASONING_SIGMA * rng.gauss())
    return ttft_s, ttft_s + n_output / REASONING_RATE


def engine(lengths: list[tuple[int, int]]) -> Draw:
    def draw(rng: Random, n_input: int, n_output: int) -> tuple[float, float]:
        ttft_s = (n_input + rng.choice(lengths)[0]) / PREFILL_RATE
        return ttft_s, ttft_s + n_output / DECODE_RATE

    return draw


def rows(lengths: list[tuple[int, int]]) -> Iterator[tuple[str, list[float], list[float]]]:
    worlds: dict[str, Draw] = {name: provider(name) for name in PRESETS}
    worlds |= {"reasoning": reasoning, "own engine": engine(lengths)}
    for name, draw in worlds.items():
        rng = Random(1)
        drawn = [draw(rng, *rng.choice(lengths)) for _ in range(N)]
        yield (name, [sum(first > limit for first, _ in drawn) / N for limit in FIRST_TOKEN_S],
               [sum(total > limit for _, total in drawn) / N for limit in TOTAL_S])


def main() -> None:
    for path in map(Path, sys.argv[1:]):
        with path.open() as file:
            lengths = [(int(row["input_tokens"]), int(row["output_tokens"])) for row in csv.DictReader(file)]
        heads = [f"first>{limit}" for limit in FIRST_TOKEN_S] + [f"total>{limit}" for limit in TOTAL_S]
        sys.stdout.write(f"{path.name}: {len(lengths)} requests, {N} draws a row\n{'':24}" +
                         "".join(f"{head:>11}" for head in heads) + "\n")
        for name, first, total in rows(lengths):
            sys.stdout.write(f"{name:24}" + "".join(f"{share:11.5%}" for share in (*first, *total)) + "\n")


if __name__ == "__main__":
    main()
