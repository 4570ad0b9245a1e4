"""The service tier in a request's body."""

import msgspec
import pytest

from stayfast.core.types import Api
from stayfast.wire.tiers.service_tier import write_service_tier

BODY = b'{"model":"m","temperature":1.0}'


@pytest.mark.parametrize(("api", "word", "member"), [
    (Api.CHAT, "priority", {"service_tier": "priority"}),
    (Api.RESPONSES, "ultrafast", {"service_tier": "ultrafast"}),
    (Api.MESSAGES, "speed=fast", {"speed": "fast"}),
    (Api.MESSAGES, "standard_only", {"service_tier": "standard_only"}),
    (Api.GEMINI, "flex", {"serviceTier": "flex"}),
    (Api.CONVERSE, "flex", {"serviceTier": {"type": "flex"}}),
    (Api.EMBEDDINGS, "flex", {}),
])
def test_service_tier_is_written_as_the_protocol_has_it(api: Api, word: str, member: dict[str, object]) -> None:
    written = msgspec.json.decode(write_service_tier(BODY, api, word, replaces=False))
    assert written == {"model": "m", "temperature": 1.0, **member}


def test_service_tier_of_the_client_wins_unless_it_is_replaced() -> None:
    own = b'{"model":"m","service_tier":"flex"}'
    assert write_service_tier(own, Api.CHAT, "priority", replaces=False) == own
    assert write_service_tier(own, Api.CHAT, "priority", replaces=True) == b'{"model":"m","service_tier":"priority"}'


def test_service_tier_null_of_the_client_is_no_choice() -> None:
    written = write_service_tier(b'{"model":"m","service_tier":null}', Api.CHAT, "flex", replaces=False)
    assert msgspec.json.decode(written)["service_tier"] == "flex"
