"""Decoding of requests, and that every error names its field."""

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.core.errors import Rejected
from stayfast.core.types import CLIENT_APIS, Api
from stayfast.wire.request_body import MAX_DEPTH, DecodeLimits, check_json_bounds, decode, encode
from tests.unit.wire.recorded import body, request


def test_decode_chat_fields() -> None:
    """Model, streaming, usage, limit, choices and state are taken from the body, which stays verbatim."""
    raw = body(Api.CHAT, stream=True, stream_options={"include_usage": True}, n=3, max_tokens=5,
               max_completion_tokens=7, store=True, unknown={"deep": [1]})
    asked = decode(Api.CHAT, raw)
    assert (asked.model, asked.stream, asked.include_usage, asked.n_choices) == ("route", True, True, 3)
    assert (asked.max_output_tokens, asked.is_stateful, asked.body) == (7, True, raw)


@pytest.mark.parametrize(("api", "fields", "is_stateful"), [
    (Api.RESPONSES, {}, False), (Api.RESPONSES, {"store": False}, False), (Api.RESPONSES, {"store": True}, True),
    (Api.RESPONSES, {"previous_response_id": "resp_1"}, True), (Api.RESPONSES, {"background": True}, True),
    (Api.RESPONSES, {"conversation": "conv_1"}, True), (Api.RESPONSES, {"conversation": None}, False),
    (Api.MESSAGES, {"container": "c_1"}, True), (Api.MESSAGES, {}, False), (Api.CHAT, {"store": False}, False)])
def test_decode_stateful_requests(api: Api, fields: dict[str, Any], is_stateful: bool) -> None:
    """A request that the provider stores must never be sent twice."""
    assert request(api, **fields).is_stateful is is_stateful


@pytest.mark.parametrize(("prompt", "n_choices"), [("a", 2), (["a", "b"], 4), ([1, 2, 3], 2), ([[1], [2], [3]], 6)])
def test_decode_completions_counts_choices(prompt: Any, n_choices: int) -> None:
    """Each prompt has n choices; a list of numbers is one prompt of tokens."""
    assert request(Api.COMPLETIONS, prompt=prompt, n=2).n_choices == n_choices


@pytest.mark.parametrize("api", sorted(CLIENT_APIS))
def test_decode_smallest_request_of_each_api(api: Api) -> None:
    """Each protocol's minimal request is accepted, and names its model."""
    assert request(api).model == "route"


