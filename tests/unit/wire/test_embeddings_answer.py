"""wire.embeddings_answer: texts in, OpenAI's answer out."""

import json
from array import array
from base64 import b64decode
from typing import Any

import pytest

from stayfast.core.errors import Rejected
from stayfast.core.types import Api
from stayfast.wire.chat.request import EMBEDDINGS_DECODER
from stayfast.wire.embeddings_answer import encode_embeddings_answer, read_texts
from stayfast.wire.request_body import decode_typed
from tests.unit.wire.recorded import request


def texts_of(value: Any) -> list[str]:
    return read_texts(decode_typed(EMBEDDINGS_DECODER, request(Api.EMBEDDINGS, input=value).body))


def test_read_texts_of_one_and_several() -> None:
    assert texts_of("a") == ["a"]
    assert texts_of(["a", "b"]) == ["a", "b"]


@pytest.mark.parametrize(("value", "param"), [([1, 2], "input"), ([[1], [2]], "input"), (["a", ""], "input[1]")])
def test_read_texts_of_tokens_or_nothing_is_rejected(value: Any, param: str) -> None:
    with pytest.raises(Rejected) as caught:
        texts_of(value)
    assert caught.value.param == param


@pytest.mark.parametrize("is_base64", [False, True])
def test_encoded_answer_has_the_vectors_in_order(is_base64: bool) -> None:
    rows = [array("f", [0.5, -1.0]), array("f", [2.0, 0.25])]
    body = json.loads(encode_embeddings_answer(request(Api.EMBEDDINGS), [row.tobytes() for row in rows], 7,
                                               is_base64=is_base64))
    found = [one["embedding"] for one in body["data"]]
    assert [array("f", b64decode(one)).tolist() if is_base64 else one for one in found] == [row.tolist() for row in rows]
    assert body["usage"] == {"prompt_tokens": 7, "total_tokens": 7}
