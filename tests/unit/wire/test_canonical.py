"""When two requests have the same cache key, and which requests are not cacheable."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.core.types import Api, Request
from stayfast.wire.canonical import (
    MAX_BYTES,
    CanonicalRequest,
    canonicalize,
    identity_bytes,
    key_digest,
    normalize_text,
    scope_bytes,
    scope_digest,
)
from stayfast.wire.request_body import decode

HELLO = {"role": "user", "content": "hello"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}


def chat(**fields: object) -> Request:
    """A chat request."""
    return decode(Api.CHAT, msgspec.json.encode({"model": "m", "messages": [HELLO], **fields}))


def messages(**fields: object) -> Request:
    """A messages request."""
    return decode(Api.MESSAGES, msgspec.json.encode({"model": "m", "max_tokens": 9, "messages": [HELLO], **fields}))


def responses(**fields: object) -> Request:
    """A responses request."""
    return decode(Api.RESPONSES, msgspec.json.encode({"model": "m", "input": "hello", **fields}))


def key(request: Request, *who: str | None) -> bytes:
    """The cache key of a request."""
    what = canonicalize(request)
    assert not what.why_not
    return key_digest(scope_bytes(what, identity_bytes(*who)), what)


def scope(request: Request, *who: str | None) -> bytes:
    """The scope of a request."""
    return scope_digest(scope_bytes(canonicalize(request), identity_bytes(*who)))


def raw(text: str) -> Request:
    """A chat request with this very body."""
    return decode(Api.CHAT, text.encode())


def test_canonical_white_space_and_member_order_are_ignored() -> None:
    """The same JSON in other bytes is the same question."""
    one = raw('{"model":"m","temperature":0.2,"messages":[{"role":"user","content":"hello"}]}')
    other = raw('{ "messages" : [ {"content": "hello", "role": "user"} ],\n "temperature": 0.20, "model": "m" }')
    assert key(one) == key(other)


@pytest.mark.parametrize(("one", "other"), [("0", "0.0"), ("0.2", "2e-1"), ("1", "1.0"), ("0.2", "0.20"), ("0", "-0.0")])
def test_canonical_equal_numbers_are_equal(one: str, other: str) -> None:
    """0 and 0.0 are the same temperature."""
    body = '{"model":"m","temperature":%s,"messages":[{"role":"user","content":"hello"}]}'
    assert key(raw(body % one)) == key(raw(body % other))


def test_canonical_tool_order_is_ignored() -> None:
    """Some SDKs make them of a set. Of two with one name the order stays."""
    g = {"type": "function", "function": {"name": "g"}}
    assert key(chat(tools=[TOOL, g])) == key(chat(tools=[g, TOOL])) != key(chat(tools=[g]))
    h, i = ({"name": name, "input_schema": {"type": "object"}} for name in "hi")
    assert key(messages(tools=[h, i])) == key(messages(tools=[i, h]))
    twice = [TOOL, {"type": "function", "function": {"name": "f"}}]
    assert key(chat(tools=twice)) != key(chat(tools=twice[::-1]))


@pytest.mark.parametrize("fields", [
    {"tools": []}, {"tools": None}, {"seed": None}, {"temperature": None}, {"stop": []}, {"logit_bias": {}},
    {"metadata": None}, {"response_format": None}, {"tool_choice": None}, {"mcp_servers": []}, {"web_search_options": None}])
def test_canonical_default_values_are_removed(fields: dict[str, object]) -> None:
    """SDKs send members that the user has not set."""
    assert key(chat(**fields)) == key(chat())


@pytest.mark.parametrize("fields", [{"some_new_field": None}, {"max_tokens": None}, {"seed": 0}, {"temperature": 0}])
def test_canonical_non_default_values_count(fields: dict[str, object]) -> None:
    """Null in an unknown member is a value, and 0 always is."""
    assert key(chat(**fields)) != key(chat())


def test_canonical_hosted_search_without_options_is_rejected() -> None:
    """The member alone turns it on."""
    assert canonicalize(chat(web_search_options={})).why_not == "hosted_tools"


def test_canonical_large_body_is_not_cacheable() -> None:
    """Everybody else on the loop would wait for it."""
    assert canonicalize(chat(user="u" * MAX_BYTES)).why_not == "large"
    assert not canonicalize(chat(user="u" * (MAX_BYTES - 1000))).why_not


@pytest.mark.parametrize("content", [
    " hello ", "hello\r\n", "\nhello", [{"type": "text", "text": "hello"}],
    [{"type": "text", "text": "hello ", "cache_control": {"type": "ephemeral"}}],
])
def test_canonical_equal_question_texts_have_equal_keys(content: object) -> None:
    """White space around a question, its line ends, one part for a text and marks for a prompt cache change nothing."""
    assert key(chat(messages=[{"role": "user", "content": content}])) == key(chat())


def test_canonical_many_combining_marks_are_not_normalized() -> None:
    """To put them in order takes the square of their number: half a megabyte of them would stop the loop for a minute."""
    few, many = "a" + "\u0301\u0323" * 15, "a" + "\u0301\u0323" * 200_000
    assert normalize_text(few) == "\u1ea1" + "\u0323" * 14 + "\u0301" * 15
    assert normalize_text(many) == many


def test_canonical_unicode_is_composed() -> None:
    """Unicode has two ways to write an accent, and keyboards differ."""
    assert key(chat(messages=[{"role": "user", "content": "cafe\u0301"}])) == key(
        chat(messages=[{"role": "user", "content": "caf\u00e9"}]))


def test_canonical_indentation_counts() -> None:
    """White space within a text may be code."""
    texts = ["if a:\n  b\nc", "if a:\n  b\n  c"]
    assert len({key(chat(messages=[{"role": "user", "content": text}])) for text in texts}) == 2


@pytest.mark.parametrize("fields", [
    {"stream": True}, {"stream": True, "stream_options": {"include_usage": True}}, {"service_tier": "flex"},
    {"prompt_cache_key": "k"}, {"store": False},
])
def test_canonical_irrelevant_members_are_ignored(fields: dict[str, object]) -> None:
    """Streaming, billing and the provider's own cache do not touch the answer."""
    assert key(chat(**fields)) == key(chat())


