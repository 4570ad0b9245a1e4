"""Gateways that share a Redis, under load, while it is killed, frozen and started again: no request notices."""

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.services.redis_server import RedisServer, redis_server
from tests.services.redis_traffic import SLOW_S, ask, metric
from tests.services.running import gateway

pytestmark = pytest.mark.sockets
N_CLIENTS, N_QUESTIONS = 8, 40
PATIENCE_S = 30.0
SETTINGS = """
server: {host: 127.0.0.1}
log: {requests: false}
upstreams:
  quick:
    kind: simulated
    probe: false
    ttft: {median_s: 0.05, sigma: 0}
    gaps: {median_s: 0.001}
    output: {median: 5, sigma: 0}
stores:
  hot: {kind: redis, url: "URL", local_bytes: 0, timeout_s: 0.1}
routes:
  chat: {upstreams: [quick], cache: {mode: exact, max_temperature: 1, store: hot}}
"""


class Load:
    """Clients that ask the same questions again and again, of all gateways in turn."""

    def __init__(self, ports: list[int]) -> None:
        self._ports = ports
        self._is_over = threading.Event()
        self._results: list[tuple[float, str]] = []
        self.failures: list[BaseException] = []

    def client(self, number: int) -> None:
        """Its thread."""
        n = number
        while not self._is_over.is_set():
            n += 1
            try:
                said = ask(self._ports[n % len(self._ports)], f"Question {n * 7 % N_QUESTIONS}", stream=n % 5 == 0)
            except (OSError, AssertionError, ValueError, KeyError) as error:
                self.failures.append(error)
                return
            self._results.append((time.monotonic(), said))

    def results_since(self, since: float) -> list[str]:
        """What the cache had to say."""
        return [said for at, said in self._results if at >= since]

    def wait_for_hits(self, share: float) -> None:
        """Until so large a share of the requests of the last second was answered from the cache."""
        give_up_at = time.monotonic() + PATIENCE_S
        while True:
            time.sleep(1)
            results = self.results_since(time.monotonic() - 1)
            if len(results) >= N_CLIENTS and results.count("hit") >= share * len(results):
                return
            assert not self.failures, self.failures
            assert time.monotonic() < give_up_at, results

    def stop(self) -> None:
        """No more."""
        self._is_over.set()


@contextmanager
def load(ports: list[int]) -> Iterator[Load]:
    """Until the block is left."""
    made = Load(ports)
    threads = [threading.Thread(target=made.client, args=(n,)) for n in range(N_CLIENTS)]
    for thread in threads:
        thread.start()
    try:
        yield made
    finally:
        made.stop()
        for thread in threads:
            thread.join(2 * SLOW_S)


@contextmanager
def shared_by(n: int, folder: Path) -> Iterator[tuple[RedisServer, list[int]]]:
    """A server, and the ports of so many gateways that share it."""
    with ExitStack() as stack:
        server = stack.enter_context(redis_server(folder))
        ports = []
        for number in range(n):
            its = folder / str(number)
            its.mkdir()
            ports.append(stack.enter_context(gateway(its, SETTINGS.replace("URL", server.url))))
        yield server, ports


def test_redis_two_gateways_share_answers(tmp_path: Path) -> None:
    """What one was told the other knows, streamed or not; what is asked of both at once is one call."""
    with shared_by(2, tmp_path) as (server, (one, other)):
        assert ask(one, "What?") == "miss"
        while server.say(b"EXISTS", b"stayfast:i:all") != b":1\r\n":
            time.sleep(0.01)
        assert ask(other, "What?") == "hit"
        assert ask(other, "What?", stream=True) == "hit"
        assert server.say(b"ZCARD", b"stayfast:i:tag:faq") == b":1\r\n"
        for n in range(10):
            both = [threading.Thread(target=ask, args=(port, f"At once {n}")) for port in (one, other)]
            for thread in both:
                thread.start()
            for thread in both:
                thread.join(SLOW_S)
        n_calls = sum(metric(port, "stayfast_attempts_total") for port in (one, other))
        result = 'stayfast_cache_requests_total{route="chat",result="%s"}'
        n_shared, n_hits = (sum(metric(port, result % word) for port in (one, other)) for word in ("coalesced", "hit"))
        assert n_calls == 11
        assert n_shared + n_hits == 12
        assert n_shared > 0


def test_redis_restart_fails_no_request(tmp_path: Path) -> None:
    """Killed, gone, back and empty; frozen and thawed. Hits come back each time."""
    with shared_by(2, tmp_path) as (server, ports), load(ports) as clients:
        clients.wait_for_hits(0.9)
        server.kill()
        time.sleep(2)
        began_at = time.monotonic()
        time.sleep(1)
        assert clients.results_since(began_at).count("hit") == 0
        assert len(clients.results_since(began_at)) > N_CLIENTS  # they go on
        server.start()
        clients.wait_for_hits(0.9)
        server.freeze()
        time.sleep(2)
        server.thaw()
        clients.wait_for_hits(0.9)
        clients.stop()
        assert clients.failures == []
        for word in ("unavailable", "timeout", "suspended", "hit", "miss"):
            asked = f'stayfast_cache_store_requests_total{{store="hot",op="get",result="{word}"}}'
            assert all(metric(port, asked) for port in ports), word
        assert all(metric(port, "stayfast_cache_store_seconds_count") for port in ports)
