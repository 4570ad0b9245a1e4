"""`stayfast prove`: reproduce published claims on this machine."""

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
from stayfast.cli.bench import describe_machine, raise_socket_limit
from stayfast.cli.terminal import ProgressLine, format_time_left, style_of_output
from stayfast.core.clock import Clock, SystemClock
from stayfast.lab.claims.registry import claims
from stayfast.lab.harness.claim import Claim, ClaimResult, Conditions, NeedsData, SetUpFailed, Verdict, format_text, to_json

EXIT_FALLS_SHORT = 1
EXIT_USAGE = 2
EXIT_INCONCLUSIVE = 6
EXIT_NEEDS_DATA = EXIT_NOTHING_TO_DO
EXIT_BY_SIGNAL = 128  # plus the signal's number
MAX_SEED = 2**32 - 1  # the simulator's
_MIN_FOR_ESTIMATE = 3  # finished proofs before the remaining time is estimated


def run(arguments: argparse.Namespace) -> int:
    """Run the named proofs. Returns the exit status: 0 if all hold, 1 if one falls short, else 6 if one is inconclusive,
    else 5 if one that was named needs data; 130 if interrupted.
    """
    known = claims()
    if arguments.list:
        ink = style_of_output()
        sys.stdout.write("".join(f"{line}\n" for name, claim in known.items()
                                 for line in ink.wrap(f"{name:10} {claim.statement}", 11)))
        return 0
    error = _find_usage_error(arguments, known)
    if error is not None:
        print_message(f"stayfast prove: {error}")
        return EXIT_USAGE
    names = list(known) if arguments.all else arguments.name
    try:
        with _open_lock() as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                print_message("stayfast prove: waiting: another proof is running on this machine, and the two would "
                              "disturb each other")
                fcntl.flock(lock, fcntl.LOCK_EX)
            return _run_claims([known[name] for name in names], arguments)
    except KeyboardInterrupt:
        print_message("stayfast prove: interrupted; its servers were stopped")
        return EXIT_BY_SIGNAL + signal.SIGINT


def _find_usage_error(arguments: argparse.Namespace, known: Mapping[str, Claim]) -> str | None:
    available = f"available: {', '.join(known)}"
    unknown = [name for name in arguments.name if name not in known]
    if unknown:
        return f"unknown proof {unknown[0]!r}; {available}"
    if not arguments.name and not arguments.all:
        return f"name a proof, or use --all; {available}"
    if not 0 <= arguments.seed <= MAX_SEED:
        return f"--seed must be from 0 to {MAX_SEED}, not {arguments.seed}"
    return None


def _open_lock() -> TextIO:
    """The file that all proofs on this machine lock. It stays empty."""
    path = Path(tempfile.gettempdir()) / "stayfast-prove.lock"
    try:
        return path.open("a")
    except PermissionError:  # owned by another user; read access is enough for a lock
        return path.open()


def _run_claims(claims: Sequence[Claim], arguments: argparse.Namespace) -> int:
    progress = _Progress(claims, SystemClock())
    data = None if arguments.data is None else Path(arguments.data)
    conditions = Conditions(arguments.quick, arguments.seed, progress.show, data)
    ink = style_of_output()
    raise_socket_limit()
    findings: list[dict[str, Any]] = []
    by_verdict: dict[Verdict, list[str]] = {verdict: [] for verdict in Verdict}
    without_data = []
    for claim in claims:
        progress.begin(claim)
        finding = _run_claim(claim, conditions, progress)
        if finding is None:
            without_data.append(claim.name)
            continue
        by_verdict[finding.verdict].append(claim.name)
        progress.line.clear()
        if arguments.json:
            findings.append(to_json(claim, finding, conditions, describe_machine(), SystemClock().wall()))
        else:
            sys.stdout.write(format_text(claim, finding, conditions, describe_machine(), ink))
            sys.stdout.flush()
    if arguments.json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(findings), indent=2).decode() + "\n")
    if without_data:
        progress.line.note(f"stayfast prove: not run, as they need data sets: {', '.join(without_data)}; name their "
                           "folder with --data (docs/proofs.md)")
    if len(claims) > 1:
        for verdict in (Verdict.FALLS_SHORT, Verdict.INCONCLUSIVE):
            if by_verdict[verdict]:
                progress.line.note(f"stayfast prove: {verdict}: {', '.join(by_verdict[verdict])}")
    return _exit_status(by_verdict, misses_data=bool(without_data) and not arguments.all)


def _exit_status(by_verdict: Mapping[Verdict, Sequence[str]], *, misses_data: bool) -> int:
    if by_verdict[Verdict.FALLS_SHORT]:
        return EXIT_FALLS_SHORT
    if by_verdict[Verdict.INCONCLUSIVE]:
        return EXIT_INCONCLUSIVE
    return EXIT_NEEDS_DATA if misses_data else 0


class _Progress:
    """Reports the running proof and its steps: on a terminal one line that is rewritten, otherwise a line per step."""

    def __init__(self, claims: Sequence[Claim], clock: Clock) -> None:
        self.line = ProgressLine()
        self._claims, self._clock = claims, clock
        self._began_at = clock.now()
        self._n_started = 0
        self._name = ""

    def begin(self, claim: Claim) -> None:
        self._n_started += 1
        self._name = claim.name
        position = f" ({self._n_started} of {len(self._claims)})" if len(self._claims) > 1 else ""
        if self.line.is_terminal:
            self.show("starting")
        else:
            self.line.note(f"{claim.name}{position}:")

    def show(self, step: str) -> None:
        """Show the current step. May be called on any thread, by one at a time."""
        if not self.line.is_terminal:
            self.line.note(f"  {step}")
            return
        n, n_done = len(self._claims), self._n_started - 1
        estimate = ""
        if n_done >= _MIN_FOR_ESTIMATE:  # coarse: proofs take from a second to minutes
            estimate = f", about {format_time_left((self._clock.now() - self._began_at) / n_done * (n - n_done))} left"
        self.line.show([f"{self._n_started} of {n}{estimate}" * (n > 1), f"{self._name}: {step}"],
                       n_done / n if n > 1 else None)


def _run_claim(claim: Claim, conditions: Conditions, progress: _Progress) -> ClaimResult | None:
    """None if the claim needs `--data`, which was not given."""
    try:
        return uvloop.run(_run_until_signal(claim, conditions))
    except NeedsData as missing:
        progress.line.note(f"{claim.name}: not run: {missing}")
        return None
    except SetUpFailed as failed:
        return ClaimResult((), spoiled=str(failed))


async def _run_until_signal(claim: Claim, conditions: Conditions) -> ClaimResult:
    """SIGTERM cancels the claim, so that it stops its servers. The loop's runner does the same for SIGINT."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel, signal.SIGTERM)
    try:
        return await claim.run(conditions)
    except asyncio.CancelledError as cancelled:
        number, word = ((signal.SIGTERM, "terminated") if signal.SIGTERM in cancelled.args else
                        (signal.SIGINT, "interrupted"))
        sys.stderr.write("\n" * sys.stderr.isatty())  # keep the progress line
        print_message(f"stayfast prove: {word}; its servers were stopped")
        os._exit(EXIT_BY_SIGNAL + number)  # a normal exit would wait for minutes for a thread that computes virtual time
