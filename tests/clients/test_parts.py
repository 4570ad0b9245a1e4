"""Whole answers of routes that give a part: fetched as streams, and yet the same; and the part that came in time."""

import json
import urllib.request
import uuid
from typing import Any

import pytest

from tests.clients.asks import CHAT_TOOL, MESSAGES_TOOL, RESPONSES_TOOL, WEATHER_SCHEMA, prompt
from tests.clients.gateway import DIALECTS, Gateway
from tests.clients.script import N_PIECES_BEFORE_FAULT, TEXT
from tests.clients.upstream import Upstream

pytestmark = pytest.mark.sockets

PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}
TOOLS: dict[str, Any] = {"chat": CHAT_TOOL, "responses": RESPONSES_TOOL, "messages": MESSAGES_TOOL}
JSON: dict[str, dict[str, Any]] = {
    "chat": {"response_format": {"type": "json_schema", "json_schema": {"name": "weather", "schema": WEATHER_SCHEMA}}},
    "responses": {"text": {"format": {"type": "json_schema", "name": "weather", "schema": WEATHER_SCHEMA}}}, "messages": {}}
MADE_ANEW = ("id", "created", "created_at", "model", "system_fingerprint", "metadata", "service_tier")


def whole(gateway: Gateway, api: str, model: str, ask: str, **members: object) -> tuple[dict[str, str], dict[str, Any]]:
    """Head and body of a whole answer."""
    words: dict[str, Any] = {"input": ask} if api == "responses" else {"messages": [{"role": "user", "content": ask}]}
    body = {"model": model, **words, **({"max_tokens": 64} if api == "messages" else {}), **members}
    request = urllib.request.Request(gateway.origin + PATHS[api], json.dumps(body).encode(),
                                     {"content-type": "application/json", "authorization": "Bearer sk-client"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return {name.lower(): value for name, value in answer.headers.items()}, json.loads(answer.read())


@pytest.mark.parametrize(("api", "dialect"), [(api, dialect) for api in PATHS for dialect in DIALECTS])
@pytest.mark.parametrize("what", ["text", "tools", "json"])
def test_assembled_answer_equals_whole(gateway: Gateway, upstream: Upstream, api: str, dialect: str, what: str) -> None:
    """Text, calls, JSON, reason and usage; the upstream was asked for a stream where the route gives a part."""
    more: dict[str, Any] = {"tools": [TOOLS[api]]} if what == "tools" else JSON[api] if what == "json" else {}
    scenario, marker = "two_tools" if what == "tools" else "good", uuid.uuid4().hex
    _, plain = whole(gateway, api, f"via-{dialect}", prompt(f"plain-{marker}", scenario), **more)
    head, assembled = whole(gateway, api, f"brief-{dialect}", prompt(f"brief-{marker}", scenario), **more)
    assert "x-stayfast-degraded" not in head
    asked_for_streams = [upstream.wait_for(f"{route}-{marker}").body.get("stream", False) for route in ("plain", "brief")]
    assert asked_for_streams == [False, True]
    assert comparable(assembled) == comparable(plain)


def comparable(value: Any) -> Any:
    """What does not differ from answer to answer. Streams leave out what is null or empty, and write arguments their way."""
    if isinstance(value, dict):
        return {name: json.loads(its) if name == "arguments" else comparable(its) for name, its in value.items()
                if name not in MADE_ANEW and its not in (None, [])}
    return [comparable(its) for its in value] if isinstance(value, list) else value


@pytest.mark.parametrize("api", PATHS)
@pytest.mark.parametrize("dialect", DIALECTS)
def test_partial_answer_has_received_content(gateway: Gateway, api: str, dialect: str, marker: str) -> None:
    """The upstream stops in the middle: its client gets the words so far, and is told that they are a part."""
    head, answer = whole(gateway, api, f"brief-{dialect}", prompt(marker, "hang_midway"))
    assert head["x-stayfast-degraded"] == "partial"
    text = {"chat": lambda: answer["choices"][0]["message"]["content"],
            "responses": lambda: answer["output"][0]["content"][0]["text"],
            "messages": lambda: answer["content"][0]["text"]}[api]()
    assert text == "".join(TEXT[:N_PIECES_BEFORE_FAULT])
