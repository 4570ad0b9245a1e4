"""OpenAI's SDK for Node through the gateway to each upstream dialect; the cases themselves are in node/*.mjs."""

import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from tests.clients.asks import (
    CHAT_TOOL,
    OSLO,
    PARIS,
    RESPONSES_TOOL,
    TOOL_ANSWERS,
    TOOL_NAME,
    WEATHER_SCHEMA,
    WHOLE_TEXT,
    prompt,
)
from tests.clients.gateway import Gateway
from tests.clients.leaving import within_limit
from tests.clients.node_client import NodeClient, NodeError, running_node
from tests.clients.script import N_INPUT_TOKENS, N_OUTPUT_TOKENS, N_PIECES_BEFORE_FAULT, TEXT
from tests.clients.upstream import Upstream

TOOLS: dict[str, Any] = {"chat": CHAT_TOOL, "responses": RESPONSES_TOOL}
ENDS = {"chat": "stop", "responses": "completed"}

pytestmark = pytest.mark.sockets


@pytest.fixture(scope="module")
def node(gateway: Gateway) -> Iterator[NodeClient]:
    """Node with the SDK, pointed at the gateway."""
    with running_node(gateway) as node:
        yield node


@pytest.fixture(params=["chat", "responses"])
def api(request: pytest.FixtureRequest) -> str:
    """Each of the SDK's APIs."""
    chosen: str = request.param
    return chosen


def test_plain(node: NodeClient, api: str, model: str, marker: str) -> None:
    """A whole answer: its text, its reason to stop and its usage."""
    assert node.run(f"{api}.plain", model=model, prompt=prompt(marker)) == {
        "text": WHOLE_TEXT, "end": ENDS[api], "usage": [N_INPUT_TOKENS, N_OUTPUT_TOKENS]}


@pytest.mark.parametrize("scenario", ["good", "slow"])
def test_stream(node: NodeClient, api: str, model: str, marker: str, scenario: str) -> None:
    """The SDK's own accumulator makes a whole answer of the stream, which came in pieces. A report in its
    last event, where comments broke the silence, changes nothing.
    """
    answer = node.run(f"{api}.stream", model=model, prompt=prompt(marker, scenario))
    pieces = answer.pop("pieces")
    assert len(pieces) > 1
    assert "".join(pieces) == WHOLE_TEXT
    assert answer == {"text": WHOLE_TEXT, "end": ENDS[api], "usage": [N_INPUT_TOKENS, N_OUTPUT_TOKENS]}


@pytest.mark.parametrize("form", ["tools", "streamedTools"])
def test_tool_calls(node: NodeClient, api: str, form: str, model: str, marker: str) -> None:
    """Two calls with their ids, names and arguments, whole and in fragments."""
    calls = node.run(f"{api}.{form}", model=model, prompt=prompt(marker, "two_tools"), tool=TOOLS[api])
    assert calls == [["call_paris", TOOL_NAME, PARIS], ["call_oslo", TOOL_NAME, OSLO]]


def test_tool_round_trip(node: NodeClient, api: str, model: str, marker: str) -> None:
    """The results of two calls, sent back with the calls themselves, reach the model and are answered in text."""
    text = node.run(f"{api}.toolRoundTrip", model=model, prompt=prompt(marker, "two_tools"), tool=TOOLS[api],
                    results=TOOL_ANSWERS)
    assert text == f"The tools said: {TOOL_ANSWERS[0]} and {TOOL_ANSWERS[1]}."


def test_json_output(node: NodeClient, api: str, model: str, marker: str) -> None:
    """A JSON schema is answered by an object of it."""
    answer = node.run(f"{api}.json", model=model, prompt=prompt(marker), schema=WEATHER_SCHEMA)
    assert answer == {"city": "Paris", "degrees": 21}


@pytest.mark.parametrize("case", ["chat.whole", "chat.pieces", "responses.whole", "responses.pieces"])
@pytest.mark.parametrize(("scenario", "expected"), [
    ("context_length", "BadRequestError 400"), ("rate_limit", "RateLimitError 429"),
    ("overloaded", "InternalServerError 503"), ("unauthorised", "InternalServerError 502")])
def test_errors_before_any_content(node: NodeClient, case: str, model: str, scenario: str, expected: str) -> None:
    """Each error has the SDK's own class for it, asked for a whole answer and for a stream."""
    with pytest.raises(NodeError) as caught:
        node.run(case, model=model, prompt=prompt("", scenario))
    assert f"{caught.value.name} {caught.value.status}" == expected


@pytest.mark.parametrize("scenario", ["error_midway", "truncated", "reset"])
def test_a_stream_broken_midway_throws(node: NodeClient, api: str, model: str, marker: str, scenario: str) -> None:
    """All content that came reaches the client, and then an error: the rest is not taken for an answer."""
    with pytest.raises(NodeError) as caught:
        node.run(f"{api}.pieces", model=model, prompt=prompt(marker, scenario))
    assert node.pieces == list(TEXT[:N_PIECES_BEFORE_FAULT])
    assert caught.value.name == "APIError"


@pytest.mark.serial
@pytest.mark.parametrize("how", ["whole hang_at_once", "pieces hang_at_once", "pieces hang_first", "pieces hang_midway"])
def test_aborting(node: NodeClient, upstream: Upstream, how: str, model: str, marker: str) -> None:
    """An AbortSignal, before the first token or midway, closes the upstream's connection within 50 ms."""
    member, scenario = how.split()

    def leave(word: str) -> float:
        node.start(f"chat.{member}", model=model, prompt=prompt(word, scenario))
        if scenario == "hang_midway":
            node.wait_piece()
        seen = upstream.wait_for(word)
        seen.wait_silent()
        assert not seen.has_left.is_set()
        left_at = time.monotonic()
        node.abort()
        spent_s = seen.wait_left() - left_at
        with suppress(NodeError):  # an aborted call throws, the loop over an aborted stream just ends
            node.finish()
        return spent_s

    within_limit(leave, marker)
