"""What an upstream's error says never holds the gateway's own keys."""

import json

import pytest

from stayfast.core.types import Api
from stayfast.wire.errors import Secrets, from_response, in_band, render

KEY = "sk/live+4f9a0c77e1"
ERROR = {"error": {"message": f"bad header Bearer {KEY}", "type": "invalid_request_error", "param": f"h.{KEY}", "code": KEY}}
SECRETS = Secrets([KEY, "Basic dXNlcjpwYXNz", "true"])


@pytest.mark.parametrize("body", [
    json.dumps(ERROR), json.dumps(ERROR).replace("/", "\\/"), json.dumps(ERROR).replace("s", "\\u0073")])
@pytest.mark.parametrize("api", [Api.CHAT, Api.MESSAGES])
def test_an_echoed_key_is_taken_out(api: Api, body: str) -> None:
    """Message, code and param, verbatim or translated, however the JSON spells them; the rest of the words stay."""
    failed = SECRETS.scrub(from_response("up", Api.CHAT, 400, {}, body.encode()))
    _, _, shown = render(failed, api, "r")
    assert KEY not in str(json.loads(shown))
    assert "bad header Bearer [redacted]" in json.loads(shown)["error"]["message"]
    assert KEY not in f"{failed.message} {failed.code} {failed.param}"


def test_an_echoed_key_inside_an_answer_is_taken_out() -> None:
    """Errors inside HTTP 200 as well."""
    failed = SECRETS.scrub(in_band("up", ERROR))
    assert KEY.encode() not in failed.body
    assert b"[redacted]" in failed.body


def test_the_last_word_of_a_header_counts() -> None:
    """`Basic ...` is often quoted without its scheme; short values are words like any other."""
    said = json.dumps({"error": {"message": "dXNlcjpwYXNz is not true", "type": "invalid_request_error"}})
    failed = SECRETS.scrub(from_response("up", Api.CHAT, 400, {}, said.encode()))
    assert json.loads(failed.body)["error"]["message"] == "[redacted] is not true"


@pytest.mark.parametrize(("code", "kept"), [
    ("context_length_exceeded", True), ("DeploymentNotFound", True), ("sk-SECRETKEY123456", False),
    ("gsk_Ab12cd34", False), ("d41d8cd98f00b204e9800998ecf8427e", False), ("AbCDxyzQ", False)])
def test_codes_that_could_be_keys_are_not_logged(code: str, *, kept: bool) -> None:
    """A key of somebody else is none that we know: only what is made of words goes into messages and codes."""
    failed = from_response("up", Api.CHAT, 400, {}, json.dumps({"error": {"message": "m", "code": code}}).encode())
    assert (code in failed.message) is (failed.code == code) is kept
