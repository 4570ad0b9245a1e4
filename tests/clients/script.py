"""What the upstream of these tests says, in no protocol's words, and how a prompt chooses it.

The answer follows from the request alone, so every run is the same. A scenario is chosen by `[[name]]` anywhere in the
prompt, where every translation must leave it as it is; without one the answer is a plain text, a tool call where tools
were sent, or JSON where JSON was asked for.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

TEXT = ("Hello", ", ", "wörld", ": ", "stay", "fast", " 🚀")
WEATHER_JSON = ('{"city":', '"Paris",', '"degrees"', ":21}")
THOUGHT = ("Let me", " look.")
N_INPUT_TOKENS = 12
N_CACHED_TOKENS = 4
N_OUTPUT_TOKENS = 7

_SCENARIO = re.compile(r"\[\[(\w+)\]\]")


class Scenario(StrEnum):
    """Everything that may happen to a request here."""

    GOOD = "good"
    LENGTH = "length"  # the model stopped at its limit
    TWO_TOOLS = "two_tools"
    TEXT_AND_TOOL = "text_and_tool"  # a text first, then a call
    CONTEXT_LENGTH = "context_length"  # 400
    UNAUTHORISED = "unauthorised"  # 401
    RATE_LIMIT = "rate_limit"  # 429 with retry-after
    OVERLOADED = "overloaded"  # 529 of Anthropic, 503 of OpenAI
    ERROR_FIRST = "error_first"  # an error inside HTTP 200 before any content
    ERROR_MIDWAY = "error_midway"  # the same after two pieces of content
    TRUNCATED = "truncated"  # the body ends cleanly after two pieces; the protocol's own end never comes
    RESET = "reset"  # the connection breaks after two pieces
    SLOW = "slow"  # a head at once, content after SLOW_S
    SLOW_ERROR = "slow_error"  # a head at once, an error inside it after SLOW_S
    HANG_AT_ONCE = "hang_at_once"  # not even a head
    HANG_FIRST = "hang_first"  # a head and the events before any content
    HANG_MIDWAY = "hang_midway"  # two pieces of content, and silence


N_PIECES_BEFORE_FAULT = 2
RETRY_AFTER_S = 7
SLOW_S = 0.5


@dataclass(frozen=True, slots=True)
class Asked:
    """What matters of a request, whatever protocol it came in."""

    model: str
    streams: bool = False
    include_usage: bool = False
    wants_json: bool = False
    tools: tuple[str, ...] = ()
    tool_results: tuple[str, ...] = ()  # in the last message


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool, its arguments in the fragments of a stream."""

    id: str
    name: str
    fragments: tuple[str, ...]

    @property
    def arguments(self) -> str:
        """The arguments as one JSON text."""
        return "".join(self.fragments)


@dataclass(frozen=True, slots=True)
class Answer:
    """What the model says: text, calls, or both."""

    pieces: tuple[str, ...] = ()
    calls: tuple[ToolCall, ...] = ()
    is_cut: bool = False  # by the limit on tokens

    @property
    def text(self) -> str:
        """The whole text."""
        return "".join(self.pieces)


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a stream, as bytes; whether it holds content decides where faults strike."""

    data: bytes
    is_content: bool = False


@dataclass(frozen=True, slots=True)
class Refusal:
    """An answer that is an HTTP error."""

    status: int
    body: dict[str, Any]
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Dialect:
    """One protocol: how its requests are read, and what its answers look like."""

    path: str
    complain: Callable[[dict[str, Any]], str | None]  # what the real endpoint would refuse about a request
    read: Callable[[dict[str, Any]], Asked]
    whole: Callable[[Asked, Answer], dict[str, Any]]
    events: Callable[[Asked, Answer], Iterator[Event]]
    error_event: bytes  # the error inside HTTP 200
    error_body: dict[str, Any]  # the same instead of a whole answer
    refusals: dict[Scenario, Refusal]
    refuse: Callable[[str], Refusal]  # for a complaint


def scenario_of(body: str) -> Scenario:
    """The scenario that a request's text names."""
    found = _SCENARIO.search(body)
    return Scenario(found[1]) if found else Scenario.GOOD


def answer_for(asked: Asked, scenario: Scenario) -> Answer:
    """What the model says to a request: results of tools are quoted, tools are called, JSON is given where asked for."""
    if asked.tool_results:
        return Answer(("The tools said: ", " and ".join(asked.tool_results), "."))
    if asked.tools:
        calls = [ToolCall("call_paris", asked.tools[0], ('{"ci', 'ty": "Pa', 'ris"}'))]
        if scenario is Scenario.TWO_TOOLS:
            calls.append(ToolCall("call_oslo", asked.tools[0], ('{"city"', ': "Oslo"}')))
        return Answer(THOUGHT if scenario is Scenario.TEXT_AND_TOOL else (), tuple(calls))
    return Answer(WEATHER_JSON if asked.wants_json else TEXT, is_cut=scenario is Scenario.LENGTH)


def until_fault(events: Iterator[Event], n_content: int) -> Iterator[Event]:
    """The events up to the one with content number `n_content`, or (0) all that stand before any content."""
    n_seen = 0
    for event in events:
        if event.is_content:
            if n_seen == n_content:
                return
            n_seen += 1
        yield event
        if n_seen and n_seen == n_content:
            return
