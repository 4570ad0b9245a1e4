"""The semantic half of the proof `lookup`: what it takes to find the nearest of many questions, with its vector and without.

The vectors are synthetic: clusters as questions have them, so that neighbours are close and the graph has to look. They are
one scope's. Questions that are embedded are short, and each is another one, so that no cache of vectors helps.
"""

from importlib import import_module
from random import Random
from typing import Any

from stayfast.core.clock import Clock, SystemClock
from stayfast.policy.similarity import N_NEAREST
from stayfast.prove.claim import Conditions, Figure, SetUpFailed, over
from stayfast.settings import environment
from stayfast.settings.environment import cache_home
from stayfast.stores.embed import HOW_TO, Embedder, EmbedderConfig, NoEmbedder

ALONE_GOAL_MS, WITH_GOAL_MS = 5.0, 8.0
N_DIMS, N_TO_A_CLUSTER, SPREAD = 384, 50, 0.6
SCOPE = b"one scope"
N_LOOK_UPS = 400  # a round
N_CHECKED = 50
N_TOLD = 10_000
_WORDS = ("card payment transfer refund account limit order delivery address invoice password login plan upgrade cancel "
          "late missing wrong change update status")


async def look_ups(n: int, n_rounds: int, conditions: Conditions) -> list[Figure]:
    """p99 of the look-up among n vectors, alone and after the embedding; and how many of the nearest it finds."""
    try:
        numpy, vectors = import_module("numpy"), import_module("stayfast.stores.vectors")
        minilm, batched = import_module("stayfast.stores.minilm"), import_module("stayfast.stores.batched")
        model = minilm.load(EmbedderConfig(), str(cache_home(environment())))
    except (ImportError, NoEmbedder) as missing:
        raise SetUpFailed(f"the semantic look-up cannot be measured: {missing}; {HOW_TO}") from missing
    made = _clusters(numpy, n + N_LOOK_UPS, conditions.seed)
    index, asked = vectors.Vectors(N_DIMS), made[n:]
    for key in range(n):
        if key % N_TOLD == 0:
            conditions.say(f"{key:,} of {n:,} vectors")
        index.add(SCOPE, key, made[key])
    clock, rng = SystemClock(), Random(conditions.seed)
    embedder = batched.Batched(model, EmbedderConfig(), clock)
    words = _WORDS.split()
    alone_ms, with_ms = [], []
    for number in range(n_rounds):
        conditions.say(f"looking up, round {number + 1} of {n_rounds}")
        alone_ms.append(_p99([_took_s(index, vector, clock) for vector in asked]))
        texts = [f"{' '.join(rng.sample(words, 6))} {number} {place}" for place in range(N_LOOK_UPS)]
        with_ms.append(_p99([await _took_whole_s(index, embedder, text, clock) for text in texts]))
    recall = _recall(numpy, index, made[:n], asked[:N_CHECKED])
    return [_figure(f"semantic look-up among {n:,}, p99", alone_ms, ALONE_GOAL_MS),
            _figure(f"with the embedding among {n:,}, p99", with_ms, WITH_GOAL_MS),
            Figure(f"of the {N_NEAREST} nearest, found", recall * 100, "%")]


def _took_s(index: Any, vector: Any, clock: Clock) -> float:
    began_at = clock.now()
    index.nearest(SCOPE, vector, N_NEAREST)
    return clock.now() - began_at


async def _took_whole_s(index: Any, embedder: Embedder, text: str, clock: Clock) -> float:
    began_at = clock.now()
    index.nearest(SCOPE, (await embedder.embed([text]))[0], N_NEAREST)
    return clock.now() - began_at


def _figure(name: str, rounds_ms: list[float], goal_ms: float) -> Figure:
    median, low, high = over(rounds_ms)
    return Figure(name, median, "ms", goal_ms, low=low, high=high)


def _clusters(numpy: Any, n: int, seed: int) -> Any:
    """float32 [n, N_DIMS], of length 1."""
    rng = numpy.random.default_rng(seed)
    middles = rng.standard_normal((n // N_TO_A_CLUSTER, N_DIMS), dtype=numpy.float32)
    made = middles[rng.integers(0, len(middles), n)] + SPREAD * rng.standard_normal((n, N_DIMS), dtype=numpy.float32)
    return made / numpy.linalg.norm(made, axis=1, keepdims=True)


def _recall(numpy: Any, index: Any, made: Any, asked: Any) -> float:
    """The share of the truly nearest that the index finds."""
    n_found = 0
    for vector in asked:
        nearest = numpy.argsort(-(made @ vector))[:N_NEAREST].tolist()
        n_found += len({key for key, _ in index.nearest(SCOPE, vector, N_NEAREST)}.intersection(nearest))
    return n_found / (len(asked) * N_NEAREST)


def _p99(values_s: list[float]) -> float:
    """In milliseconds."""
    return sorted(values_s)[len(values_s) * 99 // 100] * 1e3
