"""Requests of every kind, good and bad, so that every metric has a value."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

TIMEOUT_S = 10.0
N_AT_A_TIME = 12
JOBS = (("chat", 60.0), ("refused", 20.0), *(("narrow", 2.0),) * 4)  # routes, and seconds until the deadline
LONG = "You are the assistant of a shop that sells clocks, and you never say what time it is. " * 100  # some 2,000 tokens

SETTINGS = """
server: {host: 127.0.0.1}
log: {requests: false}
upstreams:
  quick:
    kind: simulated
    probe: false
    ttft: {median_s: 0.02, sigma: 0.5, tail_share: 0.05, tail_median_s: 0.4}
    gaps: {median_s: 0.001}
    output: {median: 20, sigma: 0.4}
    prices: {"*": {input_per_mtok: 1, output_per_mtok: 4}}
  faulty:
    kind: simulated
    probe: false
    ttft: {median_s: 0.03}
    gaps: {median_s: 0.001}
    output: {median: 20, sigma: 0.4}
    stalls: {share: 0.1, duration: {median_s: 1.2}}
    faults:
      - {kind: status, status: 503, rate: 0.25}
      - {kind: status, status: 429, rate: 0.25}
      - {kind: truncated, rate: 0.25}
      - {kind: hang, rate: 0.25}
  narrow:
    kind: simulated
    probe: false
    ttft: {median_s: 0.5}
    limit: {mode: fixed, min: 1, max: 1, max_waiting: 0}
  refusing:
    kind: simulated
    probe: false
    ttft: {median_s: 0.02}
    gaps: {median_s: 0.001}
    output: {median: 20, sigma: 0.4}
    stalls: {share: 0.5, duration: {median_s: 1.2}}
    faults: [{kind: status, status: 429, rate: 0.5, retry_after_s: 0.1}]
  recalling:
    kind: simulated
    probe: false
    ttft: {median_s: 0.02}
    gaps: {median_s: 0.001}
    prompt_cache: {rules: anthropic}
    prices: {"*": {input_per_mtok: 1, output_per_mtok: 4}}
  dead: {kind: openai, base_url: "http://127.0.0.1:1/v1", key: none, probe: false}
  mending: {kind: openai, base_url: "http://127.0.0.1:{provider}/v1", key: none, probe: false, supports_continuation: true}
  provider: {kind: openai, base_url: "http://127.0.0.1:{provider}/v1", key: none, probe: false, keepalive_s: 0.1}
stores:
  disk: {kind: sqlite, path: answers.db, local_bytes: 0}
  lost: {kind: sqlite, path: "."}
routes:
  chat: {upstreams: [quick], slo: {ttft: {under_s: 0.3}, usable: {under_s: 0.3}, e2e: {under_s: 1}, tpot: {under_s: 0.01}}}
  shaky: {upstreams: [faulty, quick], timeouts: {total_s: 2, first_token_s: 1},
          retry: {max_attempts: 2, backoff_base_s: 0.01}}
  through: {upstreams: [provider], model: chat}
  narrow: {upstreams: [narrow]}
  refused: {upstreams: [refusing], retry: {max_attempts: 1}}
  recalled: {upstreams: [recalling], model: claude-sonnet-4-5, prefix: {mode: auto}}
  moved: {upstreams: [recalling], model: claude-sonnet-4-5, prefix: {mode: auto}}
  mended: {upstreams: [mending], model: torn, on_stall: rescue}
  makeshift: {upstreams: [dead], on_overrun: {fallback: {upstreams: [quick]}}}
  kept: {upstreams: [quick], cache: {mode: exact, max_temperature: 1}}
  aged:
    upstreams: [quick]
    cache: {mode: exact, max_temperature: 1, ttl_s: 0.2, stale_while_revalidate_s: 60}
  stored: {upstreams: [quick], cache: {mode: exact, max_temperature: 1, store: disk}}
  unstored: {upstreams: [quick], cache: {mode: exact, max_temperature: 1, store: lost}}
jobs: {path: jobs}
"""

PROVIDER = """
server: {host: 127.0.0.1}
log: {requests: false}
upstreams:
  quick:
    kind: simulated
    probe: false
    ttft: {median_s: 0.02, sigma: 0.5, tail_share: 0.05, tail_median_s: 0.4}
    gaps: {median_s: 0.001}
    output: {median: 20, sigma: 0.4}
  torn:
    kind: simulated
    probe: false
    ttft: {median_s: 0.02}
    gaps: {median_s: 0.001}
    faults: [{kind: truncated, rate: 0.8}]
routes:
  chat: {upstreams: [quick]}
  torn: {upstreams: [torn]}
"""  # another gateway, as an upstream over sockets; its port is {provider} in SETTINGS


def ask(port: int, model: str, *, stream: bool = True, leaves_after: int | None = None, system: str = "") -> None:
    """One chat, or nonsense for the model `""`; a client with `leaves_after` hangs up after so many reads."""
    messages = [{"role": "system", "content": system}] if system else []
    wanted = {"model": model, "stream": stream, "messages": [*messages, {"role": "user", "content": "Hello!"}]}
    post(port, "/v1/chat/completions", json.dumps(wanted) if model else "nonsense", leaves_after)


def submit(port: int, model: str, deadline_s: float) -> None:
    """One job."""
    post(port, "/v1/jobs", json.dumps({"endpoint": "/v1/chat/completions", "deadline": deadline_s, "body": {
        "model": model, "messages": [{"role": "user", "content": "Hello!"}]}}))


def post(port: int, path: str, body: str, leaves_after: int | None = None) -> None:
    """One request on a connection of its own, read to its end."""
    with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S) as connection:
        connection.sendall(f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
                           f"content-length: {len(body)}\r\nconnection: close\r\n\r\n{body}".encode())
        n_reads = 0
        while n_reads != leaves_after and connection.recv(65_536):
            n_reads += 1


@contextmanager
def traffic(port: int) -> Iterator[None]:
    """Round after round, until the block is left."""
    is_over = threading.Event()

    def one(model: str, stream: bool, leaves_after: int | None) -> None:
        if not is_over.is_set():
            moving = f"It is {time.time()}. " if model == "moved" else ""
            system = moving + LONG if model in ("recalled", "moved") else ""
            ask(port, model, stream=stream, leaves_after=leaves_after, system=system)

    def later(model: str, deadline_s: float) -> None:
        if not is_over.is_set():
            submit(port, model, deadline_s)

    def rounds() -> None:
        with ThreadPoolExecutor(N_AT_A_TIME) as pool:
            while not is_over.wait(0.2):
                for model, deadline_s in JOBS:
                    pool.submit(later, model, deadline_s)
                for model, stream, leaves_after in (
                        ("chat", True, None), ("chat", False, None), ("chat", True, 1), ("chat", True, 0),
                        ("through", True, None), ("shaky", True, None), ("shaky", True, None), ("", True, None),
                        ("narrow", True, None), ("narrow", True, None), ("kept", True, None), ("stored", True, None),
                        ("unstored", True, None), ("aged", True, None),
                        ("mended", True, None), ("makeshift", True, None), ("recalled", True, None), ("refused", True, None),
                        *(("moved", True, None),) * 3):
                    pool.submit(one, model, stream, leaves_after)

    thread = threading.Thread(target=rounds, name="traffic")
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join(2 * TIMEOUT_S)
