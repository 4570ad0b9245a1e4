"""Signatures, compared with botocore's own byte for byte."""

from datetime import UTC, datetime
from unittest.mock import patch
from urllib.parse import quote

import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from hypothesis import given
from hypothesis import strategies as st

from stayfast.upstreams.authentication import AwsKeys, CredentialMissing
from stayfast.upstreams.sigv4 import SigV4

HOST = "bedrock-runtime.eu-west-1.amazonaws.com"
KEYS = AwsKeys("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY")
VISIBLE = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=40)


class FixedKeys:
    """A source whose keys a test sets; None: it has none."""

    def __init__(self, keys: AwsKeys | None = KEYS) -> None:
        self.keys = keys

    def current(self) -> AwsKeys:
        if self.keys is None:
            raise CredentialMissing("no keys")
        return self.keys


def _botocore_headers(keys: AwsKeys, target: str, body: bytes, at: float, region: str, *,
                      host: str = HOST) -> dict[str, str]:
    """The headers that botocore adds to this request."""
    request = AWSRequest("POST", f"https://{host}{target}", {"content-type": "application/json"}, body)
    request.context["timestamp"] = ""
    with patch("botocore.auth.get_current_datetime", return_value=datetime.fromtimestamp(int(at), UTC)):
        SigV4Auth(Credentials(*keys), "bedrock", region).add_auth(request)
    return {name.lower(): value for name, value in request.headers.items() if name.lower() != "content-type"}


def _headers(keys: AwsKeys, target: str, body: bytes, at: float, region: str, *, host: str = HOST) -> dict[str, str]:
    return dict(SigV4(FixedKeys(keys), region, host).headers_for("POST", target, body, at))


@given(model=st.text(min_size=1, max_size=30), body=st.binary(max_size=100), at=st.floats(0, 4e9),
       keys=st.builds(AwsKeys, st.just("AKID"), VISIBLE, st.none() | VISIBLE),
       region=st.sampled_from(["us-east-1", "eu-west-1"]))
def test_headers_any_model_body_and_keys_same_as_botocore(model: str, body: bytes, at: float, keys: AwsKeys,
                                                          region: str) -> None:
    target = f"/model/{quote(model, safe='')}/converse"
    assert _headers(keys, target, body, at, region) == _botocore_headers(keys, target, body, at, region)


@given(target=st.text("/.ab%3A:~-_ é", max_size=20).map(lambda text: "/" + text),
       query=st.none() | st.lists(st.text("ab=%2F", max_size=6), max_size=4).map("&".join))
def test_headers_any_path_and_query_same_as_botocore(target: str, query: str | None) -> None:
    sent = quote(target, safe="/%:~") + (f"?{query}" if query is not None else "")
    assert _headers(KEYS, sent, b"{}", 1e9, "us-east-1") == _botocore_headers(KEYS, sent, b"{}", 1e9, "us-east-1")


@pytest.mark.parametrize("model", [
    "anthropic.claude-sonnet-4-5-20250929-v1:0",
    "arn:aws:bedrock:us-east-1:123456789012:application-inference-profile/a1b2c3"])
@pytest.mark.parametrize("host", [HOST, "127.0.0.1:8443"])
def test_headers_names_with_colon_and_slash_same_as_botocore(model: str, host: str) -> None:
    target = f"/model/{quote(model, safe='')}/converse-stream"
    headers = _headers(KEYS, target, b'{"messages":[]}', 1.7e9, "us-east-1", host=host)
    assert headers == _botocore_headers(KEYS, target, b'{"messages":[]}', 1.7e9, "us-east-1", host=host)
    assert headers["x-amz-date"] == "20231114T221320Z"


def test_headers_after_renewal_and_next_day_same_as_botocore() -> None:
    """The derived key is renewed with the keys and with the day."""
    source = FixedKeys()
    signer = SigV4(source, "us-east-1", HOST)
    for keys in (KEYS, AwsKeys("AKID2", "other-secret", "token")):
        source.keys = keys
        for at in (0.0, 86_399.0, 86_400.0):
            assert dict(signer.headers_for("POST", "/", b"x", at)) == _botocore_headers(keys, "/", b"x", at, "us-east-1")


def test_missing_keys_raise_and_have_no_secrets() -> None:
    signer = SigV4(FixedKeys(None), "us-east-1", HOST)
    with pytest.raises(CredentialMissing):
        signer.headers_for("POST", "/", b"", 0.0)
    assert list(signer.secrets()) == []


def test_secrets_are_the_secret_key_and_the_token() -> None:
    assert list(SigV4(FixedKeys(AwsKeys("AKID", "secret", "token")), "r", HOST).secrets()) == ["secret", "token"]
