"""`stayfast work`: run the jobs of the store in this process, without listening."""

import argparse
from collections.abc import Mapping

from stayfast import __version__, compose
from stayfast.cli import print_message
from stayfast.lab.simulated.settings import KINDS
from stayfast.settings import (
    Override,
    Settings,
    SettingsError,
    load_settings,
    overrides_from,
    read_environment,
    read_settings_file,
)
from stayfast.workers.supervisor import EXIT_BAD_SETTINGS


def run(arguments: argparse.Namespace) -> int:
    """Exit status 0 after SIGTERM or SIGINT: jobs that did not end in time are back in the queue."""
    variables = read_environment()

    def load() -> Settings:
        return load_work_settings(arguments, variables)

    try:
        settings = load()
    except SettingsError as error:
        print_message(str(error))
        return EXIT_BAD_SETTINGS
    return compose.work(settings, reload=load, on_started=lambda: print_message(
        f"stayfast {__version__} runs jobs of: {', '.join(settings.routes)}"))


def load_work_settings(arguments: argparse.Namespace, variables: Mapping[str, str]) -> Settings:
    """The gateway's settings, for a process that runs jobs whatever `jobs.workers` is. Raises SettingsError."""
    overrides = [*overrides_from(variables), Override(("jobs", "workers"), "inside", "stayfast work")]
    if arguments.concurrency is not None:
        overrides.append(Override(("jobs", "concurrency"), arguments.concurrency, "--concurrency"))
    return load_settings(read_settings_file(arguments.config, variables), variables, overrides, kinds=KINDS)
