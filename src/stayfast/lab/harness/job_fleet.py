"""Gateways and job workers on one store, for proofs that kill them.

A killed process is started again by the same command. Its port is another one, so a client picks a gateway for each request,
and repeats a request that got no answer.
"""

import asyncio
import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from http import HTTPStatus
from random import Random
from typing import Any

import msgspec

from stayfast.core.clock import SystemClock
from stayfast.core.errors import StayfastError
from stayfast.core.events import Fanout
from stayfast.http.client.client import HttpClient, HttpConfig
from stayfast.http.client.response import WholeResponse
from stayfast.lab.harness.claim import SetUpFailed
from stayfast.lab.harness.processes import Processes, ServerProcess, children_of

RETRY_S = 0.2
GIVE_UP_S = 120.0  # of one request, over all repetitions
_ANSWER_S = 30.0
_MAX_BYTES = 256 << 20
_REPEATED = frozenset((HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT))


class JobFleet:
    """Gateways with the same settings, and at most one separate worker of jobs."""

    def __init__(self, processes: Processes, settings: Mapping[str, Any], rng: Random) -> None:
        self._processes = processes
        self._settings = settings
        self._rng = rng
        self._clock = SystemClock()
        self._clients: dict[str, HttpClient] = {}
        self.gateways: list[ServerProcess] = []
        self.worker: ServerProcess | None = None

    async def start(self, n_gateways: int, *, has_worker: bool) -> None:
        """Start all processes."""
        self.gateways = [await self._processes.start_gateway(self._settings) for _ in range(n_gateways)]
        self.worker = await self._start_worker() if has_worker else None

    async def stop(self) -> None:
        """End them in good order."""
        for server in (*self.gateways, *filter(None, (self.worker,))):
            server.process.terminate()
        for server in (*self.gateways, *filter(None, (self.worker,))):
            await server.process.wait()
        for client in self._clients.values():
            client.close()

    async def kill_one(self) -> str:
        """Kill a random process with SIGKILL, and start it again. Returns what was killed."""
        victims = [("gateway", n) for n in range(len(self.gateways))]
        victims += [("process of a gateway", n) for n, server in enumerate(self.gateways) if children_of(server.process.pid)]
        victims += [("worker of jobs", 0)] * (self.worker is not None)
        kind, n = self._rng.choice(victims)
        if kind == "worker of jobs":
            assert self.worker is not None
            await kill_all([self.worker.process.pid], self.worker)
            self.worker = await self._start_worker()
        elif kind == "gateway":
            server = self.gateways[n]
            await kill_all([server.process.pid, *children_of(server.process.pid)], server)
            self.gateways[n] = await self._processes.start_gateway(self._settings)
        else:
            child = self._rng.choice(children_of(self.gateways[n].process.pid))
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)  # its parent starts another one
        return kind

    async def restart_gateway(self, n: int) -> None:
        """Start a gateway again that was killed."""
        self.gateways[n] = await self._processes.start_gateway(self._settings)

    async def send(self, method: str, path: str, body: bytes = b"",
                   headers: Sequence[tuple[str, str]] = ()) -> WholeResponse:
        """The answer of any gateway. A request without an answer, or with a 502 to 504, is repeated. Raises SetUpFailed."""
        until = self._clock.now() + GIVE_UP_S
        why = ""
        while self._clock.now() < until:
            server = self._rng.choice(self.gateways)
            try:
                reply = await self._client(server.url).fetch(
                    method, path, (*headers, ("content-type", "application/json")) if not _has_type(headers) else headers,
                    body, timeout_s=_ANSWER_S, max_body_bytes=_MAX_BYTES)
            except StayfastError as error:
                why = error.code
            else:
                if reply.status not in _REPEATED:
                    return reply
                why = f"status {reply.status}"
            await asyncio.sleep(RETRY_S)
        raise SetUpFailed(f"{method} {path} had no answer in {GIVE_UP_S:g} s ({why})")

    async def send_json(self, method: str, path: str, body: Mapping[str, Any] | None = None,
                        headers: Sequence[tuple[str, str]] = ()) -> Any:
        """The JSON of an answer. Raises SetUpFailed for an error."""
        reply = await self.send(method, path, msgspec.json.encode(body) if body is not None else b"", headers)
        if reply.status >= HTTPStatus.MULTIPLE_CHOICES:
            raise SetUpFailed(f"{method} {path} answered {reply.status}: {reply.body[:300].decode(errors='replace')}")
        return msgspec.json.decode(reply.body)

    def _client(self, url: str) -> HttpClient:
        client = self._clients.get(url)
        if client is None:
            client = self._clients[url] = HttpClient("gateway", HttpConfig(url, http="1.1"), sink=Fanout(),
                                                     clock=self._clock)
        return client

    async def _start_worker(self) -> ServerProcess:
        return await self._processes.start_worker({**self._settings, "workers": 1})


async def kill_all(pids: Sequence[int], server: ServerProcess) -> None:
    """Kill processes at one instant, and wait for the one that this process started."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    await server.process.wait()


def _has_type(headers: Sequence[tuple[str, str]]) -> bool:
    return any(name == "content-type" for name, _ in headers)


def encode_upload(name: str, content: bytes) -> tuple[bytes, tuple[tuple[str, str], ...]]:
    """A file as the multipart body of POST /v1/files, for a batch; and its headers."""
    boundary = "stayfast-proof-boundary"
    parts = (f'--{boundary}\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
             f'--{boundary}\r\ncontent-disposition: form-data; name="file"; filename="{name}"\r\n'
             f"content-type: application/jsonl\r\n\r\n").encode()
    return parts + content + f"\r\n--{boundary}--\r\n".encode(), (
        ("content-type", f"multipart/form-data; boundary={boundary}"),)