@pytest.mark.parametrize("fields", [
    {"response_format": {"type": "json_object"}},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}},
    {"tools": [TOOL]}, {"tools": [TOOL], "tool_choice": "none"}, {"temperature": 0.1}, {"top_p": 0.5}, {"seed": 1},
    {"max_tokens": 9}, {"max_completion_tokens": 9}, {"stop": ["x"]}, {"user": "u"}, {"metadata": {"a": "b"}},
    {"reasoning_effort": "low"}, {"verbosity": "low"}, {"logit_bias": {"1": 2}}, {"presence_penalty": 1},
    {"messages": [{"role": "system", "content": "Be brief."}, HELLO]},
    {"messages": [{"role": "developer", "content": "Be brief."}, HELLO]},
    {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, HELLO]},
    {"messages": [{"role": "user", "content": "hello", "name": "n"}]}, {"some_new_field": 1}, {"model": "n"},
])
def test_canonical_other_members_change_the_scope(fields: dict[str, object]) -> None:
    """Output format, system prompt, tools, earlier turns, sampling and unknown members all count."""
    assert scope(chat(**fields)) != scope(chat())
    assert key(chat(**fields)) != key(chat())


def test_canonical_system_prompt_is_trimmed() -> None:
    """White space around it changes nothing; a different word does."""
    prompts = [scope(chat(messages=[{"role": "system", "content": text}, HELLO])) for text in ("Be brief.", "Be brief.\n")]
    assert prompts[0] == prompts[1]
    assert scope(messages(system="Be brief.")) == scope(messages(system=[{"type": "text", "text": "Be brief. "}]))
    assert scope(messages(system="Be brief.")) != scope(messages(system="Be long."))


def test_canonical_identity_changes_the_scope() -> None:
    """Tenant and route are names that no body can forge; no name can run into the next."""
    whos: list[tuple[str | None, ...]] = [("a", "b"), ("ab", ""), ("a", ""), (None, "b"), ("", "b"), ('a","b', ""), ()]
    assert len({scope(chat(), *who) for who in whos}) == len(whos)


def test_canonical_earlier_turns_change_the_key() -> None:
    """Multi-turn: "and its types?" is a different question in each conversation."""
    answer, follow_up = {"role": "assistant", "content": "Yes."}, {"role": "user", "content": "Why?"}
    turns = [[{"role": "user", "content": text}, answer, follow_up] for text in ("Is it red?", "Is it green?")]
    assert key(chat(messages=turns[0])) != key(chat(messages=turns[1]))
    assert canonicalize(chat(messages=turns[0])).question == canonicalize(chat(messages=turns[1])).question


def test_canonical_text_like_encoded_parts_differs_from_parts() -> None:
    """No text can be made to collide with a list of parts."""
    parts = [{"text": "a", "type": "text"}, {"text": "b", "type": "text"}]
    text = msgspec.json.encode(parts, order="deterministic").decode()
    keys = [key(chat(messages=[{"role": "user", "content": content}])) for content in (parts, text)]
    assert keys[0] != keys[1]


