"""What will be asked, and when: a list of shots, fixed by the seed before the run and never moved by what happens in it.

A shot holds numbers, not text: `Prompts` makes the text when it is needed, so a million shots are 200 MB and not 5 GB.
A conversation is a chain of shots: its first turn starts by the schedule, each other one when the answer before it has
ended and the user has thought. That is the user's own t0, so it is known only in the run; its think time and its lengths
are not. What stands for earlier answers in the history is made up as well: what is sent depends on the seed alone, so that
two targets are asked the very same.
"""

from bisect import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from random import Random

import msgspec

from stayfast.lab.load.arrivals import Arrivals, Recorded
from stayfast.lab.load.lengths import WORDINGS, FillerText, Length

BLOCK_TOKENS = 512  # what a hash of Mooncake's traces stands for


class Shot(msgspec.Struct, frozen=True, gc=False):
    """One request to come. `at_s`: its intended start (t0), in seconds from the run's zero; before zero is warm-up."""

    number: int
    at_s: float
    prompt: int  # which text: equal numbers are equal texts
    n_input: int  # tokens of the user's own message
    n_output: int  # tokens asked for
    wording: int = 0
    n_shared: int = 0  # leading tokens that are the same in all prompts
    blocks: tuple[int, ...] = ()  # identities of the prompt's leading blocks
    think_s: float = 0.0  # how long the user thinks before it, in turns after the first
    history: tuple["Shot", ...] = ()  # earlier turns
    then: "Shot | None" = None  # the next turn


@dataclass(frozen=True, slots=True)
class PoolConfig:
    """How prompts repeat. `share` of the requests draw one of `size` prompts, by Zipf's law with exponent `zipf`; of those
    `paraphrased` are asked in other words. All others are asked once."""

    size: int = 0
    share: float = 1.0
    zipf: float = 1.0
    paraphrased: float = 0.0

    def __post_init__(self) -> None:
        for name, value, most in (("size", self.size, 10_000_000), ("share", self.share, 1), ("zipf", self.zipf, 10),
                                  ("paraphrased", self.paraphrased, 1)):
            if not 0 <= value <= most:
                raise ValueError(f"the prompt pool's {name} must be 0 to {most:,}, not {value:g}")

    def __str__(self) -> str:
        if not self.size or not self.share:
            return "all different"
        reworded = f", {self.paraphrased:.0%} of them reworded" if self.paraphrased else ""
        rest = ", the rest different" if self.share < 1 else ""
        return f"{self.share:.0%} drawn from {self.size} prompts (Zipf {self.zipf:g}){reworded}{rest}"


@dataclass(frozen=True, slots=True)
class TurnsConfig:
    """Conversations of `n_turns` turns, with exponential think times of mean `think_s` between them."""

    n_turns: int = 1
    think_s: float = 5.0

    def __post_init__(self) -> None:
        if not 1 <= self.n_turns <= 1000:
            raise ValueError(f"a conversation has 1 to 1000 turns, not {self.n_turns}")
        if not 0 <= self.think_s <= 86_400:
            raise ValueError(f"the think time must be 0 to 86400 s, not {self.think_s:g}")


@dataclass(frozen=True, slots=True)
class Workload:
    """What is asked. `trace`, where there is one, says when and how long instead of `arrivals`, `input` and `output`."""

    input: Length
    output: Length
    arrivals: Arrivals | None = None  # None: a closed loop
    trace: Sequence[Recorded] = ()
    pool: PoolConfig = PoolConfig()
    turns: TurnsConfig = TurnsConfig()
    n_system: int = 0  # tokens of a system prompt that all requests share

    def __post_init__(self) -> None:
        if not 0 <= self.n_system <= 1_000_000:
            raise ValueError(f"the system prompt must have 0 to 1000000 tokens, not {self.n_system}")


@dataclass(frozen=True, slots=True)
class ScheduleLimit:
    """Where a schedule ends: before `until_s` seconds of it, or after `n_requests`, whichever comes first (None: no such
    end). Its first `warmup_s` seconds are warm-up, beside both."""

    until_s: float | None = None
    n_requests: int | None = None
    warmup_s: float = 0.0


