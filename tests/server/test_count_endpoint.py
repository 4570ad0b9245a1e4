"""An upstream's own count of a request's tokens."""

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from stayfast.core.clock import SystemClock
from stayfast.core.deadline import Deadline
from stayfast.core.types import Api
from stayfast.pipeline.context.count_answers import CountAnswers
from stayfast.pipeline.context.token_counter import UNLEARNED
from stayfast.settings.upstreams import NATIVE_APIS
from stayfast.upstreams.base import Call
from stayfast.upstreams.dialect import DialectConfig, DialectUpstream
from tests.unit.http.client.peers import Caller
from tests.unit.wire.recorded import request

pytestmark = pytest.mark.sockets
KEY = "sk-live-4f9a0c77e1"
ANSWERS: dict[str, tuple[str, dict[str, Any]]] = {  # by kind: path and answer
    "anthropic": ("/v1/messages/count_tokens", {"input_tokens": 41}),
    "openai": ("/v1/responses/input_tokens", {"object": "response.input_tokens", "input_tokens": 41}),
    "engine": ("/tokenize", {"count": 41, "max_model_len": 4096, "tokens": list(range(41))}),
    "gemini": ("/v1/models/m:countTokens", {"totalTokens": 41}),
    "bedrock": ("/v1/model/m/count-tokens", {"inputTokens": 41}),
}


class CountServer:
    """A server whose count endpoints are those of ANSWERS. status, wait_s: of every answer."""

    def __init__(self) -> None:
        self.status, self.wait_s = 200, 0.0
        self.seen: list[tuple[str, dict[str, Any], str]] = []  # path, body, key
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                key = self.headers.get("x-api-key") or self.headers.get("x-goog-api-key") or self.headers["authorization"]
                outer.seen.append((self.path, body, key))
                time.sleep(outer.wait_s)
                answers = dict(ANSWERS.values())
                data = json.dumps(answers.get(self.path, {})).encode()
                self.send_response(outer.status if self.path in answers else 404)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: object) -> None:
                """Quiet."""

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._http.server_address[1]
        self._thread = threading.Thread(target=self._http.serve_forever)
        self._thread.start()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


@pytest.fixture(name="server")
def run_server() -> Iterator[CountServer]:
    server = CountServer()
    yield server
    server.close()


async def count(server: CountServer, kind: str, api: Api, n: int = 1) -> dict[str, Any]:
    """The last of `n` answers of an upstream of this kind, whose route uses its count."""
    caller = Caller(server.port)
    apis = NATIVE_APIS["openai"] - {Api.RESPONSES} if kind == "engine" else NATIVE_APIS[kind]
    config = DialectConfig("openai" if kind == "engine" else kind, apis - {Api.COUNT_TOKENS}, KEY)
    upstream = DialectUpstream("up", config, caller.client, SystemClock())
    counting = CountAnswers(UNLEARNED, uses_upstream=True)
    found: dict[str, Any] = {}
    try:
        for _ in range(n):
            call = Call(request(api), "m", "req_1", Deadline(time.monotonic() + 10), 5.0, counting=counting)
            chunk = await (await upstream.open(call)).next()
            assert chunk is not None
            found = json.loads(chunk.data)
    finally:
        upstream.close()
    return found


@pytest.mark.parametrize("kind", ANSWERS)
@pytest.mark.parametrize("api", [Api.COUNT_TOKENS, Api.INPUT_TOKENS])
def test_count_of_every_kind_of_upstream_is_given(server: CountServer, kind: str, api: Api) -> None:
    """In the client's shape, not marked; with the upstream's key, at the path of its reference."""
    answer = asyncio.run(count(server, kind, api))
    assert answer == {"input_tokens": 41} | ({"object": "response.input_tokens"} if api is Api.INPUT_TOKENS else {})
    [(path, _, key)] = server.seen
    assert path == ANSWERS[kind][0]
    assert KEY in key


def test_count_of_an_engine_has_its_ids_and_its_longest_prompt(server: CountServer) -> None:
    """As vLLM sends them."""
    answer = asyncio.run(count(server, "engine", Api.TOKENIZE))
    assert (answer["count"], answer["max_model_len"], answer["tokens"]) == (41, 4096, list(range(41)))
    assert server.seen[0][1]["prompt"] == "hi"


def test_count_without_the_endpoint_is_estimated_and_not_tried_again(server: CountServer) -> None:
    """Not every engine has one."""
    server.status = 404
    answer = asyncio.run(count(server, "engine", Api.INPUT_TOKENS, n=3))
    assert answer["stayfast_estimated"] is True
    assert len(server.seen) == 1


def test_count_of_a_slow_upstream_is_estimated(server: CountServer) -> None:
    """A count is not worth the wait."""
    server.wait_s = 4.0
    began_at = time.monotonic()
    answer = asyncio.run(count(server, "openai", Api.INPUT_TOKENS))
    assert answer["stayfast_estimated"] is True
    assert time.monotonic() - began_at < 3.5


def test_count_of_a_failing_upstream_is_estimated_each_time(server: CountServer) -> None:
    """It may answer the next one."""
    server.status = 500
    answer = asyncio.run(count(server, "openai", Api.INPUT_TOKENS, n=2))
    assert answer["stayfast_estimated"] is True
    assert len(server.seen) == 2
