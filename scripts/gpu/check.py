"""Drives a gateway in front of two vLLM replicas and prints figures for docs/benchmarks.md; `check.sh` starts it.

Each check prints one line, and fails the run if what it looks for is not there. Random weights measure the plumbing, not a
model: times are those of this machine and say nothing of another.
"""

import argparse
import asyncio
import http.client
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.error import URLError
from urllib.request import Request, urlopen

from stayfast.core.clock import SystemClock
from stayfast.policy.routing.block_index import BlockIndex, chain_root, hash_tokens
from stayfast.policy.routing.kv_event_order import KvEventOrder
from stayfast.upstreams.kv_event_reader import KvEventReader, KvEventsConfig, load_zmq

ROOT: Final = Path(__file__).parents[2]
START_S: Final = 600.0
N_CONVERSATIONS, N_TURNS = 8, 5
N_COMPARED: Final = 40
ANSWER_TOKENS: Final = 16
LONG_TOKENS: Final = 4000
ENVIRONMENT: Final = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1",
                      "HF_HUB_OFFLINE": "1"}
DEVICES: Final = {"cuda": "GPU", "cpu": "CPU"}


class Replica(NamedTuple):
    """One vLLM."""

    name: str
    port: int
    events_port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def gauge(self, name: str) -> float:
        page = urlopen(f"{self.url}/metrics", timeout=10).read().decode()
        return sum(float(line.rsplit(" ", 1)[1]) for line in page.splitlines() if line.startswith(f"{name}{{"))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def post(url: str, body: Any) -> dict[str, Any]:
    request = Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    with urlopen(request, timeout=120) as answer:
        data = answer.read()
    return dict(json.loads(data)) if data else {}


@contextmanager
def process(command: Sequence[str], log: Path, **environment: str) -> Iterator[None]:
    """A process of its own group, ended with all its children."""
    with log.open("wb") as out:
        child = subprocess.Popen(command, stdout=out, stderr=out, env={**os.environ, **environment}, start_new_session=True)
    try:
        yield
    finally:
        child.send_signal(signal.SIGTERM)
        try:
            child.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)


def wait_healthy(url: str, log: Path) -> float:
    """Returns the seconds that it took."""
    began_at = time.monotonic()
    while time.monotonic() - began_at < START_S:
        try:
            with urlopen(url, timeout=5) as answer:
                if answer.status == 200:
                    return time.monotonic() - began_at
        except (URLError, OSError):
            time.sleep(0.5)
    sys.exit(f"{url} did not answer within {START_S:g} s: {log.read_text()[-2000:]}")


def engine_command(given: argparse.Namespace, replica: Replica) -> list[str]:
    events = {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": f"tcp://*:{replica.events_port}",
              "replay_endpoint": f"tcp://*:{replica.events_port + 1}", "topic": "kv-events"}
    command = [given.engine_python, "-m", "vllm.entrypoints.openai.api_server", "--model", given.model,
               "--served-model-name", "tiny", "--host", "127.0.0.1",
               "--port", str(replica.port), "--max-model-len", "4096", "--max-num-seqs", "8",
               "--enable-prompt-tokens-details", "--block-size", "32", "--num-gpu-blocks-override", str(given.blocks),
               "--kv-events-config", json.dumps(events)]
    return [*command, "--enforce-eager"] if given.device == "cpu" else [*command, "--enable-sleep-mode",
                                                                          "--gpu-memory-utilization", "0.4"]


def write_settings(folder: Path, port: int, replicas: Sequence[Replica]) -> Path:
    lines = [f'  {one.name}: {{kind: openai, provider: vllm, base_url: "{one.url}/v1", engine_metrics: vllm, request_usage: '
             f'true, models: {{off: tiny, tiny: tiny}}, kv_events: {{endpoint: "tcp://127.0.0.1:{one.events_port}", replay: '
             f'"tcp://127.0.0.1:{one.events_port + 1}"}}}}' for one in replicas]
    names = ", ".join(one.name for one in replicas)
    path = folder / "stayfast.yaml"
    path.write_text("\n".join([
        f"server: {{port: {port}}}", "upstreams:", *lines, "defaults: {hedge: {mode: 'off'}}", "routes:",
        f"  tiny: {{upstreams: [{names}], affinity: {{mode: prefix}}}}", f"  'off': {{upstreams: [{names}]}}"]))
    return path


class Turn(NamedTuple):
    """One answer of a stream."""

    ttft_s: float
    n_prompt: int
    n_cached: int


