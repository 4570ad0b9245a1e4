"""Requests of commands to the admin endpoints of a running gateway: synchronous, as a command sends one and prints."""

import argparse
import json
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from urllib.parse import urlsplit

from stayfast.settings import environment

TIMEOUT_S = 5.0
MAX_BODY_BYTES = 16 * 1024 * 1024
BAD_URL = "--url must be like http://127.0.0.1:8090"


class AdminRequestFailed(Exception):
    """The gateway answered with another status than 200; the message says why."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class GatewayUnreachable(Exception):
    """The request cannot be sent, or no response came; the message says why."""


def send(arguments: argparse.Namespace, method: str, path: str) -> bytes:
    """Send a request without a body to the gateway of `--url` and `--key-env`; returns the response's. Raises Unreachable,
    Refused."""
    try:
        status, body = _send(arguments.url, method, path, authorization(arguments.key_env))
    except ConnectionRefusedError as error:
        raise GatewayUnreachable(f"{arguments.url} cannot be asked: nothing listens there. Start `stayfast serve`, or name "
                                 f"the "
                          "gateway's address by --url") from error
    except (OSError, HTTPException, ValueError) as error:
        raise GatewayUnreachable(f"{arguments.url} cannot be asked: {error}") from error
    if status != 200:
        raise AdminRequestFailed(status, error_message(status, body))
    return body


def authorization(key_env: str | None) -> dict[str, str]:
    """The header with the API key, if one is to be sent. Raises ValueError where the variable is not set."""
    if key_env is None:
        return {}
    key = environment().get(key_env)
    if not key:
        raise ValueError(f"the variable {key_env} is not set")
    return {"authorization": f"Bearer {key}"}


def error_message(status: int, body: bytes) -> str:
    """Why a gateway refused a request, in its own words."""
    hint = " Here: --key-env NAME, of a variable that holds the key." if status == 401 else ""
    try:
        return f"{status}: {json.loads(body)['error']['message']}{hint}"
    except (ValueError, KeyError, TypeError):
        return f"it answered with status {status}; is it a Stayfast gateway?"


def _send(url: str, method: str, path: str, headers: dict[str, str]) -> tuple[int, bytes]:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(BAD_URL)
    connection_class = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    connection = connection_class(parts.hostname, parts.port, timeout=TIMEOUT_S)
    try:
        connection.request(method, f"{parts.path.rstrip('/')}{path}", headers=headers)
        response = connection.getresponse()
        return response.status, response.read(MAX_BODY_BYTES)
    finally:
        connection.close()
