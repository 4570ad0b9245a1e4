"""What commands say of a gateway that did not do what it was asked for."""

import pytest

from stayfast.cli.admin_client import error_message


@pytest.mark.parametrize(("status", "body", "said"), [
    (401, b'{"error":{"message":"No API key provided."}}',
     "401: No API key provided. Here: --key-env NAME, of a variable that holds the key."),
    (404, b'{"error":{"message":"No such key."}}', "404: No such key."),
    (502, b"<html>", "it answered with status 502; is it a Stayfast gateway?"),
    (200, b"[]", "it answered with status 200; is it a Stayfast gateway?")])
def test_the_reason_is_the_gateways_own_and_what_to_do(status: int, body: bytes, said: str) -> None:
    """Its words, and how a key is given where that is what is missing."""
    assert error_message(status, body) == said
