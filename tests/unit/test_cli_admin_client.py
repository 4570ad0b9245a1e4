"""The errors of commands whose request to the gateway fails."""

import pytest

from stayfast.cli.admin_client import error_message


@pytest.mark.parametrize(("status", "body", "said"), [
    (401, b'{"error":{"message":"No API key provided."}}',
     "401: No API key provided. Use --key-env NAME to name the variable with the key."),
    (404, b'{"error":{"message":"No such key."}}', "404: No such key."),
    (502, b"<html>", "status 502; is this a Stayfast gateway?"),
    (200, b"[]", "status 200; is this a Stayfast gateway?")])
def test_error_message_has_gateway_reason_and_hint(status: int, body: bytes, said: str) -> None:
    """Its words, and how a key is given where that is what is missing."""
    assert error_message(status, body) == said
