"""Google's own options in a client's body."""

from typing import Any

import pytest

from stayfast.core.errors import Rejected
from stayfast.core.types import Api
from stayfast.wire.request_body import encode
from tests.unit.wire.full_requests import sent
from tests.unit.wire.recorded import request

OPTIONS = {"cached_content": "cachedContents/abc",
           "safety_settings": [{"category": "HARM_CATEGORY_HARASSMENT", "threshold": "BLOCK_NONE"}],
           "thinking_config": {"thinking_budget": 512, "include_thoughts": True}}


@pytest.mark.parametrize("client", [Api.CHAT, Api.RESPONSES, Api.MESSAGES])
@pytest.mark.parametrize("place", [{"extra_body": {"google": OPTIONS}}, {"google": OPTIONS}], ids=["extra_body", "google"])
def test_read_google_options_reach_the_upstream(client: Api, place: dict[str, Any]) -> None:
    """In both places, from each dialect."""
    body = sent(client, Api.GEMINI, **place)
    assert body["cachedContent"] == "cachedContents/abc"
    assert body["safetySettings"] == OPTIONS["safety_settings"]
    assert body["generationConfig"]["thinkingConfig"] == {"thinkingBudget": 512, "includeThoughts": True}


def test_encode_cached_content_is_rejected_by_other_dialects() -> None:
    """Without it a part of the prompt would be missing; the other options are hints."""
    with pytest.raises(Rejected, match=r"extra_body\.google\.cached_content cannot be translated to messages"):
        encode(request(Api.CHAT, google=OPTIONS), Api.MESSAGES, "up", stream=False)
    encode(request(Api.CHAT, google={"thinking_config": {"thinking_budget": 1}}), Api.MESSAGES, "up", stream=False)


@pytest.mark.parametrize("google", [{"cached_content": 5}, {"safety_settings": {}}, {"thinking_config": []}])
def test_decode_google_options_of_a_wrong_type_name_the_field(google: dict[str, Any]) -> None:
    """As all fields that a translation reads."""
    with pytest.raises(Rejected) as rejected:
        request(Api.CHAT, extra_body={"google": google})
    assert rejected.value.param == f"extra_body.google.{next(iter(google))}"
