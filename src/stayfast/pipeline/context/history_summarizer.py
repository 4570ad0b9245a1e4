"""A model summarizes turns, and checks decide whether its summary is used.

The model gets the numbers and ids that its summary must have. A summary with violations is made once more, with the
violations named; after that it is refused. Clauses that must be kept verbatim are found by rule, and never the model's.
"""

import re
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from time import gmtime, strftime
from typing import Any, Final

import msgspec

from stayfast.core.clock import Clock
from stayfast.core.context import Summary, TurnText, Violation
from stayfast.core.errors import StayfastError
from stayfast.policy.context.summary_checks import check_summary, find_pins, find_required_texts
from stayfast.wire.context.summary import summary_prompt
from stayfast.wire.context.summary_answer import read_answer

ADOPTED, REFUSED, FAILED = "adopted", "refused", "failed"
MAX_PIN_CHARS: Final = 500  # of a line that a pattern of the settings matches
_N_TRIES: Final = 2
_CHARS_A_TOKEN: Final = 4
_LEAST_OUTPUT: Final = 256  # tokens
_OUTPUT_SHARE: Final = 0.5  # of the prompt
RunAside = Callable[[Callable[[], Any]], Awaitable[Any]]  # calls a function that takes milliseconds, and returns its result
CallModel = Callable[[str, int], Awaitable[str]]  # a prompt and the most tokens of its answer; raises StayfastError


class SummaryResult(msgspec.Struct, frozen=True):
    """What became of a summary: adopted, refused by `rules`, or failed. `summary`: None unless adopted."""

    result: str
    summary: Summary | None = None
    rules: tuple[str, ...] = ()


class HistorySummarizer:
    """Makes the summaries of one route's conversations. Belongs to one loop."""

    __slots__ = ("_by", "_call", "_clock", "_patterns", "_run_aside")

    def __init__(self, by: str, call: CallModel, clock: Clock, run_aside: RunAside, pins: Sequence[str] = ()
                 ) -> None:
        """by: the route whose model is called. pins: patterns of lines to keep verbatim. run_aside: runs the checks, which
        take about a millisecond of CPU for each kilobyte of the turns.
        """
        self._run_aside = run_aside
        self._by = by
        self._call = call
        self._clock = clock
        self._patterns = tuple(re.compile(pin) for pin in pins)

    async def summarize(self, source: Sequence[TurnText], covers: tuple[int, int], digest: str) -> SummaryResult:
        """A summary of turns that passes all checks. covers: their numbers, from 1. digest: of these turns."""
        pinned: tuple[str, ...] = await self._run_aside(partial(find_verbatim, source, self._patterns))
        required: tuple[str, ...] = await self._run_aside(partial(find_required_texts, source))
        made_by = f"route/{self._by}@{strftime('%Y-%m-%d', gmtime(self._clock.wall()))}"
        violations: tuple[Violation, ...] = ()
        for _ in range(_N_TRIES):
            try:
                prompt = summary_prompt(source, None, violations, required)
                answer = await self._call(prompt, _LEAST_OUTPUT + int(len(prompt) / _CHARS_A_TOKEN * _OUTPUT_SHARE))
            except StayfastError:
                return SummaryResult(FAILED)
            summary = read_answer(answer, pinned=pinned, covers=covers, digest=digest, made_by=made_by)
            if summary is None:
                return SummaryResult(FAILED)
            violations = await self._run_aside(partial(check_summary, source, summary))
            if not violations:
                return SummaryResult(ADOPTED, summary)
        return SummaryResult(REFUSED, rules=tuple(sorted({violation.rule for violation in violations})))

    def __repr__(self) -> str:
        return f"<HistorySummarizer by {self._by}>"


def find_verbatim(source: Sequence[TurnText], patterns: Sequence[re.Pattern[str]]) -> tuple[str, ...]:
    """The clauses to keep verbatim: those found by rule, then lines of users that match a pattern."""
    lines = [line.strip()[:MAX_PIN_CHARS] for text in source if patterns and text.role == "user"
             for line in text.text.splitlines() if any(pattern.search(line) for pattern in patterns)]
    return tuple(dict.fromkeys((*find_pins(source), *lines)))
