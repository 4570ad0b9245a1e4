"""`can_collect_stream`: which whole answers may be fetched as streams."""

import msgspec
import pytest

from stayfast.core.types import Api
from stayfast.wire.request_body import can_collect_stream, decode

MESSAGES = {"messages": [{"role": "user", "content": "hello"}]}
PROMPT = {"prompt": "hello"}


@pytest.mark.parametrize(("api", "members", "expected"), [
    (Api.CHAT, {**MESSAGES, "logprobs": True, "n": 1, "modalities": ["text"]}, True),
    (Api.CHAT, {**MESSAGES, "audio": None}, True),
    (Api.CHAT, {**MESSAGES, "n": 2}, False),
    (Api.CHAT, {**MESSAGES, "modalities": ["text", "audio"], "audio": {"voice": "alloy", "format": "wav"}}, False),
    (Api.CHAT, {**MESSAGES, "modalities": ["text", "audio"]}, False),
    (Api.COMPLETIONS, {**PROMPT, "best_of": 1}, True),
    (Api.COMPLETIONS, {**PROMPT, "best_of": 3}, False),
    (Api.COMPLETIONS, {**PROMPT, "echo": True}, False),
    (Api.RESPONSES, {"input": "hello", "background": False}, True),
    (Api.RESPONSES, {"input": "hello", "background": True}, False),
    (Api.MESSAGES, {**MESSAGES, "max_tokens": 9}, True),
    (Api.COUNT_TOKENS, MESSAGES, False),
    (Api.EMBEDDINGS, {"input": "hello"}, False),
])
def test_can_assemble_only_if_the_answer_is_the_same(api: Api, members: dict[str, object], *, expected: bool) -> None:
    """One choice of text; no option that providers reject or change in a stream."""
    assert can_collect_stream(decode(api, msgspec.json.encode({"model": "m", **members}))) is expected
