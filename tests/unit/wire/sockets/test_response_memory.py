"""What a WebSocket remembers of its responses: whole conversations, within bounds."""

import json

import msgspec
import pytest
from msgspec import Raw

from stayfast.core.errors import Rejected
from stayfast.wire.sockets.response_memory import MAX_RESPONSES, ResponseMemory


def fields_of(**members: object) -> dict[str, Raw]:
    """A request's members."""
    return {name: Raw(json.dumps(value).encode()) for name, value in members.items()}


def answer(response_id: str, text: str) -> Raw:
    """A finished response with one message."""
    item = {"type": "message", "id": "m1", "status": "completed", "role": "assistant",
            "content": [{"type": "output_text", "text": text}]}
    return Raw(json.dumps({"id": response_id, "output": [item]}).encode())


def texts(body: bytes) -> list[object]:
    """The contents of all input items."""
    found: list[object] = [item["content"] for item in msgspec.json.decode(body)["input"]]
    return found


def test_continue_body_has_all_earlier_items() -> None:
    """Of both turns, and no id of a response."""
    memory = ResponseMemory(10_000)
    memory.remember(fields_of(model="m", input="one"), None, answer("r1", "eins"))
    first = memory.find("r1")
    memory.remember(fields_of(model="m", input="two", previous_response_id="r1"), first, answer("r2", "zwei"))
    second = memory.find("r2")
    assert second is not None
    body = memory.continue_body(fields_of(model="m", input="three", previous_response_id="r2"), second)
    answers = [{"type": "output_text", "text": "eins"}], [{"type": "output_text", "text": "zwei"}]
    assert texts(body) == ["one", answers[0], "two", answers[1], "three"]
    assert "previous_response_id" not in msgspec.json.decode(body)


def test_continue_body_with_an_upstreams_base_sends_the_base() -> None:
    """The first turn continued a response that only the upstream has."""
    memory = ResponseMemory(10_000)
    memory.remember(fields_of(input="one", previous_response_id="theirs"), None, answer("r1", "eins"))
    before = memory.find("r1")
    assert before is not None
    body = memory.continue_body(fields_of(input="two", previous_response_id="r1"), before)
    assert msgspec.json.decode(body)["previous_response_id"] == "theirs"


def test_remember_forgets_the_oldest_and_never_the_newest() -> None:
    """By number, and by bytes."""
    many = ResponseMemory(1_000_000)
    for n in range(MAX_RESPONSES + 3):
        many.remember(fields_of(input="x"), None, answer(f"r{n}", "y"))
    assert many.find("r2") is None
    assert many.find("r3") is not None
    small = ResponseMemory(1000)
    small.remember(fields_of(input="x"), None, answer("a", "y"))
    small.remember(fields_of(input="x" * 2000), None, answer("b", "y"))
    assert small.find("a") is None
    large = small.find("b")
    assert large is not None
    with pytest.raises(Rejected) as refused:
        small.continue_body(fields_of(input="z", previous_response_id="b"), large)
    assert refused.value.status == 413


def test_remember_ignores_conversations_and_answers_without_id() -> None:
    """The first are their provider's; the second cannot be continued."""
    memory = ResponseMemory(10_000)
    memory.remember(fields_of(input="x", conversation="conv_1"), None, answer("r1", "y"))
    memory.remember(fields_of(input="x"), None, Raw(b'{"output": []}'))
    assert repr(memory) == "<ResponseMemory: 0 responses, 0 bytes>"


def test_remember_marks_what_the_client_has_stored() -> None:
    """Only an explicit `store: true`."""
    memory = ResponseMemory(10_000)
    for name, members in {"a": {"store": True}, "b": {"store": False}, "c": dict[str, bool]()}.items():
        memory.remember(fields_of(input="x", **members), None, answer(name, "y"))
    found = [memory.find(name) for name in "abc"]
    assert [one is not None and one.is_stored for one in found] == [True, False, False]
