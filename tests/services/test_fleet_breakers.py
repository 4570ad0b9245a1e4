"""Three gateways in front of one upstream: one with a broken path, then an upstream that is down for all."""

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.services.fleet_rig import call, fleet, names_at, wait_for
from tests.services.redis_traffic import metric

pytestmark = pytest.mark.sockets
ANSWER = json.dumps({
    "id": "c", "object": "chat.completion", "created": 1, "model": "m",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}}).encode()
SETTINGS = """
server: {host: 127.0.0.1}
log: {requests: false}
fleet: {url: "URL", gateway: NAME}
upstreams:
  at-NAME: {kind: openai, base_url: "http://127.0.0.1:UPSTREAM/v1", probe: false, headers: {x-gateway: NAME}}
routes:
  m: {upstreams: [at-NAME], retry: {max_attempts: 1}, hedge: {mode: off}}
"""


class Upstream(ThreadingHTTPServer):
    """Answers, except to the gateways in `failing`."""

    daemon_threads = True

    def __init__(self) -> None:
        self.failing: set[str] = set()
        super().__init__(("127.0.0.1", 0), _Handler)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Upstream

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        is_failing = self.headers["x-gateway"] in self.server.failing
        body = b"{}" if is_failing else ANSWER
        self.send_response(500 if is_failing else 200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing on standard error."""


@contextmanager
def upstream() -> Iterator[Upstream]:
    """A running one."""
    server = Upstream()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def send(port: int, n: int) -> list[int]:
    """The statuses of so many requests."""
    found = []
    for number in range(n):
        body = json.dumps({"model": "m", "messages": [{"role": "user", "content": f"{number}"}]}).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/chat/completions", body,
                                         {"content-type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                found.append(answer.status)
        except urllib.error.HTTPError as error:
            found.append(error.code)
    return found


def breakers_at(port: int) -> dict[str, list[dict[str, Any]]]:
    """The breakers that are not closed, by the name of their gateway."""
    return {row["id"].partition("~")[0]: row["breakers"] for row in call(port, "/admin/gateways")["data"]}


def test_fleet_breakers_open_by_quorum_only(tmp_path: Path) -> None:
    """The upstream has another name at each gateway. One gateway's trouble opens no other breaker, whatever time passes;
    with a second one the third opens without a failure of its own.
    """
    with upstream() as up, fleet(tmp_path, "one", "two", "three", settings=SETTINGS.replace(
            "UPSTREAM", str(up.server_address[1]))) as (_, (one, two, three)):
        wait_for(lambda: len(names_at(one)) == 3)
        for port in (one, two, three):
            assert send(port, 3) == [200] * 3
        up.failing = {"one"}
        assert send(one, 5) == [502] * 5
        received = 'stayfast_fleet_breaker_hints_total{kind="received"}'
        wait_for(lambda: metric(two, received) >= 1 and metric(three, received) >= 1)
        for port in (two, three):
            assert send(port, 5) == [200] * 5
        wait_for(lambda: [found["by"] for found in breakers_at(two)["one"]] == ["own"])
        assert breakers_at(three)["two"] == breakers_at(three)["three"] == []
        wait_for(lambda: any(text.startswith("The breaker of at-one is open at one~")
                             for text in call(two, "/admin/gateways")["findings"]))
        up.failing = {"one", "two", "three"}
        assert send(two, 3) == [502] * 3
        wait_for(lambda: [found["by"] for found in breakers_at(one)["three"]] == ["quorum"])
        (found,) = breakers_at(one)["three"]
        assert found["why"].startswith("open at 2 of 3 gateways: ")
        assert metric(three, 'stayfast_fleet_breaker_hints_total{kind="opened"}') == 1
        up.failing = set()
        assert send(three, 2) == [200] * 2
        wait_for(lambda: breakers_at(one)["three"] == [])
