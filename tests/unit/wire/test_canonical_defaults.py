"""Members whose value is the default: the request has the same key without them."""

from typing import Any

import msgspec
import pytest

from stayfast.core.types import Api
from stayfast.wire.canonical import canonicalize, identity_bytes, key_digest, scope_bytes
from stayfast.wire.request_body import decode

HELLO = {"role": "user", "content": "hello"}
SAID = {"role": "assistant", "content": "Yes?"}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
NULLS = {"name": None, "refusal": None, "tool_calls": None, "function_call": None, "audio": None}


def key(api: Api, **fields: Any) -> bytes:
    """The cache key of a request."""
    bodies: dict[Api, dict[str, Any]] = {Api.CHAT: {"messages": [HELLO]}, Api.RESPONSES: {"input": "hello"},
                                         Api.COMPLETIONS: {"prompt": "hello"}}
    what = canonicalize(decode(api, msgspec.json.encode({"model": "m", **bodies[api], **fields})))
    assert not what.why_not
    return key_digest(scope_bytes(what, identity_bytes()), what)


@pytest.mark.parametrize(("api", "plain", "dressed"), [
    (Api.CHAT, {}, {"n": 1}),
    (Api.CHAT, {}, {"logprobs": False}),
    (Api.CHAT, {}, {"reasoning_effort": None, "verbosity": None}),
    (Api.CHAT, {"tools": TOOLS}, {"tools": TOOLS, "tool_choice": "auto"}),
    (Api.CHAT, {}, {"messages": [{**HELLO, "name": None}]}),
    (Api.CHAT, {"messages": [HELLO, SAID, HELLO]}, {"messages": [HELLO, {**SAID, **NULLS}, HELLO]}),
    (Api.COMPLETIONS, {}, {"n": 1}),
    (Api.RESPONSES, {}, {"text": None}),
    (Api.RESPONSES, {}, {"include": [], "truncation": None}),
    (Api.RESPONSES, {}, {"input": [{**HELLO, "type": "message"}]}),
    (Api.RESPONSES, {"input": [SAID, HELLO]}, {"input": [{**one, "type": "message"} for one in (SAID, HELLO)]}),
])
def test_canonical_explicit_default_equals_absence(api: Api, plain: dict[str, Any], dressed: dict[str, Any]) -> None:
    """SDKs send different sets of defaults."""
    assert key(api, **plain) == key(api, **dressed)


@pytest.mark.parametrize(("api", "plain", "other"), [
    (Api.CHAT, {"tools": TOOLS}, {"tools": TOOLS, "tool_choice": "none"}),
    (Api.CHAT, {}, {"tool_choice": "auto"}),
    (Api.CHAT, {}, {"messages": [{**HELLO, "name": "n"}]}),
    (Api.CHAT, {"messages": [HELLO, SAID, HELLO]}, {"messages": [HELLO, {**SAID, "unknown": None}, HELLO]}),
    (Api.CHAT, {}, {"reasoning_effort": "low"}),
    (Api.COMPLETIONS, {}, {"logprobs": False}),
    (Api.RESPONSES, {}, {"text": {"format": {"type": "json_object"}}}),
    (Api.RESPONSES, {}, {"include": ["reasoning.encrypted_content"]}),
    (Api.RESPONSES, {}, {"reasoning": {}}),
])
def test_canonical_non_default_value_changes_the_scope(api: Api, plain: dict[str, Any], other: dict[str, Any]) -> None:
    """Also a value that servers interpret differently."""
    assert key(api, **plain) != key(api, **other)
