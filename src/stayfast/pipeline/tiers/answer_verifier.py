"""Verifies the answers of smaller tiers: the checks of a route, on a whole answer, before the client has any of it."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from inspect import isawaitable
from math import inf
from types import TracebackType
from typing import Any, Final

from stayfast.core.deadline import Deadline
from stayfast.core.types import AnswerSummary, Chunk, Request
from stayfast.pipeline.tiers.verification import TierFacts, TierVerdict
from stayfast.policy.tiers.answer_checks import AnswerChecks, AnswerFacts, read_json
from stayfast.policy.tiers.enough import EnoughConfig
from stayfast.wire.answer_reading import AnswerContent, WantedOutput, read_answer, read_wanted_output
from stayfast.wire.dialect import parse_object

ENOUGH: Final = TierVerdict(True)
OWN_CHECK_S: Final = 1.0
MAX_WHY: Final = 120  # characters of a reason from an own function

SchemaFit = Callable[[Any, Any], bool]  # whether a value fits a JSON Schema; an invalid schema fits everything
CertainLabel = Callable[[Request], str]  # empty: a classifier is sure of the question's label; else the reason why not
OwnCheck = Callable[[dict[str, Any], str], str | Awaitable[str]]


class CheckedAnswers:
    """The checks of one route. A `TierVerifier`; holds no state of a request."""

    __slots__ = ("_certain_label", "_checks", "_config", "_fits_schema", "_holds_streams", "_own_check")

    def __init__(self, config: EnoughConfig, *, holds_streams: bool, fits_schema: SchemaFit | None = None,
                 certain_label: CertainLabel | None = None, own_check: OwnCheck | None = None) -> None:
        """fits_schema, certain_label, own_check: None: the route has no such check."""
        self._config = config
        self._holds_streams = holds_streams
        self._checks = AnswerChecks(config.checks)
        self._fits_schema = fits_schema
        self._certain_label = certain_label
        self._own_check = own_check

    def applies_to(self, request: Request, tier: str, facts: TierFacts) -> bool:
        """Whether the answers of a smaller tier are checked: never those of calls that the gateway makes on its own."""
        return (self._config.mode in ("cascade", "learned") and not facts.role
                and (self._holds_streams or not request.stream))

    async def verify(self, request: Request, answer: Chunk, summary: AnswerSummary, tier: str,
                     deadline: Deadline) -> TierVerdict:
        why = await self.find_failure(request, answer.data, summary, deadline)
        return TierVerdict(False, why) if why else ENOUGH

    async def find_failure(self, request: Request, data: bytes, summary: AnswerSummary,
                           deadline: Deadline | None = None) -> str:
        """The reason why an answer is not enough, in fixed words and figures; empty: it passes. deadline: of the route's own
        check; None: it has OWN_CHECK_S.
        """
        content = read_answer(request, data)
        if content is None:
            return ""  # a form that is not known cannot be checked
        wanted = read_wanted_output(request) if self._config.checks.json != "off" else WantedOutput(False, None)
        why = self._checks.find_failure(_facts_of(content, summary, wanted))
        if not why and wanted.schema is not None and self._config.checks.json == "schema" and content.text:
            why = self._check_schema(content.text, wanted)
        if not why and self._certain_label is not None:
            why = self._certain_label(request)
        return why or await self._check_own(request, content, inf if deadline is None else deadline.at)

    def _check_schema(self, text: str, wanted: WantedOutput) -> str:
        value = read_json(text)
        if self._fits_schema is None or value is None:
            return ""
        return "" if self._fits_schema(wanted.schema, value[0]) else "does not fit the schema"

    async def _check_own(self, request: Request, content: AnswerContent, until: float) -> str:
        """The route's own function. An error in it counts as a failed check: the large tier answers."""
        if self._own_check is None:
            return ""
        with _CheckErrors() as errors:
            async with asyncio.timeout_at(min(until, asyncio.get_running_loop().time() + OWN_CHECK_S)):
                found = self._own_check(parse_object(request.body), content.text)
                return str(await found if isawaitable(found) else found or "")[:MAX_WHY]
        return errors.why


class _CheckErrors(AbstractContextManager["_CheckErrors"]):
    """Turns what a route's own function raises into a reason. Only its class is named: its text may quote a prompt."""

    why = ""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> bool:
        if isinstance(error, TimeoutError):
            self.why = "the check did not end in its time"
        elif isinstance(error, Exception):
            self.why = f"the check raised {type(error).__name__}"
        return bool(self.why)


def _facts_of(content: AnswerContent, summary: AnswerSummary, wanted: WantedOutput) -> AnswerFacts:
    return AnswerFacts(content.text, summary.finish_reason, content.has_refusal, content.has_tool_calls, content.logprobs,
                       wanted.is_json)


def read_compared_text(request: Request, data: bytes) -> str | None:
    """The text by which a whole answer is compared; None: its form is unknown, or it has tool calls, which never are."""
    content = read_answer(request, data)
    return None if content is None or content.has_tool_calls else content.text