def shots(workload: Workload, seed: int, limit: ScheduleLimit) -> Iterator[Shot]:
    """The shots in order of `at_s`; in a closed loop (no arrivals, no trace) endless and without instants."""
    rng = Random(seed)
    draw = _Draw(workload, rng)
    warmup_s = limit.warmup_s
    number = n_measured = 0
    for at_s, row in _starts(workload, Random(seed + 1)):
        if (limit.until_s is not None and at_s - warmup_s >= limit.until_s) or (
                limit.n_requests is not None and n_measured >= limit.n_requests):
            return
        first = draw.conversation(number, at_s - warmup_s, row)
        number += 1 + len(_turns_after(first))
        if at_s >= warmup_s:
            n_measured += 1 + len(_turns_after(first))
        yield first


def _starts(workload: Workload, rng: Random) -> Iterator[tuple[float, Recorded | None]]:
    if workload.trace:
        return ((row.at_s, row) for row in workload.trace)
    if workload.arrivals is not None:
        return ((at_s, None) for at_s in workload.arrivals.instants(rng))
    return iter(lambda: (0.0, None), 0)


def _turns_after(shot: Shot) -> list[Shot]:
    found = []
    while shot.then is not None:
        shot = shot.then
        found.append(shot)
    return found


class _Draw:
    def __init__(self, workload: Workload, rng: Random) -> None:
        self._workload = workload
        self._rng = rng
        pool = workload.pool
        self._weights = list(accumulate(1 / rank**pool.zipf for rank in range(1, pool.size + 1)))

    def conversation(self, number: int, at_s: float, row: Recorded | None) -> Shot:
        """A conversation's first turn, the others hanging on it."""
        config = self._workload.turns
        turns = [self._shot(number, at_s, row)]
        for n in range(1, config.n_turns):
            think_s = self._rng.expovariate(1 / config.think_s) if config.think_s else 0.0
            turn = self._shot(number + n, at_s, None)
            turns.append(msgspec.structs.replace(turn, think_s=think_s, history=tuple(turns)))
        linked = turns.pop()
        while turns:
            linked = msgspec.structs.replace(turns.pop(), then=linked)
        return linked

    def _shot(self, number: int, at_s: float, row: Recorded | None) -> Shot:
        workload, rng, pool = self._workload, self._rng, self._workload.pool
        if row is not None:
            return Shot(number, at_s, pool.size + number, max(1, row.n_input), max(1, row.n_output), n_shared=row.n_shared,
                        blocks=row.blocks)
        if not self._weights or (pool.share < 1 and rng.random() >= pool.share):
            return Shot(number, at_s, pool.size + number, workload.input.draw(rng), workload.output.draw(rng))
        prompt = min(bisect(self._weights, rng.random() * self._weights[-1]), pool.size - 1)
        wording = rng.randrange(1, len(WORDINGS)) if pool.paraphrased and rng.random() < pool.paraphrased else 0
        own = Random(prompt)  # a prompt has one length and one answer, whoever asks
        return Shot(number, at_s, prompt, workload.input.draw(own), workload.output.draw(own), wording)


class Prompts:
    """Shots to text. A pure function of the seed."""

    def __init__(self, seed: int, n_system: int = 0) -> None:
        self._book = FillerText(seed)
        self.system = self._book.passage(0, n_system)

    def user(self, shot: Shot) -> str:
        if shot.blocks:
            n_blocks = min(len(shot.blocks), -(-shot.n_input // BLOCK_TOKENS))
            sizes = [BLOCK_TOKENS] * (n_blocks - 1) + [shot.n_input - BLOCK_TOKENS * (n_blocks - 1)]
            return " ".join(self._book.prompt(block, size) for block, size in zip(shot.blocks, sizes, strict=False))
        if shot.n_shared:
            shared = self._book.passage(1, min(shot.n_shared, shot.n_input))
            n_left = shot.n_input - shot.n_shared
            return f"{shared} {self._book.prompt(shot.prompt, n_left)}" if n_left > 0 else shared
        return self._book.prompt(shot.prompt, shot.n_input, shot.wording)

    def dialogue(self, shot: Shot) -> list[tuple[str, str]]:
        """Role and text of each message, the last one the user's; without the system prompt."""
        turns: list[tuple[str, str]] = []
        for turn in shot.history:
            turns += [("user", self.user(turn)), ("assistant", self._book.passage(turn.prompt + 2, turn.n_output))]
        turns.append(("user", self.user(shot)))
        return turns
