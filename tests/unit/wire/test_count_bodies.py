"""Bodies for the count endpoints of upstreams."""

import json
from typing import Any

import msgspec
import pytest

from stayfast.core.errors import Rejected
from stayfast.core.types import Api
from stayfast.wire.count_bodies import CountForm, encode_count_body
from stayfast.wire.request_body import decode

ASK: dict[Api, dict[str, Any]] = {
    Api.COUNT_TOKENS: {"system": "Be brief.", "messages": [{"role": "user", "content": "hi"}]},
    Api.INPUT_TOKENS: {"instructions": "Be brief.", "input": "hi"},
    Api.TOKENIZE: {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]},
}
TEXT = [{"type": "text", "text": "hi"}]
EXPECTED: dict[CountForm, tuple[str, ...]] = {
    CountForm.MESSAGES: ("messages", "model", "system"), CountForm.RESPONSES: ("input", "instructions", "model"),
    CountForm.TOKENIZE: ("messages", "model"), CountForm.VERTEX: ("contents", "systemInstruction")}


def encoded(api: Api, form: CountForm, **fields: Any) -> Any:
    """The decoded body for a request of this API."""
    asked = decode(api, json.dumps({"model": "route", **(fields or ASK[api])}).encode())
    body = encode_count_body(asked, form, "up")
    return json.loads(body) if body is not None else None


@pytest.mark.parametrize("api", ASK)
@pytest.mark.parametrize("form", EXPECTED)
def test_count_body_has_only_members_of_the_prompt(api: Api, form: CountForm) -> None:
    """Translated where the endpoint has another dialect, under the upstream's name of the model."""
    body = encoded(api, form)
    assert set(body) <= {*EXPECTED[form]}
    assert {"messages", "input", "contents"} & set(body)
    assert body.get("model", "up") == "up"
    assert "Be brief." in json.dumps(body)


@pytest.mark.parametrize("api", ASK)
def test_count_body_of_google_and_amazon_is_wrapped(api: Api) -> None:
    """As their references say."""
    google = encoded(api, CountForm.GEMINI)["generateContentRequest"]
    assert google["model"] == "models/up"
    assert google["contents"][0]["parts"] == [{"text": "hi"}]
    amazon = encoded(api, CountForm.BEDROCK)["input"]["converse"]
    assert amazon["messages"][0]["content"] == [{"text": "hi"}]
    assert "inferenceConfig" not in amazon


def test_count_body_of_a_text_is_for_tokenize_only() -> None:
    """Elsewhere it would become a message."""
    assert encoded(Api.TOKENIZE, CountForm.TOKENIZE, prompt="a", add_special_tokens=False) == {
        "model": "up", "prompt": "a", "add_special_tokens": False}
    assert encoded(Api.TOKENIZE, CountForm.RESPONSES, prompt="a") is None


def test_tokenize_request_without_a_prompt_names_both_members() -> None:
    with pytest.raises(Rejected) as refused:
        decode(Api.TOKENIZE, b'{"model": "m"}')
    assert str(refused.value) == "prompt or messages is required"
    assert (refused.value.code, refused.value.param) == ("missing_field", "prompt")


CHAT_BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize(("api", "body", "expected"), [
    (Api.CHAT, {**CHAT_BODY, "temperature": 0, "chat_template_kwargs": {}}, {**CHAT_BODY, "chat_template_kwargs": {}}),
    (Api.MESSAGES, {**CHAT_BODY, "max_tokens": 5}, CHAT_BODY),
    (Api.COMPLETIONS, {"model": "m", "prompt": "hi", "n": 1}, {"model": "m", "prompt": "hi"})])
def test_encode_count_body_of_an_answered_request_has_its_prompt(api: Api, body: object, expected: dict[str, Any]) -> None:
    encoded = encode_count_body(decode(api, msgspec.json.encode(body)), CountForm.TOKENIZE, "there")
    assert encoded is not None
    assert msgspec.json.decode(encoded) == {**expected, "model": "there"}


def test_encode_count_body_of_prompt_as_tokens_is_none() -> None:
    request = decode(Api.COMPLETIONS, msgspec.json.encode({"model": "m", "prompt": [1, 2]}))
    assert encode_count_body(request, CountForm.TOKENIZE, "m") is None
