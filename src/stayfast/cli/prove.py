"""`stayfast prove`: run published claims again, on this machine, now."""

import argparse
import asyncio
import fcntl
import os
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import msgspec
import uvloop

from stayfast.cli import say
from stayfast.cli.bench import allow_sockets, machine
from stayfast.core.clock import SystemClock
from stayfast.lab.claims.registry import claims
from stayfast.lab.harness.claim import Claim, Conditions, Finding, NeedsData, SetUpFailed, as_json, as_text
from stayfast.lab.report.table import Ink
from stayfast.settings import environment

EXIT_FALLS_SHORT = 1
EXIT_USAGE = 2
EXIT_BY_SIGNAL = 128  # and its number
MAX_SEED = 2**32 - 1  # the simulator's


def run(arguments: argparse.Namespace) -> int:
    """Run the proofs named; 0 when all hold, 1 when one falls short, 130 when interrupted. Of all, those that need data
    which was not named are skipped."""
    known = claims()
    if arguments.list:
        sys.stdout.write("".join(f"{name:10} {claim.says}\n" for name, claim in known.items()))
        return 0
    wrong = _what_is_wrong(arguments, known)
    if wrong is not None:
        say(f"stayfast prove: {wrong}")
        return EXIT_USAGE
    names = list(known) if arguments.all else arguments.name
    try:
        with _lock() as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                say("stayfast prove: another proof is running on this machine; waiting for it, two would measure each other")
                fcntl.flock(lock, fcntl.LOCK_EX)
            return _prove([known[name] for name in names], arguments)
    except KeyboardInterrupt:
        say("stayfast prove: interrupted; what it had started is ended")
        return EXIT_BY_SIGNAL + signal.SIGINT


def _what_is_wrong(arguments: argparse.Namespace, known: Mapping[str, Claim]) -> str | None:
    there_are = f"there are {', '.join(known)}"
    unknown = [name for name in arguments.name if name not in known]
    if unknown:
        return f"there is no proof {unknown[0]!r}; {there_are}"
    if not arguments.name and not arguments.all:
        return f"name a proof, or say --all; {there_are}"
    if not 0 <= arguments.seed <= MAX_SEED:
        return f"--seed must be from 0 to {MAX_SEED}, not {arguments.seed}"
    return None


def _lock() -> TextIO:
    """The one file of this machine that all proofs lock. Nothing is written to it."""
    path = Path(tempfile.gettempdir()) / "stayfast-prove.lock"
    try:
        return path.open("a")
    except PermissionError:  # another user's; a lock needs no more than to read
        return path.open()


def _prove(asked: Sequence[Claim], arguments: argparse.Namespace) -> int:
    conditions = Conditions(arguments.quick, arguments.seed, lambda told: say(f"  {told}"),
                            None if arguments.data is None else Path(arguments.data))
    ink = Ink.choose(is_terminal=sys.stdout.isatty(), no_color=environment().get("NO_COLOR"))
    allow_sockets()
    told: list[dict[str, Any]] = []
    hold, skipped = True, []
    for claim in asked:
        say(f"{claim.name}:")
        finding = _found(claim, conditions, skips=arguments.all)
        if finding is None:
            skipped.append(claim.name)
            continue
        hold = hold and finding.holds
        if arguments.json:
            told.append(as_json(claim, finding, conditions, machine(), SystemClock().wall()))
        else:
            sys.stdout.write(as_text(claim, finding, conditions, machine(), ink))
            sys.stdout.flush()
    if arguments.json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(told), indent=2).decode() + "\n")
    if skipped:
        say(f"stayfast prove: skipped for want of data, and neither held nor short: {', '.join(skipped)}")
    return 0 if hold else EXIT_FALLS_SHORT


def _found(claim: Claim, conditions: Conditions, *, skips: bool) -> Finding | None:
    """Its finding; None: it needs data that nobody named, and may be skipped."""
    try:
        return uvloop.run(_until_signal(claim, conditions))
    except NeedsData as missing:
        if not skips:
            return Finding((), spoiled=str(missing))
        say(f"  skipped: {missing}")
        return None
    except SetUpFailed as failed:
        return Finding((), spoiled=str(failed))


async def _until_signal(claim: Claim, conditions: Conditions) -> Finding:
    """Its finding. SIGTERM cancels it, so that it ends its servers; of SIGINT the loop's runner does the same."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel, signal.SIGTERM)
    try:
        return await claim.run(conditions)
    except asyncio.CancelledError as cancelled:
        number, word = ((signal.SIGTERM, "terminated") if signal.SIGTERM in cancelled.args else
                        (signal.SIGINT, "interrupted"))
        say(f"stayfast prove: {word}; what it had started is ended")
        os._exit(EXIT_BY_SIGNAL + number)  # a thread that computes in virtual time would be waited for, for minutes