BAD: list[tuple[Api, dict[str, Any], str]] = [
    (Api.CHAT, {"model": 7}, "model"),
    (Api.CHAT, {"model": ""}, "model"),
    (Api.CHAT, {"messages": []}, "messages"),
    (Api.CHAT, {"messages": "hi"}, "messages"),
    (Api.CHAT, {"messages": [{"role": "wizard", "content": "hi"}]}, "messages[0].role"),
    (Api.CHAT, {"messages": [{"content": "hi"}]}, "messages[0].role"),
    (Api.CHAT, {"messages": [{"role": "user"}]}, "messages[0].content"),
    (Api.CHAT, {"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
    (Api.CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0].image_url"),
    (Api.CHAT, {"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
    (Api.CHAT, {"n": 0}, "n"), (Api.CHAT, {"n": 129}, "n"), (Api.CHAT, {"stream": "yes"}, "stream"),
    (Api.CHAT, {"temperature": "hot"}, "temperature"), (Api.CHAT, {"max_tokens": 0}, "max_tokens"),
    (Api.CHAT, {"tools": [{"type": "function", "function": {"name": "f", "parameters": []}}]},
     "tools[0].function.parameters"),
    (Api.COMPLETIONS, {"prompt": {"a": 1}}, "prompt"),
    (Api.EMBEDDINGS, {"input": []}, "input"), (Api.EMBEDDINGS, {"dimensions": 0}, "dimensions"),
    (Api.RESPONSES, {"input": 5}, "input"), (Api.RESPONSES, {"input": None}, "input"),
    (Api.RESPONSES, {"input": [{"type": "message", "role": 1}]}, "input[0].role"),
    (Api.MESSAGES, {"max_tokens": -1}, "max_tokens"),
    (Api.MESSAGES, {"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
    (Api.MESSAGES, {"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]},
     "messages[0].content[0].tool_use_id"),
    (Api.MESSAGES, {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "a"}]}]},
     "messages[0].content[0].name"),
    (Api.COUNT_TOKENS, {"messages": None}, "messages"),
    (Api.CHAT, {"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    (Api.CHAT, {"messages": [{"role": "user", "content": "a", "name": 5}]}, "messages[0].name"),
    (Api.CHAT, {"messages": [{"role": "user", "content": [{"type": "file", "file": "f"}]}]}, "messages[0].content[0].file"),
    (Api.CHAT, {"messages": [{"role": "assistant", "audio": "a"}]}, "messages[0].audio"),
    *((Api.CHAT, {field: 5}, field) for field in (
        "tools", "stop", "user", "response_format", "tool_choice", "functions", "function_call", "audio", "prediction",
        "web_search_options", "moderation", "prompt_cache_options", "prompt_cache_retention", "logprobs", "modalities")),
    (Api.CHAT, {"top_logprobs": "x"}, "top_logprobs"),
    *((Api.RESPONSES, {field: 5}, field) for field in (
        "conversation", "prompt", "context_management", "include", "stream_options", "moderation", "prompt_cache_options",
        "instructions", "tools", "text", "reasoning", "store", "background", "truncation", "previous_response_id")),
    (Api.RESPONSES, {"max_tool_calls": "x"}, "max_tool_calls"), (Api.RESPONSES, {"include": [5]}, "include[0]"),
    *((Api.MESSAGES, {field: 5}, field) for field in (
        "system", "container", "mcp_servers", "stop_sequences", "metadata", "tools", "tool_choice", "thinking",
        "output_config", "cache_control")),
    (Api.MESSAGES, {"messages": [{"role": "user", "content": [{"type": "text", "text": "a", "cache_control": 5}]}]},
     "messages[0].content[0].cache_control"),
    (Api.MESSAGES, {"tools": [{"name": "f", "cache_control": "x"}]}, "tools[0].cache_control"),
    (Api.EMBEDDINGS, {"input": [-1]}, "input[0]"), (Api.COMPLETIONS, {"prompt": [[1, -1]]}, "prompt[0][1]"),
]
FINE: list[tuple[Api, dict[str, Any]]] = [
    (Api.CHAT, {"temperature": None, "tools": None, "top_logprobs": None, "prediction": None, "functions": None}),
    (Api.CHAT, {"service_tier": "tier-of-tomorrow", "reasoning_effort": "utmost", "verbosity": "chatty"}),
    (Api.CHAT, {"unknown": {"a": [1]}, "top_k": -1, "temperature": -1, "functions": [], "seed": -5}),
    (Api.CHAT, {"messages": [{"role": "user", "content": [{"type": "hologram", "hologram": 5}], "x": 1}]}),
    (Api.CHAT, {"tools": [{"type": "tool-of-tomorrow", "x": 1}], "tool_choice": "somehow"}),
    (Api.RESPONSES, {"conversation": {"id": "c"}, "prompt": {"id": "p"}, "context_management": [{"type": "x"}]}),
    (Api.RESPONSES, {"input": [{"type": "item-of-tomorrow", "x": 1}]}),
    (Api.MESSAGES, {"container": {"id": "c", "skills": []}, "mcp_servers": [{}], "context_management": {"edits": []}}),
    (Api.MESSAGES, {"thinking": {"type": "of-tomorrow"}, "cache_control": {"type": "ephemeral"}}),
]


@pytest.mark.parametrize(("api", "fields", "param"), BAD)
def test_decode_error_names_the_field(api: Api, fields: dict[str, Any], param: str) -> None:
    """Wrong types, missing fields and values out of range are a 400 with the field's path as param."""
    with pytest.raises(Rejected) as caught:
        decode(api, body(api, **fields))
    assert (caught.value.status, caught.value.param) == (400, param)
    assert param in caught.value.message


@pytest.mark.parametrize(("api", "fields"), FINE)
def test_decode_accepts_unchecked_values(api: Api, fields: dict[str, Any]) -> None:
    """The upstream judges null, unknown values and types, and vendors' own fields."""
    raw = body(api, **fields)
    assert decode(api, raw).body == raw


@pytest.mark.parametrize(("api", "says"), [(Api.CHAT, "one of system, developer, user, assistant, tool, function"),
                                           (Api.MESSAGES, "one of user, assistant, system"),
                                           (Api.COUNT_TOKENS, "one of user, assistant, system")])
def test_decode_unknown_role_lists_the_valid_ones(api: Api, says: str) -> None:
    """The unknown role is not quoted."""
    with pytest.raises(Rejected, match=rf"^messages\[0\].role: unknown value, expected {says}$"):
        decode(api, body(api, messages=[{"role": "wizard", "content": "hi"}]))


@pytest.mark.parametrize(("api", "field"), [(Api.EMBEDDINGS, "input"), (Api.COMPLETIONS, "prompt")])
@pytest.mark.parametrize(("said", "is_alike"), [
    ("a", True), (["a", "b"], True), ([1, 2], True), ([[1], [2, 3]], True), (["a", 1], False), ([1, [1]], False),
    ([[1], "a"], False)])
def test_decode_mixed_texts_and_tokens_are_rejected(api: Api, field: str, said: Any, is_alike: bool) -> None:
    """The error names the field and the valid forms."""
    raw = body(api, **{field: said})
    if is_alike:
        assert decode(api, raw).body == raw
        return
    with pytest.raises(Rejected, match=f"^{field}: expected a text, texts, token numbers, or lists") as told:
        decode(api, raw)
    assert told.value.param == field


@pytest.mark.parametrize("api", sorted(CLIENT_APIS))
def test_decode_missing_model_is_named(api: Api) -> None:
    """All protocols require a model."""
    said = json.loads(body(api))
    del said["model"]
    with pytest.raises(Rejected) as caught:
        decode(api, json.dumps(said).encode())
    assert caught.value.param == "model"


@pytest.mark.parametrize(("raw", "code"), [
    (b"", "invalid_json"), (b"{", "invalid_json"), (b'{"model": NaN}', "invalid_json"), (b"\xff", "invalid_json"),
    (b'{"model": "a", "x": "\xc3"}', "invalid_json"), (b"[]", "invalid_type"), (b'"x"', "invalid_type"),
    (b'{"model": "a", "x": ' + b"[" * 65 + b"]" * 65 + b"}", "too_deep"),
    (b'{"x": "\\"", "y": ' + b'{"a":' * 70 + b"1" + b"}" * 71, "too_deep"), (b"[" * 1_000_000, "too_deep")])
def test_decode_anything_but_an_object_is_rejected(raw: bytes, code: str) -> None:
    """Broken, deep and non-UTF-8 bodies are refused before or by the parser, at any size."""
    with pytest.raises(Rejected) as caught:
        decode(Api.CHAT, raw)
    assert (caught.value.status, caught.value.code) == (400, code)


def test_check_brackets_in_strings_add_no_depth() -> None:
    """Only nesting counts: text full of brackets, quotes and backslashes is text."""
    for text in ("[" * 500, '\\"[' * 500, "\\" * 501 + "{" * 100):
        assert request(Api.CHAT, messages=[{"role": "user", "content": text}]).model == "route"
    nested: Any = 1
    for _ in range(DecodeLimits().max_depth - 1):
        nested = [nested]
    assert request(Api.CHAT, extra=nested, wide=[[]] * 200).model == "route"
    with pytest.raises(Rejected, match="64 levels"):
        request(Api.CHAT, extra=[nested])


def test_decode_errors_quote_no_values() -> None:
    """The invalid value may be a secret."""
    with pytest.raises(Rejected) as caught:
        request(Api.CHAT, messages=[{"role": "my secret", "content": "x"}])
    assert "secret" not in caught.value.message


def test_decode_limits_are_validated() -> None:
    """A depth that means nothing is refused when it is set."""
    for max_depth in (0, MAX_DEPTH + 1):
        with pytest.raises(ValueError, match="max_depth"):
            DecodeLimits(max_depth=max_depth)


@pytest.mark.parametrize("raw", [
    b'{"x":[' + b"[]," * 1_000_001 + b"1]}", b"[" * 2_000_001, b'"["]' * 1_000_001], ids=["flat", "deep", "quotes"])
def test_check_too_many_brackets_are_rejected_quickly(raw: bytes) -> None:
    """The look at depth takes time for each bracket, and a body can hold 32 Mi of them."""
    with pytest.raises(Rejected) as caught:
        decode(Api.CHAT, raw)
    assert (caught.value.status, caught.value.code) == (400, "too_complex")


_TEXTS = st.text(alphabet='[]{}"\\a', max_size=8)
_DOCUMENTS = st.recursive(_TEXTS | st.integers(0, 9), lambda inner: st.lists(inner, max_size=4)
                          | st.dictionaries(_TEXTS, inner, max_size=4), max_leaves=30)


def depth_of(said: Any) -> int:
    """Levels of nesting, by walking."""
    inner = said.values() if isinstance(said, dict) else said if isinstance(said, list) else None
    return 0 if inner is None else 1 + max(map(depth_of, inner), default=0)


@given(_DOCUMENTS, st.integers(1, 6))
def test_check_depth_equals_a_recursive_count(said: Any, max_depth: int) -> None:
    """For any keys and texts: escapes, quotes, unbalanced brackets."""
    expected = pytest.raises(Rejected, match="levels") if depth_of(said) > max_depth else contextlib.nullcontext()
    with expected:
        check_json_bounds(json.dumps(said).encode(), max_depth)


@pytest.mark.parametrize("text", ["\\ud800", "\\ud800 and more", "\\udc00 and more", "\\uD83D\\u0041", "\\ude00\\ud83d"])
@pytest.mark.parametrize("field", ["model", "unread"])
def test_decode_half_a_surrogate_pair_is_named(text: str, field: str) -> None:
    """The parser calls it truncated or malformed, which sends people looking in the wrong place."""
    raw = b'{"%b":"%b","model":"m","messages":[]}' % (field.encode(), text.encode())
    with pytest.raises(Rejected, match="half of a surrogate pair") as caught:
        decode(Api.CHAT, raw)
    assert (caught.value.status, caught.value.code) == (400, "invalid_json")


def test_decode_surrogate_pairs_are_accepted() -> None:
    """A pair is one character; a backslash that is text begins no escape, so another fault keeps its own name."""
    raw = body(Api.CHAT, messages=[{"role": "user", "content": "\U0001f600"}])
    assert b"\\ud83d" in raw
    assert decode(Api.CHAT, raw).model == "route"
    with pytest.raises(Rejected, match="expected") as caught:
        decode(Api.CHAT, b'{"model": "\\\\ud800" "a"}')
    assert "surrogate" not in caught.value.message


_TALKERS = (Api.CHAT, Api.RESPONSES, Api.MESSAGES)


def deep_tool(api: Api, n_levels: int) -> bytes:
    """A request with one tool whose schema nests so deeply that the whole body has `n_levels`."""
    n_above = 4 if api is Api.CHAT else 3  # body, tools, tool, and in chat its function
    schema = b'{"a":' * (n_levels - n_above) + b"1" + b"}" * (n_levels - n_above)
    tool = {Api.CHAT: b'{"type":"function","function":{"name":"f","parameters":%b}}',
            Api.RESPONSES: b'{"type":"function","name":"f","parameters":%b}',
            Api.MESSAGES: b'{"name":"f","input_schema":%b}'}[api] % schema
    return body(api)[:-1] + b',"tools":[' + tool + b"]}"


@pytest.mark.parametrize(("client", "upstream"), [(client, upstream) for client in _TALKERS for upstream in _TALKERS])
def test_decode_and_encode_the_deepest_body(client: Api, upstream: Api) -> None:
    """At the largest limit no stack runs out, neither in the parser nor in a translation."""
    limits = DecodeLimits(max_depth=MAX_DEPTH)
    said = encode(decode(client, deep_tool(client, MAX_DEPTH), limits), upstream, "up", stream=True)
    assert said.count(b'{"a":') == MAX_DEPTH - (4 if client is Api.CHAT else 3)
    with pytest.raises(Rejected, match=f"{MAX_DEPTH} levels"):
        decode(client, deep_tool(client, MAX_DEPTH + 1), limits)
