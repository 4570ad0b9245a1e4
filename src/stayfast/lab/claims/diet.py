"""System prompts at a provider that caches prompts: the finding names the byte that moves, and what it advises works.

Simulated providers in virtual time, production code, settings as in a file. In each scene one thing is planted in long
instructions: a date, UUID, timestamp, id or counter that changes with each request, at a place of the first half drawn by
seed. The finding must name the block and the byte where it begins; on the same instructions without it nothing may be found.
Then the change that the finding describes is made: its patch of the settings where the date stands in a block of its own,
the text moved to the end of the instructions where it does not. Paragraphs that stand twice are planted, too, and left out
by the setting that the finding names.

When wrong: a simulated provider answers alike whatever the prompt is, so its answers show only that all
arrive; what a model makes of a rule that stands once instead of twice is not measured.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final

import yaml

from stayfast.core.findings import Finding
from stayfast.core.snapshot import Snapshot
from stayfast.lab.doctor.prompt_version_plants import rules
from stayfast.lab.doctor.run import observe_scene
from stayfast.lab.doctor.scene import Flow, Scene, merge_trees
from stayfast.lab.harness.claim import ClaimResult, Conditions, Extent, Figure, Sense, ratio
from stayfast.policy.findings.prompt_versions import find_moving_part, find_repeated_paragraphs
from stayfast.policy.findings.rows import HOUR_S, route_row

Json = dict[str, Any]
Check = Callable[[Snapshot], Iterable[Finding]]
System = Callable[[Random], list[str]]  # the instruction texts of a request
ROUTE: Final = "chat"
N_RULE_WORDS: Final = 2600
N_QUESTION_WORDS: Final = 60
N_REPEATED_WORDS: Final = 240
SECONDS: Final = 60.0
PER_S: Final = 4.0
BEFORE_AT_MOST, AFTER_AT_LEAST = 0.05, 0.70
SLACK: Final = 0.02  # of the planted tokens: prompts are counted in whole tokens
KINDS: Final[Sequence[Callable[[Random], str]]] = (
    lambda rng: f"2026-{rng.randrange(1, 13):02}-{rng.randrange(1, 29):02} {rng.randrange(24):02}:{rng.randrange(60):02}",
    lambda rng: f"{rng.randrange(16**8):08x}-{rng.randrange(16**4):04x}-4000-8000-{rng.randrange(16**12):012x}",
    lambda rng: f"17{rng.randrange(10**8):08}",
    lambda rng: f"a1{rng.randrange(16**22):022x}",
    lambda rng: f"{rng.randrange(10**6, 10**7)}",
)


def diet_scene(system: System, changes: Mapping[str, Any] | None = None) -> Scene:
    """Requests with these instructions at a provider that caches prefixes of 1,024 tokens. changes: of the settings."""
    def make(rng: Random, _: Flow) -> list[Json]:
        question = " ".join(f"{rng.randrange(100_000)}" for _ in range(N_QUESTION_WORDS))
        return [*({"role": "system", "content": text} for text in system(rng)), {"role": "user", "content": question}]

    provider = {"kind": "simulated", "probe": False, "ttft": {"median_s": 0.3, "sigma": 0.2}, "output": {"median": 20.0},
                "gaps": {"median_s": 0.01, "tokens_per_chunk": 8},
                "prompt_cache": {"rules": "automatic", "min_tokens": 1024}}
    settings = {"upstreams": {"provider": provider}, "routes": {ROUTE: {"upstreams": ["provider"]}}}
    flow = Flow(ROUTE, PER_S, make_messages=make, max_tokens=32)
    return Scene(merge_trees(settings, changes or {}), {ROUTE: flow}, SECONDS)


def cached_share(snapshot: Snapshot) -> float:
    """Of all input tokens."""
    row = route_row(snapshot, ROUTE, HOUR_S)
    return ratio(row.n_cached_tokens, row.n_input_tokens)


@dataclass(frozen=True, slots=True)
class DietClaim:
    """n of an extent: places; n_rounds: scenes of each removal. Checks as fields, so that a test can break them."""

    full: Extent = Extent(60, n_rounds=8)
    quick: Extent = Extent(10, n_rounds=2)
    find_moving: Check = find_moving_part
    find_repeats: Check = find_repeated_paragraphs

    name = "diet"
    statement = ("A date, id or counter that moves in a system prompt is named to the byte at all of 60 places, and in none "
                 "of 60 stable prompts. What the finding advises lets the share of input that is read from the provider's "
                 f"cache rise from at most {BEFORE_AT_MOST:.0%} to at least {AFTER_AT_LEAST:.0%}. Paragraphs that stand "
                 f"twice are left out by the setting: the input falls by what was planted (within {SLACK:.0%}), and 0 "
                 "answers fail. Virtual time.")

    async def run(self, conditions: Conditions) -> ClaimResult:
        extent = conditions.choose(self.full, self.quick)
        return await asyncio.to_thread(self._measure, extent, conditions)

    def _measure(self, extent: Extent, conditions: Conditions) -> ClaimResult:
        rng, notes = Random(conditions.seed), []
        missed = found_stable = 0
        conditions.report_progress(f"{extent.n} places, and as many stable prompts")
        for n in range(extent.n):
            text, kind = rules(N_RULE_WORDS, rng.randrange(1000)), KINDS[n % len(KINDS)]
            at = rng.randrange(int(0.45 * len(text)))
            wrong = self._name_byte(text, at, kind, conditions.seed + n)
            missed += bool(wrong)
            notes += [wrong] if wrong else []
            stable = observe_scene(diet_scene(_always(_insert(text, at, kind(rng)))), conditions.seed + n)
            found_stable += bool(list(self.find_moving(stable)))
        figures = [Figure.count(f"places not named to the byte, of {extent.n}", missed),
                   Figure.count(f"stable prompts with a finding, of {extent.n}", found_stable)]
        for what, measure in (("a date in a block of its own, by the patch of the finding", self._patch_block),
                              ("a date in the text, moved to the end", self._move_to_end)):
            conditions.report_progress(f"{extent.n_rounds} times {what}")
            shares = [measure(rng, conditions.seed + n) for n in range(extent.n_rounds)]
            most, least = max(before for before, _ in shares), min(after for _, after in shares)
            figures += [Figure.exact(f"{what}: most input read from the cache before", most * 100, "%",
                                     BEFORE_AT_MOST * 100),
                        Figure.exact(f"{what}: least after", least * 100, "%", AFTER_AT_LEAST * 100, Sense.AT_LEAST)]
        conditions.report_progress(f"{extent.n_rounds} times repeated paragraphs")
        return ClaimResult((*figures, *self._leave_out(rng, conditions.seed, extent.n_rounds)), tuple(notes))

    def _name_byte(self, text: str, at: int, kind: Callable[[Random], str], seed: int) -> str:
        """Empty if the finding names the byte, else what it did instead."""
        snapshot = observe_scene(diet_scene(lambda rng: [_insert(text, at, kind(rng))]), seed)
        found = list(self.find_moving(snapshot))
        planted = f"byte {len(text[:at].encode()) + _n_escapes(text[:at]) + 2} of messages[0].content"
        if len(found) == 1 and f"{planted} " in found[0].summary:
            return ""
        return f"planted at {planted}, found: {'; '.join(one.summary for one in found) or 'nothing'}"

    def _patch_block(self, rng: Random, seed: int) -> tuple[float, float]:
        """Cached shares before and after the patch of the finding."""
        text = rules(N_RULE_WORDS, rng.randrange(1000))

        def system(rng: Random) -> list[str]:
            return [f"It is {KINDS[0](rng)}.", text]

        before = observe_scene(diet_scene(system), seed)
        patch = next((change.patch for one in self.find_moving(before) for change in one.do if change.patch), "")
        after = observe_scene(diet_scene(system, yaml.safe_load(patch) or {}), seed)
        return cached_share(before), cached_share(after)

    def _move_to_end(self, rng: Random, seed: int) -> tuple[float, float]:
        """Cached shares with a date early in the instructions, and at their end if the finding advises so."""
        text = rules(N_RULE_WORDS, rng.randrange(1000))
        before = observe_scene(diet_scene(lambda rng: [f"It is {KINDS[0](rng)}. {text}"]), seed)
        if not any("end of the instructions" in change.effect for one in self.find_moving(before) for change in one.do):
            return cached_share(before), cached_share(before)
        after = observe_scene(diet_scene(lambda rng: [f"{text} It is {KINDS[0](rng)}."]), seed)
        return cached_share(before), cached_share(after)

    def _leave_out(self, rng: Random, seed: int, n_rounds: int) -> list[Figure]:
        """The tokens that the setting saves, relative to those of the planted paragraphs, and failed answers."""
        saved, n_failed, n_named = [], 0, 0
        for n in range(n_rounds):
            text = rules(N_RULE_WORDS, rng.randrange(1000))
            twice = rules(N_REPEATED_WORDS, rng.randrange(1000, 2000))
            once, both = f"{twice}\n\n{text}", f"{twice}\n\n{text}\n\n{twice}"
            plain, without = [observe_scene(diet_scene(_always(one)), seed + n) for one in (both, once)]
            found = list(self.find_repeats(plain))
            n_named += len(found)
            patch = next((change.patch for one in found for change in one.do if change.patch), "")
            diet = observe_scene(diet_scene(_always(both), yaml.safe_load(patch) or {}), seed + n)
            saved.append(ratio(_input_a_request(plain) - _input_a_request(diet),
                               _input_a_request(plain) - _input_a_request(without)) * 100)
            n_failed += route_row(diet, ROUTE, HOUR_S).n_failed
        return [Figure.count(f"repeated paragraphs: prompts not named, of {n_rounds}", n_rounds - n_named),
                Figure.exact("least of the planted tokens that is saved", min(saved), "%", 100 * (1 - SLACK),
                             Sense.AT_LEAST),
                Figure.exact("most of the planted tokens that is saved", max(saved), "%", 100 * (1 + SLACK)),
                Figure.count("answers that failed with the setting", n_failed)]


def _always(text: str) -> System:
    return lambda _: [text]


def _insert(text: str, at: int, item: str) -> str:
    return f"{text[:at]} {item} {text[at:]}"


def _n_escapes(text: str) -> int:
    """Bytes that JSON adds to a text of words and lines."""
    return text.count("\n")


def _input_a_request(snapshot: Snapshot) -> float:
    row = route_row(snapshot, ROUTE, HOUR_S)
    return ratio(row.n_input_tokens, row.n)
