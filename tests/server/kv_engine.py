"""A scripted engine with a prefix cache: chat, /tokenize, usage and KV events on loopback."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.kv_recording import removed, stored
from tests.ports import free_port
from tests.server.kv_publisher import KvPublisher

SIZE = 16


def tokenize(messages: list[dict[str, Any]]) -> list[int]:
    """Four characters a token, with a template around each message."""
    found = []
    for message in messages:
        text = message["content"]
        found += [1, *(int.from_bytes(text[at:at + 4].encode(), "big") for at in range(0, len(text), 4)), 2]
    return [*found, 3]


class KvEngine:
    """Context manager. `served`: the number of chat requests."""

    def __init__(self) -> None:
        self.served = self.n_tokenized = 0
        self.has_tokenizer = True
        self.cached: dict[tuple[int, ...], int] = {}  # the engine's hash, by the whole prefix
        self.publisher = KvPublisher(free_port(), free_port())
        self._next_hash = 1
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                data = json.dumps(outer.tokenized(body) if self.path == "/tokenize" else outer.answer(body)).encode()
                self.send_response(200)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: object) -> None:
                """Quiet."""

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}/v1"

    def __enter__(self) -> "KvEngine":
        self.publisher.__enter__()
        threading.Thread(target=self._http.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()
        self.publisher.__exit__()

    def tokenized(self, body: dict[str, Any]) -> dict[str, Any]:
        self.n_tokenized += 1
        if not self.has_tokenizer:
            return {}
        ids = tokenize(body["messages"])
        return {"count": len(ids), "max_model_len": 100_000, "tokens": ids}

    def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        """Serve a request: its prompt is cached afterwards."""
        self.served += 1
        ids = tokenize(body["messages"])
        n_cached = self.n_held(ids)
        self.store(ids)
        usage = {"prompt_tokens": len(ids), "completion_tokens": 1, "total_tokens": len(ids) + 1,
                 "prompt_tokens_details": {"cached_tokens": n_cached}}
        return {"id": "c", "object": "chat.completion", "created": 1, "model": body["model"], "usage": usage, "choices": [
            {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "x"}}]}

    def n_held(self, ids: list[int]) -> int:
        n = 0
        while n + SIZE <= len(ids) and tuple(ids[:n + SIZE]) in self.cached:
            n += SIZE
        return n

    def store(self, ids: list[int]) -> None:
        """A prompt comes into the cache."""
        events = []
        for end in range(SIZE, len(ids) + 1, SIZE):
            prefix = tuple(ids[:end])
            if prefix not in self.cached:
                self.cached[prefix], self._next_hash = self._next_hash, self._next_hash + 1
                events.append(stored([self.cached[prefix]], list(prefix[-SIZE:]), self.cached.get(prefix[:-SIZE]), SIZE))
        if events:
            self.publisher.publish(*events)

    def evict(self) -> None:
        """The cache loses all, block by block."""
        self.publisher.publish(*[removed(block) for block in reversed(self.cached.values())])
        self.cached.clear()
