"""Which store holds the jobs: an SQLite file of this machine, or PostgreSQL."""

import asyncio
from importlib import import_module
from pathlib import Path

from stayfast.core.clock import Clock
from stayfast.core.setting import Secret
from stayfast.jobs.config import JobsConfig
from stayfast.stores.base import StoreUnavailable
from stayfast.stores.jobs.base import FileBodies, JobStore
from stayfast.stores.jobs.file_bodies import DiskFileBodies
from stayfast.stores.jobs.handover import SharedJobStore


async def open_job_stores(config: JobsConfig, folder: Path, clock: Clock) -> tuple[JobStore, FileBodies]:
    """The store and the contents of its files. Raises StoreUnavailable with the cause."""
    if config.store is not None:
        return await _open_postgres(config.store, clock)
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


async def _open_postgres(url: Secret, clock: Clock) -> tuple[JobStore, FileBodies]:
    try:
        module = import_module("stayfast.stores.jobs.postgres.store")  # asyncpg is an extra
    except ModuleNotFoundError as error:
        raise StoreUnavailable(f"{error.name} is not installed: pip install '.[postgres]' in Stayfast's checkout") from None
    try:
        stores: tuple[JobStore, FileBodies] = await module.open_postgres_store(url.reveal(), clock)
    except ValueError as error:
        raise StoreUnavailable(f"jobs.store: {error}") from None
    return stores
