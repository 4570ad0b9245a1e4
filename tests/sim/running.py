"""A simulator on a free port: in a thread of this process, or as the command `stayfast sim`."""

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import uvloop

from stayfast.core.clock import SystemClock
from stayfast.lab.sim_server.app import ListenConfig, SimulatorApp
from stayfast.lab.simulated import ProviderConfig

PATIENCE_S = 30.0


@dataclass
class Sim:
    """A running simulator. `errors` holds what went wrong inside it: nothing should."""

    port: int
    errors: list[BaseException] = field(default_factory=list)

    @property
    def url(self) -> str:
        """Without a path."""
        return f"http://127.0.0.1:{self.port}"

    def control(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Status and body of a control endpoint."""
        data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        try:
            with urlopen(Request(f"{self.url}/_sim/{path}", data, method=method), timeout=PATIENCE_S) as answer:
                return answer.status, json.load(answer)
        except HTTPError as error:
            with error:
                return error.code, json.load(error)

    def counts(self, provider: str) -> dict[str, Any]:
        """What one provider was asked."""
        found: dict[str, Any] = self.control("GET", "counts")[1]["providers"][provider]
        return found

    def last(self) -> dict[str, Any]:
        """The last request."""
        found: dict[str, Any] = self.control("GET", "requests?n=1")[1]["requests"][0]
        return found

    def fails(self, **rule: Any) -> None:
        """Add a fault rule."""
        status, said = self.control("POST", "faults", rule)
        assert status == 200, said

    def socket(self) -> socket.socket:
        """A raw connection."""
        return socket.create_connection(("127.0.0.1", self.port), PATIENCE_S)


def eventually(is_so: Callable[[], object], limit_s: float = PATIENCE_S) -> float:
    """Wait until `is_so()`; returns the seconds it took. Fails after `limit_s`."""
    began_at = time.monotonic()
    while not is_so():
        assert time.monotonic() - began_at < limit_s, "it did not happen in time"
        time.sleep(0.002)
    return time.monotonic() - began_at


@contextmanager
def running_sim(providers: Mapping[str, ProviderConfig], **listen: Any) -> Iterator[Sim]:
    """Simulate `providers` until the end of the block."""
    loop = uvloop.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="sim", daemon=True)
    thread.start()
    sim = Sim(0)

    async def start() -> SimulatorApp:
        site = SimulatorApp(ListenConfig(port=0, **listen), providers, SystemClock(), sim.errors.append)
        sim.port = await site.listen()
        return site

    async def stop() -> None:
        site.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*others, return_exceptions=True)

    site = asyncio.run_coroutine_threadsafe(start(), loop).result(PATIENCE_S)
    try:
        yield sim
    finally:
        asyncio.run_coroutine_threadsafe(stop(), loop).result(PATIENCE_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(PATIENCE_S)
        loop.close()
    assert sim.errors == []


@contextmanager
def running_sim_command(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """`stayfast sim` as a subprocess; killed at the end of the block."""
    process = subprocess.Popen([sys.executable, "-m", "stayfast", "sim", "--port", "0", *arguments], text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "PYTHONPATH": "src"})
    try:
        yield process
    finally:
        process.kill()
        process.communicate()
