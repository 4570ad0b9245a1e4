"""Translation of messages requests to the normal form and back."""

from typing import Any

import pytest

from stayfast.core.conversation import Image, Text, Thinking, ToolResult, ToolUse
from stayfast.core.types import Api
from stayfast.wire.messages.request import DEFAULT_MAX_TOKENS
from stayfast.wire.request_body import parse_conversation
from tests.unit.wire.full_requests import sent
from tests.unit.wire.recorded import request


def test_messages_request_normal_form_of_all_blocks() -> None:
    """Every kind of block has its part."""
    blocks: list[dict[str, Any]] = [
        {"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "redacted_thinking", "data": "x"},
        {"type": "text", "text": "t"}, {"type": "image", "source": {"type": "url", "url": "https://x/y.png"}},
        {"type": "tool_use", "id": "i", "name": "f", "input": {"a": 1}}]
    result = {"type": "tool_result", "tool_use_id": "i", "content": [{"type": "text", "text": "no"}], "is_error": True}
    asked = parse_conversation(request(Api.MESSAGES, messages=[{"role": "assistant", "content": blocks},
                                                         {"role": "user", "content": [result]}]))
    assert asked.messages[0].parts == (
        Thinking("hm", "s"), Thinking("", redacted="x"), Text("t"), Image(url="https://x/y.png"),
        ToolUse("i", "f", '{"a":1}'))
    assert asked.messages[1].parts == (ToolResult("i", (Text("no"),), True),)


def test_messages_request_always_has_max_tokens() -> None:
    """The protocol demands max_tokens: the client's, or the documented default."""
    assert sent(Api.CHAT, Api.MESSAGES)["max_tokens"] == DEFAULT_MAX_TOKENS
    assert sent(Api.CHAT, Api.MESSAGES, max_tokens=9)["max_tokens"] == 9


def test_messages_request_effort_and_thinking_are_converted() -> None:
    """An effort becomes adaptive thinking, none disables it, and a budget becomes an effort."""
    said = sent(Api.CHAT, Api.MESSAGES, reasoning_effort="minimal")
    assert (said["thinking"], said["output_config"]) == ({"type": "adaptive"}, {"effort": "low"})
    assert sent(Api.CHAT, Api.MESSAGES, reasoning_effort="none")["thinking"] == {"type": "disabled"}
    assert "thinking" not in sent(Api.CHAT, Api.MESSAGES)
    for budget, effort in ((2048, "low"), (8000, "medium"), (32000, "high")):
        said = sent(Api.MESSAGES, Api.CHAT, max_tokens=64000, thinking={"type": "enabled", "budget_tokens": budget})
        assert said["reasoning_effort"] == effort


def test_messages_request_system_messages_move_to_the_front() -> None:
    """Chat and responses keep them in their place; messages takes them to the front."""
    messages = [{"role": "user", "content": "a"}, {"role": "system", "content": "s"}, {"role": "user", "content": "b"}]
    assert [item["role"] for item in sent(Api.CHAT, Api.RESPONSES, messages=messages)["input"]] == [
        "user", "system", "user"]
    said = sent(Api.CHAT, Api.MESSAGES, messages=[{"role": "developer", "content": "d"}, *messages])
    assert said["system"] == "d\n\ns"
    assert [message["role"] for message in said["messages"]] == ["user", "user"]


@pytest.mark.parametrize(("asked", "said"), [(0.0, 0.0), (1.0, 1.0), (1.5, 1.0), (None, None)])
def test_messages_request_temperature_is_at_most_1(asked: float | None, said: float | None) -> None:
    """Chat allows 2, messages 1."""
    assert sent(Api.CHAT, Api.MESSAGES, temperature=asked).get("temperature") == said


@pytest.mark.parametrize(("client", "fields"), [
    (Api.CHAT, {"response_format": {"type": "json_object"}}),
    (Api.RESPONSES, {"text": {"format": {"type": "json_object"}}})])
def test_messages_request_json_object_becomes_an_instruction(client: Api, fields: dict[str, Any]) -> None:
    """It follows the client's own instructions, and no schema is invented."""
    said = sent(client, Api.MESSAGES, **fields)
    assert said["system"] == "Respond with one JSON object and nothing else."
    assert "output_config" not in said
    if client is Api.CHAT:
        messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
        assert sent(client, Api.MESSAGES, messages=messages, **fields)["system"] == (
            "Be brief.\n\nRespond with one JSON object and nothing else.")


def test_messages_request_hints_are_dropped() -> None:
    """Fields that do not change the meaning."""
    said = sent(Api.CHAT, Api.MESSAGES, seed=1, verbosity="low", store=True, prompt_cache_key="k", service_tier="flex",
                metadata={"a": "b"}, presence_penalty=0.5, frequency_penalty=-1, logprobs=False, n=1,
                prediction={"type": "content"})
    assert set(said) == {"model", "max_tokens", "messages"}
