"""Which store holds the jobs: an SQLite file of this machine, or PostgreSQL."""

import asyncio
from importlib import import_module
from pathlib import Path
from typing import Any

from stayfast.core.clock import Clock
from stayfast.core.setting import Secret
from stayfast.jobs.config import JobsConfig
from stayfast.stores.base import StoreUnavailable
from stayfast.stores.jobs.base import FileBodies, JobStore
from stayfast.stores.jobs.file_bodies import DiskFileBodies
from stayfast.stores.jobs.handover import SharedJobStore


async def open_job_stores(config: JobsConfig, folder: Path, clock: Clock) -> tuple[JobStore, FileBodies]:
    """The store and the contents of its files. Raises StoreUnavailable with the cause."""
    store, files = await (_open_embedded(folder, clock) if config.store is None else _open_postgres(config.store, clock))
    if config.wake is None:
        return store, files
    redis = _import_store("stayfast.stores.jobs.wakeups_redis", "jobs.wake", "redis")
    return redis.wake_by_redis(store, config.wake.reveal(), clock), files


async def _open_postgres(url: Secret, clock: Clock) -> tuple[JobStore, FileBodies]:
    postgres = _import_store("stayfast.stores.jobs.postgres.store", "jobs.store", "postgres")
    try:
        store, files = await postgres.open_postgres_store(url.reveal(), clock)
    except ValueError as error:
        raise StoreUnavailable(f"jobs.store: {error}") from None
    return store, files


def _import_store(module: str, setting: str, extra: str) -> Any:
    """A module that needs a package which only an extra brings."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise StoreUnavailable(f"{setting} needs the package {error.name}: pip install '.[{extra}]'") from None


async def _open_embedded(folder: Path, clock: Clock) -> tuple[JobStore, FileBodies]:
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