@pytest.mark.parametrize(("why", "request_"), [
    ("api", decode(Api.COUNT_TOKENS, b'{"model":"m","messages":[{"role":"user","content":"hi"}]}')),
    ("n", chat(n=2)),
    ("stateful", chat(store=True)),
    ("stateful", responses(previous_response_id="r")),
    ("stateful", responses(prompt={"id": "p"})),
    ("stateful", messages(container="c")),
    ("logprobs", chat(logprobs=True)),
    ("logprobs", responses(top_logprobs=3)),
    ("logprobs", decode(Api.COMPLETIONS, b'{"model":"m","prompt":"a","logprobs":1}')),
    ("n", decode(Api.COMPLETIONS, b'{"model":"m","prompt":"a","best_of":2}')),
    ("tool_choice", chat(tools=[TOOL], tool_choice="required")),
    ("tool_choice", chat(tools=[TOOL], tool_choice={"type": "function", "function": {"name": "f"}})),
    ("tool_choice", messages(tools=[{"name": "f", "input_schema": {}}], tool_choice={"type": "any"})),
    ("hosted_tools", responses(tools=[{"type": "web_search"}])),
    ("hosted_tools", messages(tools=[{"type": "web_search_20250305", "name": "web_search"}])),
    ("hosted_tools", chat(web_search_options={"search_context_size": "low"})),
    ("tool_results", chat(messages=[HELLO, {"role": "assistant", "content": None, "tool_calls": []},
                                    {"role": "tool", "tool_call_id": "c", "content": "42"}])),
    ("tool_results", chat(messages=[HELLO, {"role": "tool", "tool_call_id": "c", "content": "42"}, HELLO])),
    ("tool_results", messages(messages=[HELLO, {"role": "assistant", "content": "x"}, {
        "role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "42"}]}])),
    ("tool_results", responses(input=[{"type": "function_call_output", "call_id": "c", "output": "42"}])),
    ("media", chat(messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}])),
    ("media", chat(modalities=["text", "audio"], audio={"voice": "v", "format": "wav"})),
    ("media", messages(messages=[{"role": "user", "content": [{"type": "document", "source": {"type": "text"}}]}])),
    ("no_question", chat(messages=[{"role": "user", "content": "  \n"}])),
    ("no_question", chat(messages=[{"role": "user", "content": []}])),
    ("no_question", chat(messages=[{"role": "user", "content": [{"type": "text", "text": " "}]}])),
    ("no_question", chat(messages=[HELLO, {"role": "assistant", "content": "He"}])),
    ("no_question", responses(input=" ")),
    ("no_question", decode(Api.COMPLETIONS, b'{"model":"m","prompt":""}')),
    ("unreadable", responses(input=[{"role": "user", "content": [{"type": "input_text", "text": None}]}])),
])
def test_canonical_not_cacheable_reasons(why: str, request_: Request) -> None:
    """Tool results, an empty last text, images and the like have a reason and no key."""
    assert canonicalize(request_) == CanonicalRequest(why)


def test_canonical_input_text_equals_one_user_message() -> None:
    """Responses: the two ways to ask one thing are one question."""
    assert key(responses()) == key(responses(input=[{"role": "user", "content": "hello"}]))
    assert key(responses()) == key(responses(input=[{"role": "user", "content": [{"type": "input_text", "text": "hello"}]}]))


def test_canonical_completion_prompt_keeps_white_space() -> None:
    """There white space at the end is a part of the question."""
    prompts = [decode(Api.COMPLETIONS, msgspec.json.encode({"model": "m", "prompt": text})) for text in ("a", "a ")]
    assert key(prompts[0]) != key(prompts[1])


def test_canonical_embeddings_are_not_sampled() -> None:
    """They have no temperature to be too warm, and every input is its own question."""
    asks = [canonicalize(decode(Api.EMBEDDINGS, msgspec.json.encode({"model": "m", "input": text}))) for text in ("a", ["a"],
                                                                                                                  "b")]
    assert not asks[0].is_sampled
    assert len({ask.question for ask in asks}) == 3


JSON = st.recursive(st.none() | st.booleans() | st.integers(-2**60, 2**60) | st.floats(allow_nan=False, allow_infinity=False)
                    | st.text(max_size=8),
                    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
                    max_leaves=8)


@given(st.dictionaries(st.sampled_from(["x", "user_data", "extra", "plugins"]), JSON, max_size=3), st.randoms())
def test_canonical_reordered_body_has_the_same_key(extra: dict[str, object], shuffled: object) -> None:
    """For any body: order and white space do not count, each value does."""
    body = {"model": "m", "messages": [HELLO], **extra}
    again = dict(reversed(list(body.items())))
    one = decode(Api.CHAT, msgspec.json.encode(body))
    other = decode(Api.CHAT, msgspec.json.format(msgspec.json.encode(again), indent=3))
    assert key(one) == key(other)
    assert key(decode(Api.CHAT, msgspec.json.encode({**body, "x": "another"}))) != key(one) or extra.get("x") == "another"


def test_canonical_embedding_input_keeps_white_space() -> None:
    """Tokenizers see it, so each spelling has a vector of its own, and an exact answer is that of the very input."""
    texts = ("x y", " x y ", "x  y", "x y\n")
    asks = [canonicalize(decode(Api.EMBEDDINGS, msgspec.json.encode({"model": "m", "input": text}))) for text in texts]
    assert len({ask.question for ask in asks}) == len(texts)
