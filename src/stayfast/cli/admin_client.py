"""Synchronous requests of commands to the admin endpoints of a running gateway."""

import argparse
import json
import ssl
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from urllib.parse import urlsplit

from stayfast.settings import read_environment

TIMEOUT_S = 5.0
MAX_BODY_BYTES = 16 * 1024 * 1024
SILENT_S = 20.0  # of an event stream; a gateway sends a comment more often
NOTHING_LISTENS = "nothing listens there. Start `stayfast serve`, or give the gateway's address"
TLS_REFUSED = ("its certificate is not trusted here ({}). For a certificate of your own, set SSL_CERT_FILE to the file of "
               "its issuer, or to itself if it is self-signed")
BAD_URL = "the address must be like http://127.0.0.1:8090"


class AdminRequestFailed(Exception):
    """The gateway answered with a status other than 200."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class GatewayUnreachable(Exception):
    """The request could not be sent, or there was no response."""


def send(arguments: argparse.Namespace, method: str, path: str, content: bytes | None = None) -> bytes:
    """Send a request to the gateway of `--url`, with the key of `--key-env`; returns the response body. content: JSON.
    Raises GatewayUnreachable, AdminRequestFailed."""
    try:
        headers = authorization_header(arguments.key_env)
        if content is not None:
            headers["content-type"] = "application/json"
        status, body = _send(arguments.url, method, path, headers, content)
    except ConnectionRefusedError as error:
        raise GatewayUnreachable(f"cannot reach {arguments.url}: {NOTHING_LISTENS}") from error
    except (OSError, HTTPException, ValueError) as error:
        raise GatewayUnreachable(f"cannot reach {arguments.url}: {_reason(error)}") from error
    if status != 200:
        raise AdminRequestFailed(status, error_message(status, body))
    return body


def follow_events(arguments: argparse.Namespace, path: str) -> Iterator[str]:
    """The data of each server-sent event of a stream, until the gateway ends it. Raises GatewayUnreachable (also after
    SILENT_S without a line), AdminRequestFailed.
    """
    try:
        headers = {"accept": "text/event-stream", **authorization_header(arguments.key_env)}
        with closing(_connect(arguments.url, SILENT_S)) as connection:
            connection.request("GET", f"{urlsplit(arguments.url).path.rstrip('/')}{path}", headers=headers)
            response = connection.getresponse()
            if response.status != 200:
                raise AdminRequestFailed(response.status, error_message(response.status, response.read(MAX_BODY_BYTES)))
            while line := response.readline():
                if line.startswith(b"data:"):
                    yield line.removeprefix(b"data:").strip().decode()
    except ConnectionRefusedError as error:
        raise GatewayUnreachable(f"cannot reach {arguments.url}: {NOTHING_LISTENS}") from error
    except (OSError, HTTPException, ValueError) as error:
        raise GatewayUnreachable(f"cannot reach {arguments.url}: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    return TLS_REFUSED.format(error.verify_message) if isinstance(error, ssl.SSLCertVerificationError) else str(error)


def authorization_header(key_env: str | None) -> dict[str, str]:
    """The header with the API key; empty without `key_env`. Raises ValueError if the variable is not set."""
    if key_env is None:
        return {}
    key = read_environment().get(key_env)
    if not key:
        raise ValueError(f"the environment variable {key_env} is not set")
    return {"authorization": f"Bearer {key}"}


def error_message(status: int, body: bytes) -> str:
    """The status and the gateway's message."""
    hint = " Use --key-env NAME to name the variable with the key." if status == 401 else ""
    try:
        return f"{status}: {json.loads(body)['error']['message']}{hint}"
    except (ValueError, KeyError, TypeError):
        return f"status {status}; is this a Stayfast gateway?"


def _connect(url: str, timeout_s: float) -> HTTPConnection:
    """A connection that opens with its first request. Raises ValueError for a wrong address."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(BAD_URL)
    return (HTTPSConnection if parts.scheme == "https" else HTTPConnection)(parts.hostname, parts.port, timeout=timeout_s)


def _send(url: str, method: str, path: str, headers: dict[str, str], content: bytes | None = None) -> tuple[int, bytes]:
    with closing(_connect(url, TIMEOUT_S)) as connection:
        connection.request(method, f"{urlsplit(url).path.rstrip('/')}{path}", content, headers)
        response = connection.getresponse()
        return response.status, response.read(MAX_BODY_BYTES)
