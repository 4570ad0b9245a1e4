"""Gateways that share a Redis, and an administrator's requests to them."""

import json
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.services.redis_server import RedisServer, redis_server
from tests.services.running import gateway

PATIENCE_S = 20.0
SETTINGS = """
server: {host: 127.0.0.1}
log: {requests: false}
fleet: {url: "URL", gateway: NAME}
upstreams:
  quick:
    kind: simulated
    probe: false
    limit: {max: 40}
    ttft: {median_s: 0.01, sigma: 0}
    gaps: {median_s: 0.001}
    output: {median: 5, sigma: 0}
routes:
  chat: {upstreams: [quick], cache: {mode: exact, max_temperature: 1EPOCH}}
"""


@contextmanager
def fleet(folder: Path, *names: str, settings: str = SETTINGS) -> Iterator[tuple[RedisServer, list[int]]]:
    """A server, and the ports of gateways with these names."""
    with ExitStack() as stack:
        server = stack.enter_context(redis_server(folder))
        yield server, [stack.enter_context(member(folder, name, server, settings=settings)) for name in names]


@contextmanager
def member(folder: Path, name: str, server: RedisServer, epoch: str = "", settings: str = SETTINGS) -> Iterator[int]:
    """One gateway."""
    its = folder / name
    its.mkdir(exist_ok=True)
    text = settings.replace("URL", server.url).replace("NAME", name)
    with gateway(its, text.replace("EPOCH", f", epoch: {epoch}" if epoch else "")) as port:
        yield port


def call(port: int, path: str, method: str = "GET") -> dict[str, Any]:
    """An administrator's request."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", method=method)
    with urllib.request.urlopen(request, timeout=10) as answer:
        answered: dict[str, Any] = json.load(answer)
        return answered


def names_at(port: int) -> list[str]:
    """The gateways that one of them lists."""
    return [row["id"].partition("~")[0] for row in call(port, "/admin/gateways")["data"]]


def wait_for(condition: Callable[[], bool]) -> None:
    """Until it holds."""
    give_up_at = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < give_up_at
        time.sleep(0.05)
