"""A run of the controller against arms with given speeds."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import exp
from random import Random

from stayfast.policy.speculation.controller import ArmChoice, DecodeSample, SpeculationController


@dataclass
class ArmRun:
    """gains: speed of each arm as a multiple of plain decoding, which may change between calls of `run`."""

    gains: dict[str, float]
    seed: int = 1
    noise: float = 0.2
    accepted: float = 0.8
    n_slots: int = 32
    explore_share: float = 0.02
    gap_s: float = 1.0  # between requests
    choices: list[ArmChoice] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._rng = Random(self.seed)
        self.now = 0.0
        self.controller = SpeculationController(tuple(self.gains), self.n_slots, Random(self.seed + 1),
                                                explore_share=self.explore_share)

    def run(self, n: int, *, n_in_flight: int = 1, n_tokens: int = 100, limit: int | None = None,
            gains: Mapping[str, float] | None = None) -> list[ArmChoice]:
        """n more requests, one after the other; returns their choices."""
        self.gains |= gains or {}
        found = []
        for _ in range(n):
            self.now += self.gap_s
            choice = self.controller.choose("route", n_in_flight, limit, self.now)
            speed = 100.0 * self.gains[choice.arm] * exp(self._rng.gauss(0.0, self.noise))
            n_drafted = 0 if choice.arm == "off" else n_tokens
            sample = DecodeSample(n_tokens, speed, n_drafted, int(self.accepted * n_drafted))
            self.controller.record(choice, sample, self.now)
            found.append(choice)
        self.choices += found
        return found


def count_arms(choices: list[ArmChoice]) -> Counter[str]:
    return Counter(choice.arm for choice in choices)


def count_tries(choices: list[ArmChoice]) -> int:
    return sum(choice.why == "tried" for choice in choices)
