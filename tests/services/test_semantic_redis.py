"""Gateways that share a real Redis: what one has learned in other words the other gives, also after a restart."""

import json
import time
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.flow.real_embedder import weights
from tests.services.redis_server import RedisServer, redis_server
from tests.services.redis_traffic import SLOW_S, metric
from tests.services.running import gateway

__all__ = ["weights"]
pytestmark = pytest.mark.sockets
PATIENCE_S = 30.0
SETTINGS = """
server: {host: 127.0.0.1}
log: {requests: false}
upstreams:
  quick:
    kind: simulated
    probe: false
    ttft: {median_s: 0.02, sigma: 0}
    gaps: {median_s: 0.001}
    output: {median: 5, sigma: 0}
stores:
  hot: {kind: redis, url: "URL", local_bytes: 0, timeout_s: 0.5}
embedder: {cache_dir: "GRAPHS"}
routes:
  faq:
    upstreams: [quick]
    cache: {mode: semantic, threshold: 0.6, audit_share: 0.001, max_temperature: 1, lookup_timeout_s: 2, store: hot}
    budget: {cache: 3}
"""
ONE, SAME = "How can I reset the password of an account?", "How could somebody reset the password of an account?"


def ask(port: int, question: str, system: str = "") -> tuple[str, str]:
    """One question; what the cache had to say, and the answer."""
    messages = [{"role": "system", "content": system}] if system else []
    body = json.dumps({"model": "faq", "messages": [*messages, {"role": "user", "content": question}]}).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/chat/completions", body,
                                     {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=SLOW_S) as answer:
        said = json.loads(answer.read())["choices"][0]["message"]["content"]
        return str(answer.headers["x-cache"]), said


def until(is_so: Callable[[], bool]) -> None:
    """Wait for it, for a while."""
    give_up_at = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < give_up_at
        time.sleep(0.1)


def n_phrasings(port: int) -> float:
    """How many questions a gateway knows."""
    return metric(port, "stayfast_semantic_entries")


def learn(port: int) -> None:
    """Ask until the embedder is there, and something was learned."""
    numbers = iter(range(1000))

    def learned() -> bool:
        ask(port, f"Where is the oldest lighthouse of island {next(numbers)}?", "warm up")
        return n_phrasings(port) > 0

    until(learned)


TOLD = 'stayfast_cache_store_requests_total{store="hot",op="append_log",result="stored"}'


def settled(one: int, other: int) -> float:
    """How many questions both know, once all that either was told has come to the other."""
    seen: list[tuple[float, float, float]] = []

    def is_still() -> bool:
        seen.append((n_phrasings(one), n_phrasings(other), metric(one, TOLD) + metric(other, TOLD)))
        return len(seen) >= 10 and len({n for counts in seen[-10:] for n in counts}) == 1

    until(is_still)
    return seen[-1][0]


def test_redis_semantic_cache_learns_from_other_gateway(tmp_path: Path, weights: tuple[object, Path]) -> None:
    """A question in other words is a hit at the other one, and at one that starts later."""
    settings = SETTINGS.replace("GRAPHS", str(weights[1]))
    with ExitStack() as stack:
        server: RedisServer = stack.enter_context(redis_server(tmp_path))
        ports = []
        for number in range(2):
            folder = tmp_path / str(number)
            folder.mkdir()
            ports.append(stack.enter_context(gateway(folder, settings.replace("URL", server.url))))
        one, other = ports
        for port in ports:
            learn(port)
        n = settled(one, other)
        kind, answer = ask(one, ONE)
        assert kind.startswith("miss")
        until(lambda: n_phrasings(one) == n_phrasings(other) == n + 1)
        kind, again = ask(other, SAME)
        assert kind.startswith("hit; kind=semantic"), kind
        assert again == answer
        folder = tmp_path / "late"
        folder.mkdir()
        with gateway(folder, settings.replace("URL", server.url)) as late:
            until(lambda: n_phrasings(late) == n_phrasings(one))
            kind, again = ask(late, SAME.replace("somebody", "anybody"))
            assert kind.startswith("hit; kind=semantic"), kind
            assert again == answer
        server.kill()
        kind, _ = ask(other, SAME.replace("an account", "the account"))
        assert kind.startswith("miss")
        unread = 'stayfast_cache_store_requests_total{store="hot",op="read_log",result="unavailable"}'
        until(lambda: metric(other, unread) > 0)
        server.start()
        learned = n_phrasings(other)
        ask(one, "Where can anybody download the yearly report as a file?")
        until(lambda: n_phrasings(other) > learned)
