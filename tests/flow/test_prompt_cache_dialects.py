"""Marks in what really goes out to an HTTP upstream: in its own dialect, whatever the client speaks."""

from typing import Any

import msgspec

from stayfast.core.deadline import Deadline
from stayfast.core.types import Api
from stayfast.pipeline.prompt_cache.planner import PromptCachePlanner
from stayfast.policy.prompt_cache.breakpoints import PrefixConfig
from stayfast.testing import RecordingSink, SimLoop
from stayfast.testing.simloop import run
from stayfast.upstreams.base import Call
from stayfast.upstreams.dialect import DialectConfig, DialectUpstream
from stayfast.wire.request_body import decode
from tests.flow.prefix_rig import LONG

CHAT = {"model": "m", "messages": [{"role": "system", "content": LONG}, {"role": "user", "content": "hi"}]}
MESSAGES = {"model": "m", "max_tokens": 3, "system": LONG, "messages": [{"role": "user", "content": "hi"}]}


class Answer:
    """An empty answer; what was asked stands in the client."""

    status = 200

    def __init__(self) -> None:
        self.headers = {"content-type": "application/json"}

    async def read(self) -> bytes:
        return b""

    def close(self) -> None:
        """Holds nothing."""

    release = close


class Client:
    """An HTTP client that only takes."""

    base_path = "/v1"

    def __init__(self) -> None:
        self.body = b""

    def make_template(self, *_: Any) -> None:
        """None is needed."""

    async def send(self, template: None, headers: Any, body: bytes, *, on_sent: Any, **_: Any) -> Answer:
        self.body = body
        on_sent()
        return Answer()


def body_sent(client_api: Api, body: dict[str, Any], spoken: Api, model: str) -> Any:
    """What an upstream that speaks one dialect gets of a request in another."""
    async def main(loop: SimLoop) -> bytes:
        client: Any = Client()
        kind = "anthropic" if spoken is Api.MESSAGES else "openai"
        upstream = DialectUpstream("up", DialectConfig(kind, frozenset({spoken})), client, loop)
        request, layout = PromptCachePlanner("m", PrefixConfig("auto"), loop, RecordingSink()).plan_prompt(
            decode(client_api, msgspec.json.encode(body)))
        assert layout is not None
        marker = layout.new_marker("up", model, None)
        await upstream.open(Call(request, model, "req_1", Deadline(99.0), 1.0, marker=marker))
        written: bytes = client.body
        return written

    return msgspec.json.decode(run(main))


def test_prompt_cache_chat_request_is_marked_for_anthropic() -> None:
    """Its instructions become a marked system block."""
    said = body_sent(Api.CHAT, CHAT, Api.MESSAGES, "claude-opus-5")
    assert said["system"] == [{"type": "text", "text": LONG, "cache_control": {"type": "ephemeral"}}]


def test_prompt_cache_messages_request_is_marked_for_openai() -> None:
    """In chat and in responses."""
    said = body_sent(Api.MESSAGES, MESSAGES, Api.CHAT, "gpt-5.6")
    assert said["messages"][0]["content"][0]["prompt_cache_breakpoint"] == {"mode": "explicit"}
    said = body_sent(Api.MESSAGES, MESSAGES, Api.RESPONSES, "gpt-5.6")
    assert "prompt_cache_key" in said


def test_prompt_cache_messages_request_is_marked_in_its_own_protocol() -> None:
    """By splicing: the other bytes stay."""
    said = body_sent(Api.MESSAGES, MESSAGES | {"temperature": 0.10}, Api.MESSAGES, "claude-opus-5")
    mark = {"cache_control": {"type": "ephemeral"}}
    assert said == MESSAGES | {
        "model": "claude-opus-5", "temperature": 0.1, "system": [{"type": "text", "text": LONG} | mark],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"} | mark]}]}
