"""Rules of the providers' prompt caches by family of models.

    claude-*           only marked prefixes are stored, at most 4 marks; writes cost 1.25 (5 minutes) or 2 (1 hour), reads
                       0.1; prefixes below the model's minimum are silently not stored
    gpt-5.6 and later  stored at marks, one of which the provider sets itself at the latest message; writes 1.25, reads 0.1
    older gpt, o*      stored automatically from 1024 tokens, on the machine chosen by `prompt_cache_key`; writes are free
    gemini, deepseek   stored automatically; no control
    any other name     behind Anthropic's protocol as claude-*, with the highest minimum of the family; else unknown

Source: the providers' documentation as of late 2026 (docs/concepts/prompt-layout.md). When wrong: minimums change; reported
usage raises them at run time, and `prefix.models` in the settings replaces a row.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Annotated, Final, Literal

from stayfast.core.setting import SettingDoc, check_bounds
from stayfast.core.types import Api

MarksOf = Literal["anthropic", "openai", "none"]
MINUTES_S: Final = 300.0  # lifetime of Anthropic's short entries; assumed elsewhere, where an error costs little
HOUR_S: Final = 3600.0


@dataclass(frozen=True, slots=True)
class PrefixRules:
    """The rules of one family. Factors are relative to the price of plain input."""

    marks: MarksOf = "none"
    min_tokens: int = 1024
    most_marks: int = 0
    write_factor: float = 1.0
    read_factor: float = 0.1
    keeps_s: float = MINUTES_S
    has_key: bool = False  # accepts `prompt_cache_key`
    marks_end: bool = False  # the end of a conversation must be marked, too, as the provider does not
    row: str = field(default="", compare=False)  # the row of the table, or the setting, for people

    def __str__(self) -> str:
        how = "nothing is marked" if self.marks == "none" else f"{self.marks} marks from {self.min_tokens} tokens on"
        return f"{self.row}: {how}{', a key' * self.has_key}"

    def for_api(self, api: Api) -> "PrefixRules":
        """The rules that a protocol can express: behind another provider's protocol a mark may be an unknown field."""
        if self.marks == "none" or (self.marks == "anthropic") is (api is Api.MESSAGES):
            return self
        return replace(self, marks="none", most_marks=0)


def _claude(min_tokens: int) -> PrefixRules:
    return PrefixRules("anthropic", min_tokens, 4, 1.25, 0.1, MINUTES_S, marks_end=True)


_AUTOMATIC: Final = PrefixRules("none", 1024, 0, has_key=True)
_BREAKPOINTS: Final = PrefixRules("openai", 1024, 3, 1.25, 0.1, 1800.0, has_key=True)  # a fourth is the provider's own
_FAMILIES: Final = tuple((re.compile(pattern), replace(rules, row=pattern)) for pattern, rules in (
    (r"claude-(opus|fable|mythos)-5", _claude(512)),
    (r"claude-opus-4-8", _claude(1024)),
    (r"claude-opus-4-7", _claude(2048)),
    (r"claude-(opus-4-[56]|haiku-4-5)", _claude(4096)),
    (r"claude-(3-haiku|3-5-haiku|haiku-3)", _claude(2048)),
    (r"claude", _claude(1024)),
    (r"gpt-(5-([6-9]|1\d)|[6-9])(?!\d|b\b)", _BREAKPOINTS),  # not gpt-5-2025-08-07 (a date) or gpt-60b (a size)
    (r"(gpt-\d+(?!\d|b\b)|chatgpt|codex|o\d)", _AUTOMATIC),
    (r"gemini-(3-1-pro|3-[5-9]-flash|4)", PrefixRules(min_tokens=4096)),
    (r"gemini", PrefixRules(min_tokens=2048)),
    (r"deepseek", PrefixRules(min_tokens=64)),
))
_UNNAMED: Final = replace(_claude(4096), row="unknown name behind Anthropic's protocol")
_PREFIXES: Final = re.compile(r"^(?:.*/)?(?:[a-z-]+\.)*(?=[a-z])")  # openrouter's vendor/, Bedrock's us.anthropic.


@dataclass(frozen=True, slots=True)
class ModelRules:
    """Settings that replace the table's rules for some models. None: as in the table."""

    breakpoints: Annotated[MarksOf | None, SettingDoc("Syntax of cache breakpoints. null: as its family.")] = None
    min_tokens: Annotated[int | None, SettingDoc(
        "Shortest prefix that is cached. null: as its family.", minimum=0, maximum=1_000_000)] = None

    def __post_init__(self) -> None:
        check_bounds(self)


def rules_of(model: str, own: Mapping[str, ModelRules], *, is_anthropic: bool = False) -> PrefixRules | None:
    """The rules of a model, by its name at the upstream; None: unknown. `own`: by shell pattern, the first match applies.
    `is_anthropic`: the upstream uses Anthropic's protocol, where a name may be the operator's own.
    """
    name = _PREFIXES.sub("", model.lower()).replace(".", "-")
    found = next((rules for pattern, rules in _FAMILIES if pattern.match(name)), None)
    if found is None and is_anthropic:
        found = _UNNAMED
    for pattern, model_rules in own.items():
        if fnmatchcase(model, pattern):
            return replace(_override(found or PrefixRules(), model_rules), row=f"prefix.models, {pattern}")
    return found


def _override(rules: PrefixRules, model_rules: ModelRules) -> PrefixRules:
    if model_rules.breakpoints is not None and model_rules.breakpoints != rules.marks:
        rules = {"anthropic": _claude(rules.min_tokens), "openai": _BREAKPOINTS,
                 "none": PrefixRules()}[model_rules.breakpoints]
    return rules if model_rules.min_tokens is None else replace(rules, min_tokens=model_rules.min_tokens)
