"""Batches of texts of which one in eight is long: padding, times, texts that break the encoder, and overload.

In virtual time the encoder is modelled (`lab.batching.encoder_sim`), with Poisson arrivals. The batchers for comparison are
those that users have today: batches of eight with a timer of 10 ms, batches of what waits without a look at lengths, and one
by one in order of arrival, which is the best of the three here. Two loads: at 75 % of what the fixed batches can do all of
them keep up; at 70 % of what one by one can do, both kinds of padded batches do not.

The real encoder is MiniLM on one thread. A burst of texts arrives at once, and each batcher encodes it, by turns; ratios of
the same round are compared, in CPU time of this process, where one thread computes, and in wall time, which other processes
on the machine prolong: it has no goal. Texts that break it: the model raises, or hangs for HANG_S, for a batch with such
a text.

Overload: bursts of ten times the bound arrive at once. Each refused client comes back once, at its Retry-After. Accepted
texts must be encoded before their deadline: twice the time in which the encoder works off a full queue.
When wrong: modelled arrivals do not slow down with the answers, and the modelled encoder has no noise.
"""

import asyncio
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from random import Random
from threading import Event
from time import process_time
from typing import Any, Final, NamedTuple

from stayfast.core.clock import SystemClock
from stayfast.lab.batching.encoder_sim import (
    LIMITS,
    LONG,
    ONE_LONG_IN,
    START_S,
    TOKEN_S,
    Batcher,
    FixedBatcher,
    PolicyBatcher,
    SimulatedText,
    draw_texts,
    run_encoder,
    usual_cost_s,
)
from stayfast.lab.harness.claim import ClaimResult, Conditions, Extent, Figure, Sense
from stayfast.lab.load.stats import ExactDistribution
from stayfast.lab.workloads.in_memory import load_embedder
from stayfast.policy.batching.cost import MIN_BATCHES
from stayfast.stores.embedder import EmbedderConfig, NoEmbedder

TIMER_S: Final = 0.01
SIZE: Final = 8
WASTE: Final = 0.25
N_SEEDS: Final = 8
SHORT_GOAL, ALL_GOAL, QUIET_GOAL, FIXED_GOAL, NATURAL_GOAL = 0.6, 1.0, 1.1, 0.5, 1.0
BURST: Final = 64
SHORT_WORDS, LONG_WORDS = (5, 12), 100
REAL_GOAL, REAL_FIXED_GOAL, REAL_SHORT_GOAL = 1.0, 0.6, 0.8
HANG_S, HELD_S = 4.0, 2.0
BOUND: Final = 2_000  # tokens, in overload
TIMES_BOUND: Final = 10
_CLOCK: Final = SystemClock()
_WORDS: Final = re.findall(r"\w+", """how do i reset my password when the account is locked and what time does support open
                           on monday for questions about a refund of last month""")


@dataclass(frozen=True, slots=True)
class BatcherClaim:
    """n of an extent: texts of each virtual run. n_rounds: bursts on the real encoder."""

    full: Extent = Extent(20_000, n_rounds=12)
    quick: Extent = Extent(4_000, n_rounds=6)

    name = "batcher"
    statement = (
        f"With one text in {ONE_LONG_IN} long, no batch has more than {WASTE:.0%} padding. In virtual time, at a load that "
        f"all batchers bear, p99 of the short texts is at most {FIXED_GOAL:g} times that of batches of {SIZE} with a timer, "
        f"no higher than that without buckets, and at most {QUIET_GOAL:g} times that of one by one. At 70 % of the load "
        f"that one by one can bear, it is at most {SHORT_GOAL:g} times that of one by one, and p99 of all no higher. "
        f"On MiniLM, a burst takes at most {REAL_FIXED_GOAL:g} times the CPU of batches of {SIZE} and no more than one by "
        f"one; half of its short texts are done after at most {REAL_SHORT_GOAL:g} times that CPU; wall time is printed "
        "without a goal. A text that "
        "breaks the encoder fails alone. Of clients refused in an overload, at least 90 % are accepted at their "
        "Retry-After; no accepted text is late.")

    async def run(self, conditions: Conditions) -> ClaimResult:
        extent = conditions.choose(self.full, self.quick)
        conditions.report_progress(f"{N_SEEDS} times four batchers at two loads in virtual time")
        figures = [*measure_padding(extent.n, conditions.seed), *measure_overload(conditions.seed)]
        model = load_embedder(EmbedderConfig(max_tokens=128))
        conditions.report_progress(f"{extent.n_rounds} bursts on the real encoder")
        figures += await measure_bursts(model, extent.n_rounds, conditions.seed)
        conditions.report_progress("texts that break the encoder")
        figures += await measure_poison(model, conditions.seed)
        return ClaimResult(tuple(figures))


