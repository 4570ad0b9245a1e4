"""A gateway that runs batches, as a process that proofs kill and start again, with a client that uploads and waits."""

import asyncio
import http.client
import json
import shutil
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from tempfile import mkdtemp
from types import MappingProxyType
from typing import Any

from stayfast.core.clock import SystemClock
from stayfast.lab.harness.claim import SetUpFailed
from stayfast.lab.harness.processes import MODEL, Processes, ServerProcess, gateway_settings

POLL_S = 0.1
BATCH_WITHIN_S = 900.0
BROKEN_S = 30.0  # a gateway may answer no poll for so long
BOUNDARY = "stayfast-proof"
FINAL = frozenset(("completed", "failed", "expired", "cancelled"))
CLOCK = SystemClock()
_TRANSIENT = (OSError, http.client.HTTPException)
OnPoll = Callable[[Mapping[str, Any]], Awaitable[None]]


class BatchGateway:
    """A gateway with an own folder of jobs, which can be killed and started again at the same address."""

    def __init__(self, processes: Processes, upstream: ServerProcess, folder: Path, *, launcher: Sequence[str] = (),
                 jobs: Mapping[str, Any] = MappingProxyType({})) -> None:
        """launcher: arguments of Python that come before those of the gateway. jobs: its settings of jobs."""
        self._processes = processes
        self._upstream = upstream
        settings = gateway_settings({"up": f"{upstream.url}/v1"})
        settings["jobs"] = {"path": str(folder), **jobs}
        self._launcher = launcher
        self._settings = processes.write_file(settings)
        self._port = "0"
        self.folder = folder
        self.server: ServerProcess | None = None

    async def start(self) -> None:
        """Start the process."""
        self.server = await self._processes.start(*self._launcher, "-m", "stayfast", "serve", "--config",
                                                  self._settings, "--port", self._port)
        self._port = self.server.url.rpartition(":")[2]

    async def kill(self) -> None:
        """End it at once."""
        assert self.server is not None
        self.server.process.send_signal(signal.SIGKILL)
        await self.server.process.wait()

    async def upload(self, n_lines: int, prefix: str = "line") -> str:
        """Upload a batch file; returns its id. Raises SetUpFailed."""
        status, content = await asyncio.to_thread(self._upload, n_lines, prefix)
        if status != HTTPStatus.OK:
            raise SetUpFailed(f"POST /v1/files answered {status}: {content[:200].decode(errors='replace')}")
        return str(json.loads(content)["id"])

    async def try_upload(self, n_lines: int) -> int:
        """The status of an upload."""
        return (await asyncio.to_thread(self._upload, n_lines, "line"))[0]

    async def create(self, file_id: str) -> dict[str, Any]:
        """Create a batch."""
        assert self.server is not None
        created: dict[str, Any] = await self.server.get("/v1/batches", "POST", {
            "input_file_id": file_id, "endpoint": "/v1/chat/completions", "completion_window": "24h"})
        return created

    async def find(self, batch_id: str) -> dict[str, Any]:
        """The batch. Raises SetUpFailed."""
        assert self.server is not None
        found: dict[str, Any] = await self.server.get(f"/v1/batches/{batch_id}")
        return found

    async def post(self, path: str, body: Mapping[str, Any]) -> int:
        """The status of a request."""
        return await asyncio.to_thread(self._post, path, json.dumps(body).encode())

    def _post(self, path: str, body: bytes) -> int:
        assert self.server is not None
        connection = self.server.connect()
        try:
            connection.request("POST", path, body, {"content-type": "application/json"})
            answer = connection.getresponse()
            answer.read()
        except _TRANSIENT as error:
            raise SetUpFailed(f"POST {path}: {type(error).__name__}: {error}") from None
        finally:
            connection.close()
        return answer.status

    async def read_file(self, file_id: str | None) -> bytes:
        """The contents of a file; empty without one."""
        assert self.server is not None
        return await self.server.read(f"/v1/files/{file_id}/content") if file_id is not None else b""

    async def n_calls(self) -> int:
        """Calls that the upstream has received."""
        return int(await self._upstream.get("/_count"))

    def _upload(self, n_lines: int, prefix: str) -> tuple[int, bytes]:
        assert self.server is not None
        head = (f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--{BOUNDARY}\r\n'
                'Content-Disposition: form-data; name="file"; filename="in.jsonl"\r\n\r\n').encode()
        tail = f"\r\n--{BOUNDARY}--\r\n".encode()
        n_bytes = len(head) + len(tail) + sum(map(len, batch_lines(n_lines, prefix)))
        connection = self.server.connect()
        try:
            connection.putrequest("POST", "/v1/files")
            connection.putheader("content-type", f"multipart/form-data; boundary={BOUNDARY}")
            connection.putheader("content-length", str(n_bytes))
            connection.endheaders()
            for part in grouped(head, batch_lines(n_lines, prefix), tail):
                connection.send(part)
            answer = connection.getresponse()
            content = answer.read()
        except _TRANSIENT as error:
            raise SetUpFailed(f"POST /v1/files: {type(error).__name__}: {error}") from None
        finally:
            connection.close()
        return answer.status, content


