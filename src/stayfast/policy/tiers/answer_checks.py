"""Checks of a small tier's whole answer that need no second model: is it worth giving to the client?

Problem: an answer can be empty, cut, refused, no valid JSON or full of guesses, although its call was a success. A larger
model often does better, so the answer should be replaced before the client has any of it. Rule: the checks of the route, in
this order; the first one that fails gives the reason.

    empty         neither a text nor a tool call, or cut at a length limit
    refused       a finish reason of REFUSALS, a refusal field, or a phrase of refusals among the first OPENING characters
    json          the text is no JSON, where the request wants JSON
    pattern       the route's pattern does not occur
    logprob       the mean, or the smallest, log-probability of the tokens is below the bound, or there is none

Source: the refusal phrases are openings that hosted models use (English).
When wrong: a right answer may open with "I can't": "I can't recommend it enough" costs one call of the large tier. A refusal
in other words, or in another language, is not found; add its phrase to the route.
"""

from re import compile as compile_pattern
from statistics import fmean
from typing import Any, Final, NamedTuple

import msgspec

from stayfast.policy.tiers.enough import ChecksConfig

OPENING: Final = 200
REFUSALS: Final = frozenset(("content_filter", "refusal", "safety", "SAFETY", "PROHIBITED_CONTENT", "BLOCKLIST",
                             "RECITATION", "SPII", "guardrail_intervened", "content_filtered"))
CUT: Final = frozenset(("length", "max_tokens", "max_output_tokens", "MAX_TOKENS", "model_context_window_exceeded"))
PHRASES: Final = (
    "i can't help", "i cannot help", "i can't assist", "i cannot assist", "i'm sorry, but i can't",
    "i'm sorry, but i cannot", "i am sorry, but i can't", "i am sorry, but i cannot", "i'm unable to",
    "i am unable to", "i'm not able to", "i am not able to", "i can't provide", "i cannot provide",
    "i won't be able to", "as an ai language model",
    "as an ai, i", "i must decline", "i don't have enough information", "i do not have enough information")


class AnswerFacts(NamedTuple):
    """What the checks read of an answer. logprobs: of its tokens, natural logarithms; empty: none were given."""

    text: str
    finish_reason: str | None = None
    has_refusal: bool = False
    has_tool_calls: bool = False
    logprobs: tuple[float, ...] = ()
    wants_json: bool = False


class AnswerChecks:
    """The checks of one route. Holds no state of an answer."""

    __slots__ = ("_config", "_pattern", "_phrases")

    def __init__(self, config: ChecksConfig) -> None:
        self._config = config
        self._pattern = compile_pattern(config.pattern) if config.pattern else None
        self._phrases = (*PHRASES, *[_fold(phrase) for phrase in config.refusal_phrases])

    def find_failure(self, answer: AnswerFacts) -> str:
        """The reason why an answer is not enough, in fixed words and figures; empty: it passes."""
        return (self._check_content(answer) or self._check_refusal(answer) or self._check_text(answer)
                or self._check_logprobs(answer))

    def _check_content(self, answer: AnswerFacts) -> str:
        if not self._config.not_empty:
            return ""
        if not answer.text.strip() and not answer.has_tool_calls:
            return "empty"
        return "cut at a length limit" if answer.finish_reason in CUT else ""

    def _check_refusal(self, answer: AnswerFacts) -> str:
        if not self._config.not_refused:
            return ""
        if answer.has_refusal or answer.finish_reason in REFUSALS:
            return "refused"
        opening = _fold(answer.text[:OPENING])
        return "refused" if any(phrase in opening for phrase in self._phrases) else ""

    def _check_text(self, answer: AnswerFacts) -> str:
        if answer.has_tool_calls and not answer.text:
            return ""
        if self._config.json != "off" and answer.wants_json and read_json(answer.text) is None:
            return "not JSON"
        if self._pattern is not None and self._pattern.search(answer.text) is None:
            return "the pattern does not occur"
        return ""

    def _check_logprobs(self, answer: AnswerFacts) -> str:
        least_mean, least = self._config.min_logprob, self._config.min_token_logprob
        if least_mean is None and least is None:
            return ""
        if not answer.logprobs:
            return "no log-probabilities"
        if least_mean is not None and fmean(answer.logprobs) < least_mean:
            return f"mean log-probability {fmean(answer.logprobs):.2f}"
        if least is not None and min(answer.logprobs) < least:
            return f"log-probability of a token {min(answer.logprobs):.2f}"
        return ""


def read_json(text: str) -> tuple[Any] | None:
    """The value of a text that is JSON, in a tuple, as `null` is a value; None: it is no JSON."""
    try:
        return (msgspec.json.decode(text),)
    except (msgspec.DecodeError, RecursionError):
        return None


def _fold(text: str) -> str:
    return text.lower().replace("\u2019", "'")