def measure_padding(n: int, seed: int) -> list[Figure]:
    """Padding and p99 in virtual time."""
    fixed_per_s = 0.75 * SIZE / (START_S + SIZE * LONG * TOKEN_S)
    one_per_s = 0.7 / usual_cost_s()
    quiet, busy = _compare(n, fixed_per_s, seed), _compare(n, one_per_s, seed)
    worst = max(max(run.worst) for run in (quiet, busy))
    return [
        Figure.exact("most padding of a batch, at both loads", worst * 100, "%", WASTE * 100),
        Figure.of_rounds(f"padding of all batches of {SIZE} with a timer, busy", busy.fixed_waste, "%"),
        Figure.of_rounds("padding of all our batches, busy", busy.waste, "%"),
        Figure.of_rounds("busy: p99 of short texts, of that of one by one", busy.short_of_one, "", SHORT_GOAL),
        Figure.of_rounds("busy: p99 of all texts, of that of one by one", busy.all_of_one, "", ALL_GOAL),
        Figure.of_rounds("busy: p99 of short texts, ours", busy.short_s, "s"),
        Figure.of_rounds(f"busy: p99 of short texts, batches of {SIZE} with a timer", busy.fixed_s, "s"),
        Figure.of_rounds("busy: p99 of short texts, what waits, without buckets", busy.natural_s, "s"),
        Figure.of_rounds("busy: p99 of short texts, one by one", busy.one_s, "s"),
        Figure.of_rounds("quiet: p99 of short texts, of that of one by one", quiet.short_of_one, "", QUIET_GOAL),
        Figure.of_rounds(f"quiet: p99 of short texts, of that of batches of {SIZE} with a timer",
                         [ours / fixed for ours, fixed in zip(quiet.short_s, quiet.fixed_s, strict=True)], "", FIXED_GOAL),
        Figure.of_rounds("quiet: p99 of short texts, of that of what waits, without buckets",
                         [ours / natural for ours, natural in zip(quiet.short_s, quiet.natural_s, strict=True)], "",
                         NATURAL_GOAL),
        Figure.of_rounds("quiet: p99 of short texts, ours", quiet.short_s, "s")]


@dataclass(slots=True)
class _Compared:
    """One value for each seed; times are p99."""

    worst: list[float]
    waste: list[float]
    fixed_waste: list[float]
    short_s: list[float]
    fixed_s: list[float]
    natural_s: list[float]
    one_s: list[float]
    short_of_one: list[float]
    all_of_one: list[float]


def _compare(n: int, per_s: float, seed: int) -> _Compared:
    found = _Compared([], [], [], [], [], [], [], [], [])
    for number in range(N_SEEDS):
        def run(batcher: Batcher, number: int = number) -> Any:
            return run_encoder(batcher, draw_texts(n, per_s, Random(f"{seed} {number}")))

        batcher = PolicyBatcher()
        ours, fixed = run(batcher), run(FixedBatcher(SIZE, TIMER_S))
        natural, one = run(FixedBatcher(SIZE)), run(FixedBatcher(1))
        found.worst.append(batcher.worst_waste)
        found.waste.append(ours.waste * 100)
        found.fixed_waste.append(fixed.waste * 100)
        found.short_s.append(_p99(ours.times_s(short=True)))
        found.fixed_s.append(_p99(fixed.times_s(short=True)))
        found.natural_s.append(_p99(natural.times_s(short=True)))
        found.one_s.append(_p99(one.times_s(short=True)))
        found.short_of_one.append(found.short_s[-1] / found.one_s[-1])
        found.all_of_one.append(_p99(ours.times_s()) / _p99(one.times_s()))
    return found


def _p99(times_s: Sequence[float]) -> float:
    return ExactDistribution(times_s).quantile(0.99)


