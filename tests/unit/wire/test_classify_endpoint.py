"""wire.classify.endpoint: requests as vLLM takes them, and errors that name the field."""

import msgspec
import pytest

from stayfast.core.errors import Rejected
from stayfast.wire.classify.endpoint import (
    MAX_CHARS,
    MAX_INPUTS,
    ClassifiedInput,
    decode_classify_request,
    encode_classify_reply,
)


def test_decode_classify_request_text_or_list_are_texts() -> None:
    assert decode_classify_request(b'{"model": "intent", "input": "a", "truncate_prompt_tokens": 9}').texts == ["a"]
    assert decode_classify_request(b'{"model": "intent", "input": ["a", "b"]}').texts == ["a", "b"]


@pytest.mark.parametrize(("body", "param", "word"), [
    (b"{", None, "JSON"), (b"\xff", None, "JSON"), (b"[]", "model", "object"), (b'{"input": "a"}', "model", "model"),
    (b'{"model": "m"}', "input", "input"), (b'{"model": "m", "input": []}', "input", "length"),
    (b'{"model": "m", "input": [""]}', "input", "length"), (b'{"model": "m", "input": [1]}', "input", "str"),
    (msgspec.json.encode({"model": "m", "input": ["a"] * (MAX_INPUTS + 1)}), "input", "length"),
    (msgspec.json.encode({"model": "m", "input": "a" * (MAX_CHARS + 1)}), "input", "characters"),
])
def test_decode_classify_request_malformed_is_rejected_with_its_field(body: bytes, param: str | None, word: str) -> None:
    with pytest.raises(Rejected, match=word) as raised:
        decode_classify_request(body)
    assert raised.value.param == param


def test_encode_classify_reply_has_the_fields_of_vllm() -> None:
    body = msgspec.json.decode(encode_classify_reply("r1", 7, "intent", ["a", "b"], [
        ClassifiedInput(0, "unknown", [0.4, 0.6], 2, "b", 0.6)]))
    assert body["object"] == "list"
    assert body["data"][0] == {"index": 0, "label": "unknown", "probs": [0.4, 0.6], "num_classes": 2, "nearest": "b",
                               "probability": 0.6}
    assert (body["id"], body["created"], body["model"], body["labels"]) == ("classify-r1", 7, "intent", ["a", "b"])