def grouped(head: bytes, lines: Iterator[bytes], tail: bytes) -> Iterator[bytes]:
    """Parts of about 64 KiB."""
    part = bytearray(head)
    for line in lines:
        part += line
        if len(part) > 1 << 16:
            yield bytes(part)
            part.clear()
    yield bytes(part) + tail


@asynccontextmanager
async def batch_gateway(processes: Processes, upstream: ServerProcess, *,
                        launcher: Callable[[Path], Sequence[str]] | None = None,
                        jobs: Mapping[str, Any] = MappingProxyType({})) -> AsyncIterator[BatchGateway]:
    """A running gateway with an empty folder. launcher: as in BatchGateway, for the folder."""
    folder = Path(mkdtemp(prefix="stayfast-prove-jobs-"))
    gateway = BatchGateway(processes, upstream, folder, launcher=launcher(folder) if launcher is not None else (), jobs=jobs)
    try:
        await gateway.start()
        yield gateway
    finally:
        if gateway.server is not None and gateway.server.process.returncode is None:
            await gateway.kill()
        shutil.rmtree(folder, ignore_errors=True)


def batch_lines(n: int, prefix: str = "line") -> Iterator[bytes]:
    """The lines of a batch file of about 300 bytes each."""
    for number in range(n):
        yield json.dumps({"custom_id": f"{prefix}-{number}", "method": "POST", "url": "/v1/chat/completions", "body": {
            "model": MODEL, "max_tokens": 16, "messages": [
                {"role": "system", "content": "You answer in one short sentence, without any formatting."},
                {"role": "user", "content": f"Question {prefix} {number} of {n}"}]}}).encode() + b"\n"


async def finish_batch(gateway: BatchGateway, batch_id: str, on_poll: OnPoll | None = None) -> dict[str, Any]:
    """Wait for a batch's end. Raises SetUpFailed if it does not end, or fails."""
    give_up_at = CLOCK.now() + BATCH_WITHIN_S
    found_at = CLOCK.now()
    while CLOCK.now() < give_up_at:
        try:
            batch = await gateway.find(batch_id)
        except SetUpFailed:  # its store was broken a moment ago
            if CLOCK.now() > found_at + BROKEN_S:
                raise
            await asyncio.sleep(POLL_S)
            continue
        found_at = CLOCK.now()
        if batch["status"] in FINAL:
            if batch["status"] != "completed":
                raise SetUpFailed(f"the batch ended as {batch['status']}: {batch['errors']}")
            return batch
        if on_poll is not None:
            await on_poll(batch)
        await asyncio.sleep(POLL_S)
    raise SetUpFailed(f"the batch did not end within {BATCH_WITHIN_S:g} s")
