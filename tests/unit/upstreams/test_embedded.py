"""upstreams.embedded: requests that the embedded model rejects."""

import asyncio
from typing import Any

import msgspec
import pytest

from stayfast.core.deadline import Deadline
from stayfast.core.errors import Rejected
from stayfast.core.types import Api, Request
from stayfast.upstreams.base import Call, Upstream
from stayfast.upstreams.embedded import (
    Address,
    EngineAddress,
    LocalUpstream,
    ParentEngine,
    find_media_path,
    requires_tool_call,
)
from tests.unit.http.client.fakes import SetClock

URL = "data:image/png;base64,AAAA"

PARENT = ParentEngine("tiny", lambda: {"tiny": EngineAddress("127.0.0.1", 1, 4)})


def asked(api: Api, **fields: Any) -> Request:
    """A request with this body."""
    return Request(api, "m", stream=False, body=msgspec.json.encode({"model": "m", **fields}))


def user(*parts: dict[str, Any]) -> list[dict[str, Any]]:
    """Two messages, the second one of parts."""
    return [{"role": "user", "content": "image"}, {"role": "user", "content": list(parts)}]


TEXT = {"type": "text", "text": 'an "image" or "file"'}


@pytest.mark.parametrize(("request_", "path"), [
    (asked(Api.CHAT, messages=user(TEXT, {"type": "image_url", "image_url": {"url": URL}})), "messages[1].content[1]"),
    (asked(Api.CHAT, messages=user({"type": "input_audio", "input_audio": {}})), "messages[1].content[0]"),
    (asked(Api.MESSAGES, messages=user({"type": "image", "source": {}})), "messages[1].content[0]"),
    (asked(Api.MESSAGES, messages=user({"type": "tool_result", "content": [{"type": "image"}]})),
     "messages[1].content[0].content[0]"),
    (asked(Api.RESPONSES, input=user({"type": "input_image", "image_url": URL})), "input[1].content[0]"),
    (asked(Api.RESPONSES, input=[{"type": "function_call_output", "output": [{"type": "input_image"}]}]),
     "input[0].output[0]"),
    (asked(Api.CHAT, messages=user(TEXT)), None),
    (asked(Api.CHAT, messages=user(TEXT), tools=[{"function": {"parameters": {"type": "image"}}}]), None),
    (asked(Api.RESPONSES, input="image"), None)])
def test_path_of_media_finds_nested_media(request_: Request, path: str | None) -> None:
    """Pictures, sound and files, in messages and in what tools gave back; words about them are words."""
    assert find_media_path(request_) == path


@pytest.mark.parametrize(("choice", "must"), [
    (None, False), ("auto", False), ("none", False), ("required", True),
    ({"type": "function", "function": {"name": "f"}}, True), ({"type": "function", "name": "f"}, True),
    ({"type": "allowed_tools", "mode": "auto", "tools": []}, False),
    ({"type": "allowed_tools", "mode": "required", "tools": []}, True),
    ({"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": []}}, True),
    ({"type": "auto"}, False), ({"type": "none"}, False), ({"type": "any"}, True), ({"type": "tool", "name": "f"}, True)])
def test_must_call_tool_in_all_dialects(choice: object, must: bool) -> None:
    """In the words of all three protocols; a prompt about it is a prompt."""
    said = user({"type": "text", "text": '"tool_choice": "required"'})
    assert requires_tool_call(asked(Api.CHAT, messages=said, tool_choice=choice)) is must


def test_local_upstream_forced_tool_without_support_is_rejected() -> None:
    """It would answer with words, as if nothing had been asked of it."""

    def dial(address: Address) -> Upstream:
        raise ConnectionRefusedError(address)

    def open_at(*, calls_tools: bool) -> None:
        upstream = LocalUpstream("tiny", PARENT, dial, SetClock(),
                                 calls_tools=calls_tools)
        request = asked(Api.CHAT, messages=[], tools=[{}], tool_choice="required")
        asyncio.run(upstream.open(Call(request, "m", "r", Deadline(5.0), 1.0)))

    with pytest.raises(Rejected, match="Use auto or none") as refused:
        open_at(calls_tools=False)
    assert (refused.value.status, refused.value.param) == (400, "tool_choice")
    with pytest.raises(ConnectionRefusedError):
        open_at(calls_tools=True)


def test_local_upstream_image_is_rejected_with_its_path() -> None:
    """The client learns which part the model cannot read, before anything is sent to it."""

    def dial(address: Address) -> Upstream:
        raise AssertionError(f"{address} was called")

    upstream = LocalUpstream("tiny", PARENT, dial, SetClock())
    request = asked(Api.CHAT, messages=user({"type": "image_url", "image_url": {"url": URL}}))
    with pytest.raises(Rejected, match="reads text only") as refused:
        asyncio.run(upstream.open(Call(request, "m", "r", Deadline(5.0), 1.0)))
    assert (refused.value.status, refused.value.param) == (400, "messages[1].content[0]")
