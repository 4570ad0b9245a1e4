"""What each family of models says of its cache of prompts' beginnings.

    claude-*           only what is marked is kept, at most 4 marks; writes cost 1.25 (5 minutes) or 2 (1 hour), reads 0.1;
                       shorter prefixes than the model's floor are silently not kept
    gpt-5.6 and later  kept at marks, of which the provider sets one itself, at the latest message; writes 1.25, reads 0.1
    older gpt, o*      kept by itself from 1024 tokens on, at the machine that `prompt_cache_key` leads to; writes are free
    gemini, deepseek   kept by itself; nothing can be said
    any other name     behind Anthropic's protocol as claude-*, with the highest floor that any of them has; else unknown

Source: the providers' documentation as of late 2026 (docs/concepts/prompt-layout.md). When wrong: floors have moved before;
what usage says raises them here while it runs, and `prefix.models` in the settings replaces a row.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Annotated, Final, Literal

from stayfast.core.setting import SettingDoc, check_bounds
from stayfast.core.types import Api

MarksOf = Literal["anthropic", "openai", "none"]
MINUTES_S: Final = 300.0  # how long Anthropic's short entries live; what it costs to be wrong elsewhere is a moment
HOUR_S: Final = 3600.0


@dataclass(frozen=True, slots=True)
class PrefixRules:
    """One family's. Factors are of the price of plain input."""

    marks: MarksOf = "none"
    min_tokens: int = 1024
    most_marks: int = 0
    write_factor: float = 1.0
    read_factor: float = 0.1
    keeps_s: float = MINUTES_S
    has_key: bool = False  # it takes `prompt_cache_key`
    marks_end: bool = False  # where the conversation has got to must be marked as well: nobody else does
    row: str = field(default="", compare=False)  # which of the table's, or whose word, for people

    def __str__(self) -> str:
        how = "nothing is marked" if self.marks == "none" else f"{self.marks} marks from {self.min_tokens} tokens on"
        return f"{self.row}: {how}{', a key' * self.has_key}"

    def for_api(self, api: Api) -> "PrefixRules":
        """As far as they can be said in a dialect: behind another provider's protocol a mark may be an unknown field."""
        if self.marks == "none" or (self.marks == "anthropic") is (api is Api.MESSAGES):
            return self
        return replace(self, marks="none", most_marks=0)


def _claude(floor_tokens: int) -> PrefixRules:
    return PrefixRules("anthropic", floor_tokens, 4, 1.25, 0.1, MINUTES_S, marks_end=True)


_AUTOMATIC: Final = PrefixRules("none", 1024, 0, has_key=True)
_BREAKPOINTS: Final = PrefixRules("openai", 1024, 3, 1.25, 0.1, 1800.0, has_key=True)  # a fourth is the provider's own
_FAMILIES: Final = tuple((re.compile(pattern), replace(rules, row=pattern)) for pattern, rules in (
    (r"claude-(opus|fable|mythos)-5", _claude(512)),
    (r"claude-opus-4-8", _claude(1024)),
    (r"claude-opus-4-7", _claude(2048)),
    (r"claude-(opus-4-[56]|haiku-4-5)", _claude(4096)),
    (r"claude-(3-haiku|3-5-haiku|haiku-3)", _claude(2048)),
    (r"claude", _claude(1024)),
    (r"gpt-(5-([6-9]|1\d)|[6-9])(?!\d|b\b)", _BREAKPOINTS),  # gpt-5-2025-08-07 is of a date, gpt-60b of a size
    (r"(gpt-\d+(?!\d|b\b)|chatgpt|codex|o\d)", _AUTOMATIC),
    (r"gemini-(3-1-pro|3-[5-9]-flash|4)", PrefixRules(min_tokens=4096)),
    (r"gemini", PrefixRules(min_tokens=2048)),
    (r"deepseek", PrefixRules(min_tokens=64)),
))
_UNNAMED: Final = replace(_claude(4096), row="a name that is not known, behind Anthropic's protocol")
_BEFORE: Final = re.compile(r"^(?:.*/)?(?:[a-z-]+\.)*(?=[a-z])")  # openrouter's vendor/, Bedrock's us.anthropic.


@dataclass(frozen=True, slots=True)
class ModelRules:
    """What the settings say of some models in place of the table. None: as there."""

    breakpoints: Annotated[MarksOf | None, SettingDoc("Syntax of cache breakpoints. null: as its family.")] = None
    min_tokens: Annotated[int | None, SettingDoc(
        "Shortest prefix that is cached. null: as its family.", minimum=0, maximum=1_000_000)] = None

    def __post_init__(self) -> None:
        check_bounds(self)


def rules_of(model: str, own: Mapping[str, ModelRules], *, is_anthropic: bool = False) -> PrefixRules | None:
    """The rules of a model, by its name at the upstream; None: unknown. `own`: by shell pattern, the first that fits.
    `is_anthropic`: it is asked in Anthropic's protocol, in which a name of the operator's own says nothing.
    """
    name = _BEFORE.sub("", model.lower()).replace(".", "-")
    found = next((rules for pattern, rules in _FAMILIES if pattern.match(name)), None)
    if found is None and is_anthropic:
        found = _UNNAMED
    for pattern, model_rules in own.items():
        if fnmatchcase(model, pattern):
            return replace(_with(found or PrefixRules(), model_rules), row=f"prefix.models, {pattern}")
    return found


def _with(rules: PrefixRules, model_rules: ModelRules) -> PrefixRules:
    if model_rules.breakpoints is not None and model_rules.breakpoints != rules.marks:
        rules = {"anthropic": _claude(rules.min_tokens), "openai": _BREAKPOINTS,
                 "none": PrefixRules()}[model_rules.breakpoints]
    return rules if model_rules.min_tokens is None else replace(rules, min_tokens=model_rules.min_tokens)
