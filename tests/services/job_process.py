"""A process that submits, claims and finishes jobs in a shared folder, and writes a line after each acknowledgement.

    python -m tests.services.job_process FOLDER NAME

Lines: `S id time` submitted, `F id time` finished, `C` this process commits.
"""

import asyncio
import os
import sys
from pathlib import Path

import uvloop

from stayfast.core.clock import SystemClock
from stayfast.stores.jobs.handover import SharedJobStore, open_job_store
from tests.services.job_store_rig import MODEL, new_job, result_of

N_CLIENTS, N_WORKERS = 6, 3


def write_line(*words: object) -> None:
    """One write: a killed process leaves whole lines."""
    os.write(1, f"{' '.join(map(str, words))}\n".encode())


async def submit_for_ever(store: SharedJobStore, name: str) -> None:
    """One client."""
    clock, n = SystemClock(), 0
    while True:
        job_id = f"{name}-{n}"
        n += 1
        (submitted,) = await store.submit([new_job(job_id, tenant=name, body=b"x" * 500, keep_s=1e6)])
        assert submitted.is_new
        assert submitted.job.id == job_id
        write_line("S", job_id, clock.now())


async def work_for_ever(store: SharedJobStore, worker: str) -> None:
    """One worker."""
    clock = SystemClock()
    while True:
        claims = await store.claim(worker, {MODEL: 8}, 3.0)
        for claimed, is_accepted in zip(claims, await store.finish([result_of(one) for one in claims]), strict=True):
            if is_accepted:
                write_line("F", claimed.job.id, clock.now())
        await store.sweep(max_claims=1000)
        if not claims:
            await store.wait("work", 0.05)


async def report_role(store: SharedJobStore) -> None:
    """Write once when it commits."""
    while not store.is_committer:
        await asyncio.sleep(0.01)
    write_line("C")


async def main(folder: str, name: str) -> None:
    """Until it is killed."""
    store = open_job_store(Path(folder), SystemClock(), reserve_bytes=0)
    async with asyncio.TaskGroup() as group:
        for n in range(N_CLIENTS):
            group.create_task(submit_for_ever(store, f"{name}.{n}"))
        for n in range(N_WORKERS):
            group.create_task(work_for_ever(store, f"{name}:1:{n}"))
        group.create_task(report_role(store))


if __name__ == "__main__":
    uvloop.run(main(*sys.argv[1:]))
