"""When a smaller tier is enough for a route's requests, and what it may cost to find out: the settings `enough`.

Problem: a small model answers most requests as well as a large one, and a wrong answer of it looks like a right one. The
length, the words or the form of a prompt do not show which requests these are (measured: no better than chance). Rule: only
outcomes count. Answers are checked, a sample is compared with the large tier's answers, and nothing changes before the share
of enough answers is proven (`policy/tiers/evidence.py`).

    shadow     nothing changes for clients. A sample is answered by both tiers, and the share of enough answers is reported
    cascade    the small tier answers first, once its checked answers are proven. An answer that fails a check is replaced
    learned    the small tier answers the requests that are like those for which it was enough

Source: Chen, Zaharia, Zou, "FrugalGPT" (2023) for cascades. When wrong: an answer that differs from the large tier's answer
may be right, and an equal one wrong: "enough" means what the large tier would have given.
"""

import re
from dataclasses import dataclass, field
from typing import Annotated, Final, Literal

from stayfast.core.setting import SettingDoc, check_bounds

WORDS: Final = "words"
EXACT: Final = "exact"


@dataclass(frozen=True, slots=True)
class ChecksConfig:
    """What the whole answer of a smaller tier must pass. The first check that fails is the reason of the escalation."""

    not_empty: Annotated[bool, SettingDoc("The answer has a text or a tool call, and was not cut at a length limit.")] = True
    not_refused: Annotated[bool, SettingDoc(
        "The answer is no refusal: by finish reason, refusal field, or a phrase in its first 200 characters.")] = True
    refusal_phrases: Annotated[tuple[str, ...], SettingDoc("Further phrases of refusals, in any case of letters.")] = ()
    json: Annotated[Literal["off", "valid", "schema"], SettingDoc(
        "valid: the text is JSON. schema: it also fits the schema that the request sets; needs the extra `schema`. Both "
        "only for requests that want JSON.")] = "off"
    pattern: Annotated[str, SettingDoc("A regular expression that the text must contain. Empty: none.")] = ""
    min_logprob: Annotated[float | None, SettingDoc(
        "Smallest mean of the log-probabilities of the tokens. An answer without them fails: the request, or the upstream's "
        "settings, must ask for them. null: not checked.", minimum=-100, maximum=0)] = None
    min_token_logprob: Annotated[float | None, SettingDoc(
        "Smallest log-probability of a single token. null: not checked.", minimum=-100, maximum=0)] = None
    classifier: Annotated[str, SettingDoc(
        "Name of a classifier in `classifiers` that must be sure of the question's label. Empty: none.")] = ""
    hook: Annotated[str, SettingDoc(
        "Your own check, `module:function`, plain or async: gets the request's JSON and the answer's text, returns "
        "the reason why the answer is not enough, or an empty text. Empty: none.")] = ""

    def __post_init__(self) -> None:
        check_bounds(self)
        try:
            re.compile(self.pattern)
        except re.error as error:
            raise ValueError(f"pattern must be a regular expression: {error}") from None
        if self.hook and not all(self.hook.rpartition(":")[::2]):
            raise ValueError(f"hook must be module:function, not {self.hook!r}")


@dataclass(frozen=True, slots=True)
class EnoughConfig:
    """The evidence that a smaller tier is enough, of one route."""

    mode: Annotated[Literal["off", "shadow", "cascade", "learned"], SettingDoc(
        "When a smaller tier answers. shadow: never, but what it would answer is measured. cascade: always first, its "
        "answer is checked. learned: for requests like those for which it was enough.")] = "off"
    at_least: Annotated[float, SettingDoc(
        "Share of the small tier's answers that must be enough: the lower 95 % bound of what was measured.",
        minimum=0.5, maximum=0.999)] = 0.95
    trust_checks: Annotated[bool, SettingDoc(
        "A cascade starts without a proof: the checks alone decide. Audits still switch it off.")] = False
    compare: Annotated[str, SettingDoc(
        "How an answer is compared with the large tier's: exact (the same text, for labels), words (the same words and "
        "figures in the same order), or the name of a route whose model judges.")] = WORDS
    share: Annotated[float, SettingDoc(
        "Share of the requests of the large tier that the small tier answers as well, off the path.", minimum=0, maximum=1
    )] = 0.1
    audit: Annotated[float, SettingDoc(
        "Share of the requests of the small tier that the large tier answers as well, off the path.", minimum=0.001,
        maximum=1)] = 0.05
    tokens_per_hour: Annotated[int, SettingDoc(
        "Largest number of tokens that such answers use, per worker.", minimum=0, maximum=1_000_000_000)] = 500_000
    max_running: Annotated[int, SettingDoc(
        "Largest number of such answers at the same time: beyond it no further one starts.", minimum=1, maximum=1000)] = 4
    min_labels: Annotated[int, SettingDoc(
        "Compared answers before a smaller tier may answer.", minimum=20, maximum=100_000)] = 100
    max_labels: Annotated[int, SettingDoc(
        "Compared answers that are remembered, for each tenant and tier; the oldest is forgotten.",
        minimum=100, maximum=65_536)] = 4096
    shared_by_tenants: Annotated[bool, SettingDoc(
        "All tenants of the route learn together. Otherwise each tenant has its own evidence.")] = False
    checks: Annotated[ChecksConfig, SettingDoc("What the whole answer of a smaller tier must pass.")] = field(
        default_factory=ChecksConfig)

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.max_labels < self.min_labels:
            raise ValueError(f"max_labels must be at least min_labels, {self.min_labels}, not {self.max_labels}")
        if self.mode != "off" and not self.compare:
            raise ValueError(f"compare must be {EXACT}, {WORDS} or the name of a route")

    @property
    def judge_route(self) -> str:
        """The route whose model compares answers; empty: none."""
        return "" if self.compare in (WORDS, EXACT) else self.compare


def check_has_smaller_tier(config: EnoughConfig, n_tiers: int) -> None:
    """Raises ValueError where the settings of a route want evidence, and there is nothing to choose from."""
    if config.mode != "off" and n_tiers < 2:
        raise ValueError("enough.mode must be off without at least two tiers: there is no smaller one")
