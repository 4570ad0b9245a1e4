"""Gateways that share a real Redis: the summary that one made serves the other, and requests go on without the store."""

import json
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from stayfast.lab.claims.history import make_parts
from tests.services.redis_server import redis_server
from tests.services.redis_traffic import SLOW_S, metric
from tests.services.running import START_S, gateway, wait_until

pytestmark = pytest.mark.sockets
SETTINGS = """
server: {host: 127.0.0.1}
log: {requests: false}
upstreams:
  large:
    kind: simulated
    probe: false
    ttft: {median_s: 0.01, sigma: 0}
    gaps: {median_s: 0.001}
    output: {median: 3, sigma: 0}
  small: {kind: turn, turn: "stayfast.lab.context.engine_chats:summarize"}
stores:
  shared: {kind: redis, url: "URL", local_bytes: 0, timeout_s: 0.5}
routes:
  chat:
    upstreams: [large]
    context: {history: {mode: summarize, allowance_tokens: 800, raw_turns: 2, summary_share: 0.6, by: small, store: shared}}
  small: {upstreams: [small]}
"""
ADOPTED = 'stayfast_history_summaries_total{route="chat",result="adopted"}'
SUMMARIZED = 'stayfast_history_requests_total{route="chat",result="summarized"}'


def send_chat(port: int, number: int, n_turns: int) -> None:
    """A chat of so many turns, its last answer left out. Raises for any status but 200."""
    messages: list[dict[str, Any]] = []
    parts = make_parts(1, number, n_turns)
    for at, (question, answer) in enumerate(parts, 1):
        messages += question + (answer if at < n_turns else [])
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/chat/completions",
                                     json.dumps({"model": "chat", "messages": messages}).encode(),
                                     {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=SLOW_S) as answer:
        assert json.loads(answer.read())["choices"]


def test_redis_history_serves_other_gateway_and_survives_the_store(tmp_path: Path) -> None:
    """The second gateway uses the summary of the first. Without the store, requests go on; with it, summaries are made."""
    with ExitStack() as stack:
        server = stack.enter_context(redis_server(tmp_path))
        ports, errors = [], tmp_path / "0" / "python3.stderr"
        for number in range(2):
            folder = tmp_path / str(number)
            folder.mkdir()
            ports.append(stack.enter_context(gateway(folder, SETTINGS.replace("URL", server.url))))
        errors.touch()
        one, other = ports
        send_chat(one, 0, 12)
        wait_until(lambda: metric(one, ADOPTED) >= 1, START_S, errors)
        send_chat(other, 0, 12)
        assert metric(other, SUMMARIZED) == 1
        server.kill()
        for n_turns in (13, 14):
            send_chat(one, 0, n_turns)
            send_chat(other, 0, n_turns)
        server.start()
        before = metric(one, ADOPTED)

        def has_made_another() -> bool:
            send_chat(one, 1, 12)
            return metric(one, ADOPTED) > before

        wait_until(has_made_another, START_S, errors)
