"""Errors of an upstream never contain the gateway's own keys."""

import json

import pytest

from stayfast.core.types import Api
from stayfast.wire.errors import Secrets, encode_error, failure_of_response, in_band_failure

KEY = "sk/live+4f9a0c77e1"
ERROR = {"error": {"message": f"bad header Bearer {KEY}", "type": "invalid_request_error", "param": f"h.{KEY}", "code": KEY}}
SECRETS = Secrets([KEY, "Basic dXNlcjpwYXNz", "true"])


@pytest.mark.parametrize("body", [
    json.dumps(ERROR), json.dumps(ERROR).replace("/", "\\/"), json.dumps(ERROR).replace("s", "\\u0073")])
@pytest.mark.parametrize("api", [Api.CHAT, Api.MESSAGES])
def test_secrets_in_an_error_response_are_redacted(api: Api, body: str) -> None:
    """In message, code and param, verbatim or translated, with any JSON escapes."""
    failed = SECRETS.redact_failure(failure_of_response("up", Api.CHAT, 400, {}, body.encode()))
    _, _, shown = encode_error(failed, api, "r")
    assert KEY not in str(json.loads(shown))
    assert "bad header Bearer [redacted]" in json.loads(shown)["error"]["message"]
    assert KEY not in f"{failed.message} {failed.code} {failed.param}"


def test_secrets_in_an_in_band_error_are_redacted() -> None:
    """Errors inside HTTP 200 as well."""
    failed = SECRETS.redact_failure(in_band_failure("up", ERROR))
    assert KEY.encode() not in failed.body
    assert b"[redacted]" in failed.body


def test_secrets_each_word_of_a_header_is_redacted() -> None:
    """A key is often quoted without its scheme; short values are not redacted."""
    said = json.dumps({"error": {"message": "dXNlcjpwYXNz is not true", "type": "invalid_request_error"}})
    failed = SECRETS.redact_failure(failure_of_response("up", Api.CHAT, 400, {}, said.encode()))
    assert json.loads(failed.body)["error"]["message"] == "[redacted] is not true"


@pytest.mark.parametrize(("code", "kept"), [
    ("context_length_exceeded", True), ("DeploymentNotFound", True), ("sk-SECRETKEY123456", False),
    ("gsk_Ab12cd34", False), ("d41d8cd98f00b204e9800998ecf8427e", False), ("AbCDxyzQ", False)])
def test_failure_codes_that_may_be_keys_are_not_logged(code: str, *, kept: bool) -> None:
    """An unknown key cannot be redacted, so only plain words are logged."""
    failed = failure_of_response("up", Api.CHAT, 400, {}, json.dumps({"error": {"message": "m", "code": code}}).encode())
    assert (code in failed.message) is (failed.code == code) is kept
