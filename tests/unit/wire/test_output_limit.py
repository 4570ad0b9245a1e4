"""The output limit in each dialect."""

import msgspec
import pytest

from stayfast.core.types import Api, OutputCap, Request
from stayfast.wire.output_limit import find_output_schema, read_reasoning_budget, set_output_limit, short_limit
from stayfast.wire.request_body import decode, encode

CAP = OutputCap("deadline", 50)
CHAT = '"model":"m","messages":[{"role":"user","content":"a"}]'
SCHEMA = {"type": "object", "required": ["a"]}


def request_of(api: Api, members: str) -> Request:
    return decode(api, f"{{{members}}}".encode())


@pytest.mark.parametrize(("api", "members", "after"), [
    (Api.CHAT, CHAT, CHAT + ',"max_completion_tokens":50'),
    (Api.CHAT, '"max_tokens":100000,' + CHAT, '"max_tokens":50,' + CHAT),
    (Api.CHAT, '"max_tokens":null,' + CHAT, '"max_tokens":null,' + CHAT + ',"max_completion_tokens":50'),
    (Api.CHAT, '"max_tokens":90,"max_completion_tokens":80,' + CHAT, '"max_tokens":50,"max_completion_tokens":50,' + CHAT),
    (Api.COMPLETIONS, '"model":"m","prompt":"a","max_tokens":99', '"model":"m","prompt":"a","max_tokens":50'),
    (Api.RESPONSES, '"model":"m","input":"a"', '"model":"m","input":"a","max_output_tokens":50'),
    (Api.MESSAGES, '"max_tokens":9000,' + CHAT, '"max_tokens":50,' + CHAT),
])
def test_set_output_limit_uses_the_field_of_the_client(api: Api, members: str, after: str) -> None:
    limited = set_output_limit(request_of(api, members), CAP)
    assert limited.body == f"{{{after}}}".encode()
    assert (limited.max_output_tokens, limited.cap) == (50, CAP)
    assert decode(api, limited.body).max_output_tokens == 50


def test_set_output_limit_leaves_other_members_as_they_are() -> None:
    odd = '"x":[1.50, 1e2,{"a" :"\\u00e9"}]'
    assert odd.encode() in set_output_limit(request_of(Api.CHAT, f'{odd},"max_tokens":9,{CHAT}'), CAP).body


def test_set_output_limit_of_embeddings_changes_nothing() -> None:
    request = request_of(Api.EMBEDDINGS, '"model":"m","input":"a"')
    assert set_output_limit(request, CAP) is request


@pytest.mark.parametrize(("spoken", "path"), [
    (Api.CHAT, ("max_completion_tokens",)), (Api.RESPONSES, ("max_output_tokens",)), (Api.MESSAGES, ("max_tokens",)),
    (Api.GEMINI, ("generationConfig", "maxOutputTokens")), (Api.CONVERSE, ("inferenceConfig", "maxTokens"))])
def test_set_output_limit_survives_translation(spoken: Api, path: tuple[str, ...]) -> None:
    source = Api.RESPONSES if spoken is Api.CHAT else Api.CHAT
    members = '"model":"m","input":"a","max_output_tokens":900' if source is Api.RESPONSES else '"max_tokens":900,' + CHAT
    limited = set_output_limit(request_of(source, members), CAP)
    found = msgspec.json.decode(encode(limited, spoken, "m", stream=False, want_usage=False))
    for name in path:
        found = found[name]
    assert found == 50


@pytest.mark.parametrize(("members", "budget"), [
    ('"thinking":{"type":"enabled","budget_tokens":1024},', 1024), ("", 0),
    ('"thinking":{"type":"disabled","budget_tokens":1024},', 0), ('"thinking":{"type":"adaptive"},', 0)])
def test_read_reasoning_budget_of_messages(members: str, budget: int) -> None:
    request = Request(Api.MESSAGES, "m", False, f'{{{members}"max_tokens":9000,{CHAT}}}'.encode())
    assert read_reasoning_budget(request) == budget


@pytest.mark.parametrize(("api", "body"), [
    (Api.CHAT, {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}}),
    (Api.RESPONSES, {"text": {"format": {"type": "json_schema", "name": "a", "schema": SCHEMA}}}),
    (Api.MESSAGES, {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}),
    (Api.MESSAGES, {"output_format": {"type": "json_schema", "schema": SCHEMA}})])
def test_find_output_schema_in_each_dialect(api: Api, body: dict[str, object]) -> None:
    assert find_output_schema(Request(api, "m", False, msgspec.json.encode(body))) == SCHEMA
    assert find_output_schema(Request(api, "m", False, b'{"a":"\\"json_schema\\""}')) is None


def test_find_output_schema_in_a_prompt_is_none() -> None:
    body = msgspec.json.encode({"messages": [{"role": "user", "content": {"json_schema": 1}}], "response_format": 5})
    assert find_output_schema(Request(Api.CHAT, "m", False, body)) is None


@pytest.mark.parametrize(("api", "members", "field"), [
    (Api.CHAT, '"max_tokens":3,' + CHAT, "max_tokens"), (Api.CHAT, CHAT, "max_completion_tokens"),
    (Api.RESPONSES, '"model":"m","input":"a"', "max_output_tokens")])
def test_short_limit_names_the_field(api: Api, members: str, field: str) -> None:
    rejected = short_limit(request_of(api, members), 3, 40)
    assert (rejected.status, rejected.code, rejected.param) == (400, "schema_exceeds_limit", field)
    assert "at least 40 tokens" in rejected.message
