"""A full disk: submitters get 503, and what was accepted goes on.

The gateway's folder is a file system of its own: a tmpfs of 256 MB in a mount namespace of the gateway's process, which
Linux gives to a user without rights (`unshare`). While a batch runs, a file takes all space that is left. Then every kind of
submission is tried, and the lines of the batch must end. With the space back, the batch completes.

When wrong: a tmpfs has no journal and no delayed allocation; on a real disk the space may run out later than measured.
"""

import asyncio
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any

from stayfast.lab.harness.batch_gateway import CLOCK, POLL_S, BatchGateway, batch_gateway, finish_batch
from stayfast.lab.harness.claim import Figure, SetUpFailed
from stayfast.lab.harness.processes import MODEL, Processes

SIZE_MB = 256
DELAY_S = 0.05  # of the upstream, so that lines are left when the disk is full
N_AT_ONCE = 4
RUN_WITHIN_S = 60.0
_CHUNK = b"\0" * (1 << 20)
_LAUNCH = """import os, sys
mount = 'mount -t tmpfs -o size="$1" tmpfs "$2" && shift 2 && exec "$@"'
os.execvp("unshare", ["unshare", "-rm", "sh", "-c", mount, "sh", sys.argv[1], sys.argv[2], sys.executable, *sys.argv[3:]])
"""


def launcher(folder: Path) -> Sequence[str]:
    """Starts Python with a small file system in `folder`."""
    return ("-c", _LAUNCH, f"{SIZE_MB}m", str(folder))


async def measure_full_disk(processes: Processes, n_lines: int) -> tuple[tuple[Figure, ...], str | None]:
    """The figures, and why there are none."""
    if sys.platform != "linux":
        return (), "the full disk needs a mount namespace, which only Linux has"
    try:
        upstream = await processes.start("-m", "stayfast.lab.harness.answer_upstream", str(DELAY_S))
        async with batch_gateway(processes, upstream, launcher=launcher, jobs={"concurrency": N_AT_ONCE}) as gateway:
            return await _fill_and_submit(gateway, n_lines), None
    except SetUpFailed as error:
        return (), f"the full disk was not measured: {error}"


async def _fill_and_submit(gateway: BatchGateway, n_lines: int) -> tuple[Figure, ...]:
    spare_id = await gateway.upload(10)
    batch_id = (await gateway.create(await gateway.upload(n_lines)))["id"]
    batch = await _wait_for(gateway, batch_id, lambda found: found["status"] == "in_progress")
    assert gateway.server is not None
    filler = Path(f"/proc/{gateway.server.process.pid}/root{gateway.folder}/filler")
    await asyncio.to_thread(fill, filler)
    n_done = (await gateway.find(batch_id))["request_counts"]["completed"]
    statuses = await _submit(gateway, spare_id)
    batch = await _wait_for(gateway, batch_id, lambda found: found["request_counts"]["completed"] == n_lines)
    await asyncio.to_thread(fill, filler)  # what was released in the meantime
    statuses += await _submit(gateway, spare_id)
    await asyncio.to_thread(filler.unlink)
    await finish_batch(gateway, batch_id)
    output = await gateway.read_file((await gateway.find(batch_id))["output_file_id"])
    return (
        Figure.count("full disk: submissions", len(statuses), None),
        Figure.count("full disk: submissions without a 503", sum(status != HTTPStatus.SERVICE_UNAVAILABLE
                                                                for status in statuses)),
        Figure.count("full disk: lines that were left to run", n_lines - n_done, None),
        Figure.count("full disk: of these did not end", n_lines - batch["request_counts"]["completed"]),
        Figure.count("full disk: lines without a result, with space again", n_lines - output.count(b"\n")))


async def _submit(gateway: BatchGateway, file_id: str) -> list[int]:
    """One submission of each kind."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": "x" * 20_000}]}
    return [await gateway.try_upload(1000),
            await gateway.post("/v1/jobs", {"endpoint": "/v1/chat/completions", "body": body}),
            await gateway.post("/v1/batches", {"input_file_id": file_id, "endpoint": "/v1/chat/completions",
                                               "completion_window": "24h"})]


async def _wait_for(gateway: BatchGateway, batch_id: str, is_so: Callable[[Mapping[str, Any]], bool]) -> Mapping[str, Any]:
    """The batch once it is so, or as it is after a minute."""
    give_up_at = CLOCK.now() + RUN_WITHIN_S
    while True:
        batch = await gateway.find(batch_id)
        if is_so(batch) or CLOCK.now() > give_up_at:
            return batch
        await asyncio.sleep(POLL_S)


def fill(path: Path) -> None:
    """Take all space that is left."""
    with suppress(OSError), path.open("ab", buffering=0) as file:
        while True:
            file.write(_CHUNK)
    with suppress(OSError), path.open("ab", buffering=0) as file:
        while True:
            file.write(_CHUNK[:512])