def read_turn(url: str, model: str, messages: list[dict[str, str]]) -> Turn:
    body = {"model": model, "messages": messages, "max_tokens": ANSWER_TOKENS, "temperature": 0, "stream": True,
            "stream_options": {"include_usage": True}}
    began_at, first_at, usage = time.monotonic(), None, dict[str, Any]()
    with urlopen(Request(f"{url}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}),
                 timeout=120) as answer:
        for line in answer:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            if first_at is None and event["choices"] and event["choices"][0]["delta"].get("content") is not None:
                first_at = time.monotonic()
            usage = event.get("usage") or usage
    details = usage.get("prompt_tokens_details") or {}
    n_cached = int(details.get("cached_tokens") or 0)
    return Turn((first_at or time.monotonic()) - began_at, int(usage["prompt_tokens"]), n_cached)


def converse(url: str, model: str, texts: Sequence[str]) -> list[Turn]:
    """Conversations at the same time, as one load. They share their instructions; together they exceed one cache."""
    def hold(number: int) -> list[Turn]:
        messages, turns = [{"role": "system", "content": f"{model} {texts[0]}"}], []
        for at in range(N_TURNS):
            text = texts[1 + (number * N_TURNS + at) % (len(texts) - 1)]
            messages.append({"role": "user", "content": f"{number} {at} {text}"})
            turns.append(read_turn(url, model, messages))
            messages.append({"role": "assistant", "content": "I see."})
        return turns

    with ThreadPoolExecutor(N_CONVERSATIONS) as pool:
        return [turn for turns in pool.map(hold, range(N_CONVERSATIONS)) for turn in turns]


def check_signals(gateway: str, report: "Report") -> None:
    time.sleep(11.0)  # two readings of the engines' pages
    snapshot = json.loads(urlopen(f"{gateway}/admin/snapshot", timeout=30).read())
    figures = {row["name"]: row.get("engine", {}) for row in snapshot["upstreams"] if row["name"] in "ab"}
    report.line("signals of both engines read", ", ".join(sorted(figures.get("a", {}))),
                all("running" in one and "kv_used_ratio" in one for one in figures.values()) and len(figures) == 2)


def check_affinity(gateway: str, replicas: Sequence[Replica], texts: Sequence[str], report: "Report") -> None:
    shares = {}
    for route in ("off", "tiny", "off", "tiny"):
        for replica in replicas:
            post(f"{replica.url}/reset_prefix_cache", {})
        turns = converse(gateway, route, texts)
        share = sum(turn.n_cached for turn in turns) / sum(turn.n_prompt for turn in turns)
        shares.setdefault(route, []).append(share)
        times_s = sorted(turn.ttft_s for turn in turns)
        report.line(f"affinity {'off' if route == 'off' else 'by KV events'}: {len(turns)} turns",
                    f"{share:.1%} of the prompt tokens cached (usage), TTFT p50 {statistics.median(times_s) * 1e3:.0f} ms, "
                    f"p95 {times_s[len(times_s) * 95 // 100] * 1e3:.0f} ms")
    report.line("affinity: cached share over that without", f"{min(shares['tiny']) - max(shares['off']):+.1%} at the least",
                min(shares["tiny"]) > max(shares["off"]))


async def check_index(replica: Replica, texts: Sequence[str], report: "Report") -> None:
    """The index before each request against what usage says afterwards, with a cache that evicts."""
    config = KvEventsConfig(f"tcp://127.0.0.1:{replica.events_port}", f"tcp://127.0.0.1:{replica.events_port + 1}")
    reader = KvEventReader(config, KvEventOrder(BlockIndex()), SystemClock(), load_zmq(replica.name))
    task = asyncio.create_task(reader.run())
    prompts = [[{"role": "system", "content": text * 3}, {"role": "user", "content": texts[-1]}] for text in texts[:12]]
    n_equal = n_tokens = n_cached = n_off = 0
    for number in range(N_COMPARED):
        messages = prompts[number // 2 * 5 % len(prompts)]  # each twice; before its next turn it is evicted
        ids = (await asyncio.to_thread(post, f"{replica.url}/tokenize", {"model": "tiny", "messages": messages}))["tokens"]
        size = reader.order.index.block_size or 32
        held = (reader.order.index.n_held(hash_tokens(ids, size, chain_root())[:(len(ids) - 1) // size]) or 0) * size
        body = {"model": "tiny", "messages": messages, "max_tokens": 4}
        usage = (await asyncio.to_thread(post, f"{replica.url}/v1/chat/completions", body))["usage"]
        cached = int(usage["prompt_tokens_details"]["cached_tokens"] or 0)
        n_tokens, n_cached, n_off = n_tokens + len(ids), n_cached + cached, n_off + abs(held - cached)
        n_equal += held == cached
        await asyncio.sleep(0.3)  # vLLM publishes with its next step
    report.line("KV index against usage",
                f"{n_equal} of {N_COMPARED} requests equal; {n_cached:,} of {n_tokens:,} tokens cached, off by "
                f"{n_off / n_tokens:.2%} of the tokens; {reader.order.n_gaps} gaps", n_equal >= N_COMPARED * 0.9)
    report.line("the prompts exceed the cache", f"{reader.order.n_events} events, index of {len(reader.order.index)} blocks",
                0.3 < n_cached / n_tokens < 0.7)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def check_cancel(gateway: str, port: int, replicas: Sequence[Replica], report: "Report") -> None:
    for streams in (True, False):
        before = sum(one.gauge("vllm:generation_tokens_total") for one in replicas)
        client = http.client.HTTPConnection("127.0.0.1", port)
        body = {"model": "tiny", "messages": [{"role": "user", "content": "Leave me"}], "max_tokens": LONG_TOKENS,
                "stream": streams, "ignore_eos": True}
        client.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"})
        answer = client.getresponse() if streams else None
        if answer is not None:
            answer.read(400)
        else:
            time.sleep(1.0)
        left_at = time.monotonic()
        assert client.sock is not None or answer is not None
        client.close()
        if answer is not None:
            answer.close()
        while sum(one.gauge("vllm:num_requests_running") for one in replicas) and time.monotonic() - left_at < 60:
            time.sleep(0.01)
        idle_s = time.monotonic() - left_at
        n_tokens = sum(one.gauge("vllm:generation_tokens_total") for one in replicas) - before
        report.line(f"client leaves {'a stream' if streams else 'a whole answer'}: engine idle after",
                    f"{idle_s * 1e3:.0f} ms, {n_tokens:.0f} of {LONG_TOKENS} tokens generated", n_tokens < LONG_TOKENS / 2)


def check_sleep(replica: Replica, report: "Report") -> None:
    began_at = time.monotonic()
    post(f"{replica.url}/sleep?level=1", {})
    slept_s = time.monotonic() - began_at
    is_sleeping = json.loads(urlopen(f"{replica.url}/is_sleeping", timeout=10).read())["is_sleeping"]
    began_at = time.monotonic()
    post(f"{replica.url}/wake_up", {})
    woken_s = time.monotonic() - began_at
    turn = read_turn(replica.url, "tiny", [{"role": "user", "content": "Awake?"}])
    report.line("sleep level 1, wake, first token", f"{slept_s:.2f} s, {woken_s:.2f} s, {turn.ttft_s:.2f} s",
                bool(is_sleeping))


class Report:
    """Lines of a table; `has_failed` if a check did."""

    def __init__(self, device: str) -> None:
        self.has_failed = False
        self._device = device

    def line(self, what: str, figure: str, is_right: bool = True) -> None:
        self.has_failed |= not is_right
        print(f"| {what} | {figure} | {self._device}, random weights{'' if is_right else ' **FAILS**'} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--engine-python", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--blocks", type=int, default=160, help="blocks of 32 tokens of each replica's cache")
    given = parser.parse_args()
    pages = sorted((ROOT / "docs/decisions").glob("*.md"))[:12]
    words = " ".join(page.read_text(encoding="utf-8") for page in pages).split()
    texts = [" ".join(words[at:at + 120]) for at in range(0, 7200, 120)]
    ports = [free_port() for _ in range(3)]
    base = free_port()
    replicas = [Replica("a", ports[0], base), Replica("b", ports[1], base + 4)]
    report = Report(DEVICES[given.device])
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for replica in replicas:
            stack.enter_context(process(engine_command(given, replica), folder / f"{replica.name}.log", **ENVIRONMENT))
        started_s = max(wait_healthy(f"{one.url}/health", folder / f"{one.name}.log") for one in replicas)
        report.line("two replicas start together", f"{started_s:.0f} s")
        settings, gateway = write_settings(folder, ports[2], replicas), f"http://127.0.0.1:{ports[2]}"
        serve = [sys.executable, "-m", "stayfast", "serve", "--config", str(settings)]
        stack.enter_context(process(serve, folder / "gateway.log"))
        wait_healthy(f"{gateway}/readyz", folder / "gateway.log")
        texts[0] = " ".join(words[8000:8500])
        check_affinity(gateway, replicas, texts, report)
        check_signals(gateway, report)
        asyncio.run(check_index(replicas[0], texts[1:], report))
        check_cancel(gateway, ports[2], replicas, report)
        check_sleep(replicas[1], report)
    sys.exit(report.has_failed)


if __name__ == "__main__":
    main()
