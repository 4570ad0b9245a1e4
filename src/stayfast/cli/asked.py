"""How commands ask a gateway that runs."""

import json
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPSConnection
from typing import NamedTuple
from urllib.parse import urlsplit

from stayfast.settings import environment

TIMEOUT_S = 5.0
MOST_BYTES = 16 * 1024 * 1024


class Answer(NamedTuple):
    """`cache`: what `x-cache` says."""

    status: int
    body: bytes
    cache: str = ""


def ask(url: str, method: str, path: str, *, key_env: str | None = None, body: bytes | None = None,
        headers: Mapping[str, str] | None = None, timeout_s: float = TIMEOUT_S) -> Answer:
    """What a gateway answers. `key_env`: the variable of the environment that holds a key.

    Raises ValueError for what cannot be asked, OSError and HTTPException where nobody answers.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("--url must be like http://127.0.0.1:8090")
    said = {**(headers or {}), **({"content-type": "application/json"} if body is not None else {})}
    if key_env is not None:
        key = environment().get(key_env)
        if not key:
            raise ValueError(f"the variable {key_env} is not set")
        said["authorization"] = f"Bearer {key}"
    kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    connection = kind(parts.hostname, parts.port, timeout=timeout_s)
    try:
        connection.request(method, f"{parts.path.rstrip('/')}{path}", body=body, headers=said)
        response = connection.getresponse()
        return Answer(response.status, response.read(MOST_BYTES), response.headers.get("x-cache", ""))
    finally:
        connection.close()


def reason(status: int, body: bytes) -> str:
    """Why it did not do what it was asked for, in its own words."""
    hint = " Here: --key-env NAME, of a variable that holds the key." if status == 401 else ""
    try:
        return f"{status}: {json.loads(body)['error']['message']}{hint}"
    except (ValueError, KeyError, TypeError):
        return f"it answered with status {status}; is it a Stayfast gateway?"
