"""Which store holds the jobs: an SQLite file of this machine, or PostgreSQL."""

import asyncio
from pathlib import Path

from stayfast.core.clock import Clock
from stayfast.jobs.config import JobsConfig
from stayfast.stores.base import StoreUnavailable
from stayfast.stores.jobs.base import FileBodies, JobStore
from stayfast.stores.jobs.file_bodies import DiskFileBodies
from stayfast.stores.jobs.handover import SharedJobStore


async def open_job_stores(config: JobsConfig, folder: Path, clock: Clock) -> tuple[JobStore, FileBodies]:
    """The store and the contents of its files. Raises StoreUnavailable with the cause."""
    try:
        await asyncio.to_thread(folder.mkdir, mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StoreUnavailable(f"{folder}: {error.strerror}") from None
    store = SharedJobStore(folder, clock)
    try:
        await store.depths()
    except StoreUnavailable:
        await store.close()
        raise
    return store, DiskFileBodies(folder / "files", clock)
