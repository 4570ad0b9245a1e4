"""The store of the settings, for commands that work without a gateway (`--store`)."""

import argparse
import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from stayfast.compose.job_stores import open_job_stores
from stayfast.compose.jobs import jobs_folder
from stayfast.core.clock import SystemClock
from stayfast.lab.simulated.settings import KINDS
from stayfast.settings import load_settings, overrides_from, read_environment, read_settings_file
from stayfast.stores.jobs.base import JobStore

T = TypeVar("T")


def use_store(arguments: argparse.Namespace, work: Callable[[JobStore], Awaitable[T]]) -> T:
    """The result of `work` on the store of `--config`. A gateway may use the store at the same time. Raises SettingsError,
    StoreUnavailable.
    """
    variables = read_environment()
    settings = load_settings(read_settings_file(arguments.config, variables), variables, overrides_from(variables),
                             kinds=KINDS)

    async def main() -> T:
        store, _ = await open_job_stores(settings.jobs, jobs_folder(settings.jobs, variables), SystemClock())
        try:
            return await work(store)
        finally:
            await asyncio.sleep(0)  # notifications are sent by tasks
            await store.close()

    return asyncio.run(main())
