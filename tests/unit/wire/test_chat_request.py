"""Translation of chat and completions requests to the normal form and back."""

import json
from typing import Any

import pytest

from stayfast.core.errors import Rejected
from stayfast.core.types import Api
from stayfast.wire.request_body import encode
from tests.unit.wire.full_requests import sent, user
from tests.unit.wire.recorded import request


def test_chat_request_stream_for_messages_client_includes_usage() -> None:
    """Messages always report usage, so the chat upstream must send it."""
    body = json.loads(encode(request(Api.MESSAGES, stream=True), Api.CHAT, "up", stream=True))
    assert body["stream_options"] == {"include_usage": True}


def test_completions_request_becomes_one_user_message() -> None:
    """A text prompt is sent as chat; fields that chat lacks are rejected."""
    said = sent(Api.COMPLETIONS, Api.CHAT, prompt=["hi"], stop="x", max_tokens=3)
    assert said == {"model": "up", "messages": [{"role": "user", "content": "hi"}], "stop": ["x"],
                    "max_completion_tokens": 3}
    for fields, param in (({"prompt": [1, 2]}, "prompt"), ({"echo": True}, "echo"), ({"suffix": "s"}, "suffix")):
        with pytest.raises(Rejected) as caught:
            sent(Api.COMPLETIONS, Api.CHAT, **fields)
        assert caught.value.param == param


@pytest.mark.parametrize("url", ["https://x/y.png", "data:image/png;base64,aGk="])
def test_chat_request_image_url_survives_a_round_trip(url: str) -> None:
    """A URL stays as it is; a data URL is split and joined again."""
    content: list[dict[str, Any]] = [{"type": "text", "text": "Look:"}, {"type": "image_url", "image_url": {"url": url}}]
    messages = sent(Api.MESSAGES, Api.CHAT, messages=sent(Api.CHAT, Api.MESSAGES, messages=user(*content))["messages"])
    assert messages["messages"] == user(*content)