def measure_overload(seed: int) -> list[Figure]:
    """Bursts in virtual time: refusals that come back, and deadlines of accepted texts."""
    n_refused = n_back = n_accepted = n_late = 0
    for number in range(N_SEEDS):
        rng, batcher = Random(f"{seed} overload {number}"), PolicyBatcher(LIMITS._replace(max_waiting_tokens=BOUND))
        warmed = run_encoder(batcher, draw_texts(4 * MIN_BATCHES, 0.5 / usual_cost_s(), rng))
        now = max(text.done_at for text in warmed.texts)
        within_s = 2 * BOUND / batcher.queue.tokens_per_s
        accepted: list[SimulatedText] = []
        back: list[tuple[float, SimulatedText]] = []
        for text in draw_texts(TIMES_BOUND * BOUND // 40, 1e9, rng):
            full = batcher.queue.refuse([text.n_tokens], now)
            if full is None:
                accepted.append(_arrive(batcher, text, now, within_s))
            elif full.retry_after_s is not None:
                back.append((now + full.retry_after_s, text))
        n_refused += len(back)
        for at, text in sorted(back, key=lambda one: one[0]):
            now = _work_until(batcher, now, at)
            if batcher.queue.refuse([text.n_tokens], max(now, at)) is None:
                n_back += 1
                accepted.append(_arrive(batcher, text, max(now, at), within_s))
        _work_until(batcher, now, float("inf"))
        n_accepted += len(accepted)
        n_late += sum(text.done_at > text.deadline_at for text in accepted)
    return [Figure.share("overload: refused texts accepted at their Retry-After", n_back, n_refused, 0.9, Sense.AT_LEAST),
            Figure.count(f"overload: of {n_accepted:,} accepted texts, encoded late or never", n_late),
            Figure.count("overload: refused texts", n_refused, 1, Sense.AT_LEAST)]


def _arrive(batcher: PolicyBatcher, text: SimulatedText, now: float, within_s: float) -> SimulatedText:
    text.queued_at, text.deadline_at = now, now + within_s
    batcher.add(text)
    return text


def _work_until(batcher: PolicyBatcher, now: float, until: float) -> float:
    """Run batches that begin before an instant; returns when the encoder is idle or that instant has passed."""
    while now < until:
        batch = batcher.take(now)
        if not batch:
            return min(until, now) if until == float("inf") else until
        seconds = START_S + TOKEN_S * len(batch) * max(text.n_tokens for text in batch)
        now += seconds
        for text in batch:
            text.done_at = now
        batcher.finish(batch, seconds)
    return now


def draw_burst(rng: Random, n: int = BURST) -> list[str]:
    """Different texts; one in ONE_LONG_IN is long, at random places."""
    long = set(rng.sample(range(n), n // ONE_LONG_IN))
    lengths = [LONG_WORDS if number in long else rng.randint(*SHORT_WORDS) for number in range(n)]
    return [" ".join([*rng.choices(_WORDS, k=length), str(rng.random())[:8]]) for length in lengths]


class EncodedText(NamedTuple):
    """Seconds since the start of its burst: of CPU of this process, and of a clock."""

    n_tokens: int
    cpu_s: float
    wall_s: float


class BurstRatios(NamedTuple):
    """One value for each round."""

    of_fixed: list[float]
    of_one: list[float]
    short_of_one: list[float]

    def add(self, runs: dict[str, list[tuple[int, float]]]) -> None:
        """Tokens and seconds of the texts of one round, by batcher."""
        whole = {name: max(at for _, at in times) for name, times in runs.items()}
        short = {name: ExactDistribution([at for n_tokens, at in times if n_tokens < LONG_WORDS]).quantile(0.5)
                 for name, times in runs.items()}
        self.of_fixed.append(whole["ours"] / whole["fixed"])
        self.of_one.append(whole["ours"] / whole["one"])
        self.short_of_one.append(short["ours"] / short["one"])


async def measure_bursts(model: Any, n_rounds: int, seed: int) -> list[Figure]:
    """Bursts on the real encoder: ratios of each round."""
    rng = Random(seed)
    batched = import_module("stayfast.stores.batched_embedder")
    embedder = batched.BatchedEmbedder(model, EmbedderConfig(max_tokens=128, cache_bytes=65_536), SystemClock())
    for _ in range(2):  # learns the costs
        await encode_burst(embedder, draw_burst(rng))
    cpu, wall = BurstRatios([], [], []), BurstRatios([], [], [])
    for number in range(n_rounds):
        texts = draw_burst(rng)
        runs: dict[str, list[EncodedText]] = {}
        for name in ("ours", "one", "fixed") if number % 2 else ("fixed", "one", "ours"):
            runs[name] = await (encode_burst(embedder, texts) if name == "ours" else
                                encode_fixed(model, texts, 1 if name == "one" else SIZE))
        cpu.add({name: [(text.n_tokens, text.cpu_s) for text in texts] for name, texts in runs.items()})
        wall.add({name: [(text.n_tokens, text.wall_s) for text in texts] for name, texts in runs.items()})
    counts = embedder.counts
    embedder.close()
    burst, half = f"MiniLM, a burst of {BURST}", "MiniLM, until half of the short texts are done"
    return [Figure.of_rounds(f"{burst}: CPU, of that of batches of {SIZE}", cpu.of_fixed, "", REAL_FIXED_GOAL),
            Figure.of_rounds(f"{burst}: CPU, of that of one by one", cpu.of_one, "", REAL_GOAL),
            Figure.of_rounds(f"{half}: CPU, of that of one by one", cpu.short_of_one, "", REAL_SHORT_GOAL),
            Figure.of_rounds(f"{burst}: wall time, of that of batches of {SIZE}", wall.of_fixed, ""),
            Figure.of_rounds(f"{burst}: wall time, of that of one by one", wall.of_one, ""),
            Figure.of_rounds(f"{half}: wall time, of that of one by one", wall.short_of_one, ""),
            Figure.exact("MiniLM: padding of all batches", 100 * (1 - counts.n_tokens / counts.n_padded), "%", WASTE * 100),
            Figure.exact("MiniLM: texts of a batch, on average", counts.n_texts / counts.n_batches, "")]


async def encode_burst(embedder: Any, texts: Sequence[str]) -> list[EncodedText]:
    """Each text as a request of its own."""
    cpu_at, wall_at = process_time(), _CLOCK.now()

    async def embed(text: str) -> EncodedText:
        await embedder.embed([text])
        return EncodedText(embedder.count_tokens(text), process_time() - cpu_at, _CLOCK.now() - wall_at)

    return await asyncio.gather(*(embed(text) for text in texts))


async def encode_fixed(model: Any, texts: Sequence[str], size: int) -> list[EncodedText]:
    """Batches of `size` in order of arrival, on another thread, as `encode_burst`."""
    cpu_at, wall_at, found = process_time(), _CLOCK.now(), list[EncodedText]()
    ids = [model.tokenize(text)[0] for text in texts]
    for begin in range(0, len(ids), size):
        batch = ids[begin:begin + size]
        await asyncio.to_thread(model.encode, batch)
        cpu_s, wall_s = process_time() - cpu_at, _CLOCK.now() - wall_at
        found += [EncodedText(len(text), cpu_s, wall_s) for text in batch]
    return found


class PoisonModel:
    """An encoder that breaks for a batch which contains the poison: `act` raises or blocks."""

    def __init__(self, model: Any, poison: list[int], act: Callable[[], None]) -> None:
        self.id, self.n_dims, self.can_pad = model.id, model.n_dims, model.can_pad
        self.tokenize = model.tokenize
        self._encode = model.encode
        self._poison = poison
        self._act = act

    def encode(self, batch: list[list[int]]) -> Any:
        if self._poison in batch:
            self._act()
        return self._encode(batch)


async def measure_poison(model: Any, seed: int) -> list[Figure]:
    """Companions of a text that breaks the encoder."""
    def fail() -> None:
        raise RuntimeError("poison")

    def hang() -> None:
        Event().wait(HANG_S)

    raised, _ = await send_with_poison(model, fail, seed)
    _, hung_s = await send_with_poison(model, hang, seed)
    return [Figure.count(f"texts that failed, of {BURST} with one that the model raises for", raised, 1, Sense.AT_MOST),
            Figure.count("the same, at least", raised, 1, Sense.AT_LEAST),
            Figure.count(f"texts held for {HELD_S:g} s or more by one that hangs for {HANG_S:g} s",
                         sum(seconds >= HELD_S for seconds in hung_s))]


async def send_with_poison(model: Any, act: Callable[[], None], seed: int) -> tuple[int, list[float]]:
    """Failures of a burst, and the seconds of each text but the poison; inf: no answer within twice HANG_S."""
    rng, clock = Random(f"{seed} poison"), SystemClock()
    texts = [" ".join(rng.sample(_WORDS, 8)) for _ in range(BURST)]
    poison = texts[BURST // 2]
    batched = import_module("stayfast.stores.batched_embedder")
    broken = PoisonModel(model, model.tokenize(poison)[0], act)
    embedder = batched.BatchedEmbedder(broken, replace(EmbedderConfig(), max_batch_tokens=128), clock)
    for _ in range(MIN_BATCHES):
        await embedder.embed([" ".join(rng.choices(_WORDS, k=rng.randint(4, 20)))])
    n_failed, times_s = 0, list[float]()

    async def embed(text: str) -> None:
        nonlocal n_failed
        began_at = clock.now()
        try:
            async with asyncio.timeout(2 * HANG_S):
                await embedder.embed([text])
        except NoEmbedder:
            n_failed += 1
            return
        except TimeoutError:
            n_failed += 1
        if text is not poison:
            times_s.append(clock.now() - began_at)

    await asyncio.gather(*map(embed, texts))
    embedder.close()
    return n_failed, times_s
