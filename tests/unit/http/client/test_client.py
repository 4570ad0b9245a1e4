"""The client's configuration and its errors."""

from typing import Any

import pytest

from stayfast.core.clock import SystemClock
from stayfast.http.client.client import BaseUrl, HttpClient, HttpConfig, split_base_url
from stayfast.testing import RecordingSink


@pytest.mark.parametrize(("text", "base"), [
    ("https://api.openai.com/v1", BaseUrl(True, "api.openai.com", 443, "api.openai.com", "/v1")),
    ("http://127.0.0.1:9100/v1/", BaseUrl(False, "127.0.0.1", 9100, "127.0.0.1:9100", "/v1")),
    ("http://[::1]:80", BaseUrl(False, "::1", 80, "[::1]:80", "")),
    ("https://Bücher.example", BaseUrl(True, "xn--bcher-kva.example", 443, "xn--bcher-kva.example", "")),
])
def test_base_url_parts(text: str, base: BaseUrl) -> None:
    """Scheme, host, port and path, with defaults by scheme; the Host header says the port only if the URL does."""
    assert split_base_url(text) == base


@pytest.mark.parametrize("text", ["", "ftp://h", "https://", "h:80", "http://h:99999", "http://h/a b", "http://h/é", "http://[::1",
                                  "http://u:secret@h", "http://h?secret", "http://h#secret", "http://h/secret\r\nx: y",
                                  "http://" + "a" * 70])
def test_base_url_invalid_raises(text: str) -> None:
    """The error does not quote the URL."""
    with pytest.raises(ValueError, match="base_url") as failed:
        HttpConfig(text)
    assert "secret" not in str(failed.value)


@pytest.mark.parametrize("wrong", [
    {"http": "3"}, {"max_connections": -1}, {"max_idle": -1}, {"keepalive_s": -1}, {"keepalive_s": 1e9},
    {"max_head_bytes": 10}, {"dns_ttl_s": -1}, {"tcp_keepalive_s": 1e6},
])
def test_http_config_invalid_values_raise(wrong: dict[str, Any]) -> None:
    """A value out of range is named."""
    with pytest.raises(ValueError, match=next(iter(wrong))):
        HttpConfig("http://h", **wrong)


def test_http_client_opens_nothing_before_the_first_request() -> None:
    """A client can be made, shown and closed without a loop."""
    client = HttpClient("bench", HttpConfig("http://127.0.0.1:1/v1"), sink=RecordingSink(), clock=SystemClock())
    assert client.base_path == "/v1"
    assert repr(client) == "<HttpClient bench: 0 busy, 0 idle, 0 connecting, 0 waiting, h->"
    client.close()
