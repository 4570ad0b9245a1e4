"""Gateways with stored keys, as processes, and what an administrator and a client send them."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from stayfast.server.auth import digest_key
from tests.server.gateway_process import Gateway, running

TIMEOUT_S = 20.0
OPS = "sf-the-static-key-of-the-operator"
SETTINGS = """\
upstreams: {{sim: {{kind: simulated, script: steady, prices: {{"*": {{input_per_mtok: 1, output_per_mtok: 2}}}}}}}}
routes: {{m: [sim], other: [sim]}}
server: {{drain_grace_s: 0, keys: {{ops: "{digest}"}}, admins: [ops]}}
spend: "on"
jobs: {{path: "{folder}"{store}}}
"""


def call(gateway: Gateway, method: str, path: str, key: str = OPS, body: Any = None) -> tuple[int, Any]:
    """The status and the JSON of an answer."""
    content = None if body is None else json.dumps(body).encode()
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    request = Request(f"{gateway.url}{path}", content, headers, method=method)
    try:
        with urlopen(request, timeout=TIMEOUT_S) as answer:
            return answer.status, json.loads(answer.read() or b"null")
    except HTTPError as error:
        return error.code, json.loads(error.read())


def chat(gateway: Gateway, key: str, model: str = "m", body: dict[str, Any] | None = None) -> int:
    """The status of a chat request."""
    return call(gateway, "POST", "/v1/chat/completions", key, {
        "model": model, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2} | (body or {}))[0]


def create(gateway: Gateway, name: str, **fields: Any) -> tuple[str, str]:
    """The id and the key of a new key of acme."""
    status, made = call(gateway, "POST", "/admin/keys", body={"tenant": "acme", "name": name, **fields})
    assert status == 200, made
    return made["id"], made["key"]


def seconds_until(is_so: Callable[[], bool], within_s: float = 20.0) -> float:
    """How long it takes until it is true."""
    began_at = time.monotonic()
    while not is_so():
        assert time.monotonic() - began_at < within_s
        time.sleep(0.002)
    return time.monotonic() - began_at


def spend(gateway: Gateway, by: str = "tenant") -> dict[str, Any]:
    """The sums of today."""
    status, sums = call(gateway, "GET", f"/admin/spend?by={by}&days=1")
    assert status == 200, sums
    return dict(sums)


@contextmanager
def gateways(folder: Path, n: int, n_workers: int, store: str | None = None) -> Iterator[list[Gateway]]:
    """store: the address of PostgreSQL; None: all of them share a folder."""
    with ExitStack() as stack:
        started = []
        for number in range(n):
            own = folder / str(number)
            own.mkdir()
            jobs = folder / "jobs" if store is None else own / "jobs"
            text = SETTINGS.format(digest=digest_key(OPS), folder=jobs, store="" if store is None else f', store: "{store}"')
            started.append(stack.enter_context(running(own, n_workers, text)))
        yield started


def run_cli(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """One `stayfast` command in the folder of a gateway."""
    return subprocess.run([sys.executable, "-m", "stayfast", *words], cwd=folder, capture_output=True, text=True, timeout=60,
                          env={**os.environ, "OPS_KEY": OPS}, check=False)
