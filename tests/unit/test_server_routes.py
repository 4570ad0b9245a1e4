"""The errors for a wrong path or key."""

import pytest

from stayfast.core.errors import Rejected
from stayfast.server.auth import KeyTable, digest_key
from stayfast.server.config import ServerConfig
from stayfast.server.paths import wrong_method_error


@pytest.mark.parametrize(("path", "meant"), [
    ("/chat/completions", "/v1/chat/completions"),  # the base URL lacks /v1
    ("/v1/v1/messages", "/v1/messages"),  # Anthropic's SDK brings its own
    ("/models", "/v1/models"), ("/nowhere", None), ("/v1/nowhere", None)])
def test_unknown_path_suggests_similar_one(path: str, meant: str | None) -> None:
    """The two usual mistakes with /v1 get a hint, anything else none."""
    refused = wrong_method_error("GET", path, ())
    assert refused.status == 404
    assert ("Did you mean" in refused.message) == (meant is not None)
    if meant is not None:
        assert f"Did you mean {meant}?" in refused.message


@pytest.mark.parametrize(("fields", "words"), [
    ({b"authorization": b"Bearer bad"}, "Incorrect API key"), ({b"x-api-key": b"bad"}, "Incorrect API key"),
    ({b"x-api-key": b"x" * 40}, "Incorrect API key"), ({}, "No API key provided")])
def test_wrong_key_and_missing_key_have_different_errors(fields: dict[bytes, bytes], words: str) -> None:
    """Too short, unknown or absent: the message says which of the two it is."""
    keys = KeyTable(ServerConfig(keys={"me": digest_key("a-key-that-is-long-enough")}))
    with pytest.raises(Rejected, match=words) as refused:
        keys.authenticate(fields)
    assert refused.value.status == 401
