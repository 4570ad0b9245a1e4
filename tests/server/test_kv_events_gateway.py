"""A gateway that reads the KV events of two engines: routing follows what they hold, not what was sent."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.server.gateway_process import Gateway, running, until
from tests.server.kv_engine import KvEngine, tokenize

pytestmark = pytest.mark.sockets
SYSTEM = "You are one of the assistants that this test speaks to. " * 150  # about 2,100 tokens


def settings(**engines: KvEngine) -> str:
    lines = [f'  {name}: {{kind: openai, base_url: "{engine.url}", probe: false, kv_events: {{endpoint: '
             f'"{engine.publisher.endpoint}", replay: "{engine.publisher.replay}"}}}}' for name, engine in engines.items()]
    route = f"{{upstreams: [{', '.join(engines)}], affinity: {{mode: prefix}}, hedge: {{mode: 'off'}}}}"
    return "\n".join(["upstreams:", *lines, f"routes: {{m: {route}}}", "server: {drain_grace_s: 0}"])


def messages(*texts: str) -> list[dict[str, Any]]:
    return [{"role": "system", "content": SYSTEM},
            *({"role": "user" if at % 2 == 0 else "assistant", "content": text} for at, text in enumerate(texts))]


def ask(gateway: Gateway, *texts: str) -> int:
    """The cached tokens that the answer reports."""
    body = {"model": "m", "messages": messages(*texts), "max_tokens": 1}
    usage = json.loads(gateway.post("/v1/chat/completions", json.dumps(body).encode()))["usage"]
    return int(usage["prompt_tokens_details"]["cached_tokens"])


def wait_learned(gateway: Gateway, n: int) -> None:
    until(lambda: gateway.count("stayfast_prompts_tokenized_total", result="learned") >= n)


def test_gateway_routing_follows_evictions_and_prompts_of_other_gateways(tmp_path: Path) -> None:
    """A prompt is sent where it is cached; when the engines' events say that it moved, so do its next turns."""
    with KvEngine() as a, KvEngine() as b, running(tmp_path, 1, settings(a=a, b=b)) as gateway:
        until(lambda: gateway.count("stayfast_kv_event_state") == 4)
        assert ask(gateway, "first " * 400) == 0
        wait_learned(gateway, 1)
        first, other, name, other_name = (a, b, "a", "b") if a.served else (b, a, "b", "a")
        until(lambda: gateway.count("stayfast_kv_event_blocks", upstream=name) > 100)
        for _ in range(5):
            assert ask(gateway, "first " * 400) > 2000
        assert (first.served, other.served) == (6, 0)
        first.evict()
        other.store(tokenize(messages("first " * 400)))  # as by another gateway
        until(lambda: (gateway.count("stayfast_kv_event_blocks", upstream=name) == 0
                       and gateway.count("stayfast_kv_event_blocks", upstream=other_name) > 100))
        for turn in range(5):
            assert ask(gateway, "first " * 400, "x", f"turn {turn}") > 2000
        assert (first.served, other.served) == (6, 5)


def test_gateway_prompt_is_tokenized_once_and_events_are_counted(tmp_path: Path) -> None:
    with KvEngine() as a, KvEngine() as b, running(tmp_path, 1, settings(a=a, b=b)) as gateway:
        until(lambda: gateway.count("stayfast_kv_event_state") == 4)
        for _ in range(3):
            ask(gateway, "first " * 400)
            wait_learned(gateway, 1)
        assert a.n_tokenized + b.n_tokenized == 1
        until(lambda: gateway.count("stayfast_kv_events_total", kind="applied") == len(a.cached) + len(b.cached))


def test_gateway_engine_without_tokenize_is_routed_by_what_was_sent(tmp_path: Path) -> None:
    with KvEngine() as a, KvEngine() as b, running(tmp_path, 1, settings(a=a, b=b)) as gateway:
        a.has_tokenizer = b.has_tokenizer = False
        until(lambda: gateway.count("stayfast_kv_event_state") == 4)
        for _ in range(6):
            ask(gateway, "first " * 400)
        assert sorted((a.served, b.served)) == [0, 6]
        until(lambda: gateway.count("stayfast_prompts_tokenized_total", result="failed") >= 5)
        until(lambda: b"engine.kv_events_lost" in gateway.get("/admin/findings"))
