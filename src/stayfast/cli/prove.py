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

from stayfast.cli import EXIT_NOTHING_TO_DO, print_message
from stayfast.cli.bench import allow_sockets, machine
from stayfast.cli.terminal import ProgressLine, ink_of_output, time_left
from stayfast.core.clock import Clock, SystemClock
from stayfast.lab.claims.registry import claims
from stayfast.lab.harness.claim import Claim, Conditions, Finding, NeedsData, SetUpFailed, as_json, as_text

EXIT_FALLS_SHORT = 1
EXIT_USAGE = 2
EXIT_NEEDS_DATA = EXIT_NOTHING_TO_DO
EXIT_BY_SIGNAL = 128  # and its number
MAX_SEED = 2**32 - 1  # the simulator's
_LEAST_FOR_ESTIMATE = 3  # proofs that are over before the time of the others is guessed at


def run(arguments: argparse.Namespace) -> int:
    """Run the proofs named; 0 when all hold, 1 when one falls short, 5 when one could not be run for want of data, 130 when
    interrupted. Of all, those that need data which was not named are skipped."""
    known = claims()
    if arguments.list:
        ink = ink_of_output()
        sys.stdout.write("".join(f"{line}\n" for name, claim in known.items()
                                 for line in ink.wrap(f"{name:10} {claim.says}", 11)))
        return 0
    wrong = _what_is_wrong(arguments, known)
    if wrong is not None:
        print_message(f"stayfast prove: {wrong}")
        return EXIT_USAGE
    names = list(known) if arguments.all else arguments.name
    try:
        with _lock() as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                print_message("stayfast prove: another proof is running on this machine; waiting for it, two would measure "
                              "each other")
                fcntl.flock(lock, fcntl.LOCK_EX)
            return _prove([known[name] for name in names], arguments)
    except KeyboardInterrupt:
        print_message("stayfast prove: interrupted; what it had started is ended")
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


def _prove(claims: Sequence[Claim], arguments: argparse.Namespace) -> int:
    run = _Run(claims, SystemClock())
    data = None if arguments.data is None else Path(arguments.data)
    conditions = Conditions(arguments.quick, arguments.seed, run.show, data)
    ink = ink_of_output()
    allow_sockets()
    findings: list[dict[str, Any]] = []
    hold, without_data = True, []
    for claim in claims:
        run.begin(claim)
        finding = _found(claim, conditions, run)
        if finding is None:
            without_data.append(claim.name)
            continue
        hold = hold and finding.holds
        run.line.clear()
        if arguments.json:
            findings.append(as_json(claim, finding, conditions, machine(), SystemClock().wall()))
        else:
            sys.stdout.write(as_text(claim, finding, conditions, machine(), ink))
            sys.stdout.flush()
    if arguments.json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(findings), indent=2).decode() + "\n")
    if without_data:
        run.line.note(f"stayfast prove: not run for want of data, and neither held nor short: {', '.join(without_data)}; "
                      "--data names its folder (docs/proofs.md)")
    if not hold:
        return EXIT_FALLS_SHORT
    return EXIT_NEEDS_DATA if without_data and not arguments.all else 0


class _Run:
    """Which of the proofs is running, and how far it is: lines, or one line of a terminal that is rewritten."""

    def __init__(self, claims: Sequence[Claim], clock: Clock) -> None:
        self.line = ProgressLine()
        self._claims, self._clock = claims, clock
        self._began_at = clock.now()
        self._n_started = 0
        self._name = ""

    def begin(self, claim: Claim) -> None:
        self._n_started += 1
        self._name = claim.name
        of = f" ({self._n_started} of {len(self._claims)})" if len(self._claims) > 1 else ""
        if self.line.is_terminal:
            self.show("begins")
        else:
            self.line.note(f"{claim.name}{of}:")

    def show(self, what: str) -> None:
        """What the proof does now. From any thread, but from one at a time."""
        if not self.line.is_terminal:
            self.line.note(f"  {what}")
            return
        n, n_over = len(self._claims), self._n_started - 1
        left = ""
        if n_over >= _LEAST_FOR_ESTIMATE:  # a proof takes from a second to minutes: a mean is better than nothing
            left = f", about {time_left((self._clock.now() - self._began_at) / n_over * (n - n_over))} left"
        self.line.show([f"{self._n_started} of {n}{left}" * (n > 1), f"{self._name}: {what}"], n_over / n if n > 1 else None)


def _found(claim: Claim, conditions: Conditions, run: _Run) -> Finding | None:
    """Its finding; None: it was not run, as it needs data that nobody named."""
    try:
        return uvloop.run(_until_signal(claim, conditions))
    except NeedsData as missing:
        run.line.note(f"{claim.name}: not run: {missing}")
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
        sys.stderr.write("\n" * sys.stderr.isatty())  # the line of progress stays as it was
        print_message(f"stayfast prove: {word}; what it had started is ended")
        os._exit(EXIT_BY_SIGNAL + number)  # a thread that computes in virtual time would be waited for, for minutes
