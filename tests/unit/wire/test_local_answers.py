"""Answers that the gateway writes itself: the model list, and a fixed text in any dialect."""

import json

import msgspec
import pytest
from anthropic.types import ModelInfo
from openai.types import Model

from stayfast.core.types import Api
from stayfast.wire.local_answers import render_model_list, render_text_answer
from tests.unit.wire.recorded import events, request
from tests.unit.wire.sdk_types import CLIENTS, check, read_again


def test_model_list_validates_with_both_sdks() -> None:
    """Every entry validates against both vendors' models."""
    listed = json.loads(render_model_list(["fast", "deep"], 1766000000))
    assert [entry["id"] for entry in listed["data"]] == ["fast", "deep"]
    for entry in listed["data"]:
        assert Model.model_validate(entry).created == 1766000000
        assert ModelInfo.model_validate(entry).created_at.timestamp() == 1766000000
    assert (listed["object"], listed["has_more"], listed["first_id"], listed["last_id"]) == ("list", False, "fast", "deep")


def test_model_list_without_models_is_an_empty_list() -> None:
    """An empty list is a list."""
    assert json.loads(render_model_list([], 0)) == {"object": "list", "data": [], "has_more": False, "first_id": None,
                                             "last_id": None}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("client", CLIENTS)
def test_render_text_answer_is_a_complete_answer(client: Api, stream: bool) -> None:
    """SDKs and our own decoder read it: complete, stopped by itself, without tokens."""
    body = render_text_answer(request(client, stream=stream), "Läter.\n", answer_id="req_1", created_at=7)
    check(client, body, stream=stream)
    summary = read_again(client, body, stream=stream)
    assert summary.is_complete
    assert summary.failure is None
    assert summary.finish_reason in ("stop", "end_turn", "completed")
    assert summary.usage is None or summary.usage.output == 0
    text = body.decode() if not stream else "".join(msgspec.json.encode(event).decode() for event in events(body))
    assert "Läter." in text


def test_render_text_answer_rejects_an_api_without_text() -> None:
    """An embeddings answer cannot hold a template's text."""
    with pytest.raises(ValueError, match="hold no text"):
        render_text_answer(request(Api.EMBEDDINGS), "x", answer_id="r", created_at=0)
