"""`stayfast prove`: run published claims again, on this machine, now."""

import argparse
import fcntl
import sys
import tempfile
from collections.abc import Sequence
from math import isnan
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from stayfast.cli import say
from stayfast.cli.bench import machine
from stayfast.core.clock import SystemClock
from stayfast.prove.claim import Claim, Conditions, Figure, Finding, SetUpFailed
from stayfast.prove.claims import claims

EXIT_FALLS_SHORT = 1
EXIT_USAGE = 2


def run(arguments: argparse.Namespace) -> int:
    """Run the proofs named; 0 when all hold, 1 when one falls short."""
    known = claims()
    if arguments.list:
        sys.stdout.write("".join(f"{name:10} {claim.says}\n" for name, claim in known.items()))
        return 0
    names = arguments.name or list(known)
    unknown = [name for name in names if name not in known]
    if unknown or (not arguments.name and not arguments.all):
        wrong = f"there is no proof {unknown[0]!r}; " if unknown else "name a proof, or say --all; "
        say(f"stayfast prove: {wrong}there are {', '.join(known)}")
        return EXIT_USAGE
    with (Path(tempfile.gettempdir()) / "stayfast-prove.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            say("stayfast prove: another proof is running on this machine; waiting for it, two would measure each other")
            fcntl.flock(lock, fcntl.LOCK_EX)
        return _prove([known[name] for name in names], arguments)


def _prove(asked: Sequence[Claim], arguments: argparse.Namespace) -> int:
    conditions = Conditions(arguments.quick, arguments.seed, lambda told: say(f"  {told}"))
    told: list[dict[str, Any]] = []
    hold = True
    for claim in asked:
        say(f"{claim.name}: {claim.says}")
        finding = _found(claim, conditions)
        hold = hold and finding.holds
        if arguments.json:
            told.append(_as_json(claim, finding, conditions))
        else:
            sys.stdout.write(_as_text(claim, finding, conditions))
            sys.stdout.flush()
    if arguments.json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(told), indent=2).decode() + "\n")
    return 0 if hold else EXIT_FALLS_SHORT


def _found(claim: Claim, conditions: Conditions) -> Finding:
    try:
        return uvloop.run(claim.run(conditions))
    except SetUpFailed as failed:
        return Finding((), spoiled=str(failed))


def _as_text(claim: Claim, finding: Finding, conditions: Conditions) -> str:
    width = max((len(figure.name) for figure in finding.figures), default=0)
    lines = [f"\n{claim.says}"]
    for figure in finding.figures:
        goal = "" if figure.goal is None else f"goal {figure.sense} {_number(figure.goal)}"
        mark = "" if figure.goal is None else ("holds" if figure.holds else "FALLS SHORT")
        value = f"{_number(figure.value):>9} {figure.unit:4} {_spread(figure):18}"
        lines.append(f"  {figure.name:{width}}  {value} {goal:18} {mark}".rstrip())
    lines += [f"  {note}" for note in finding.notes]
    if finding.spoiled is not None:
        lines.append(f"  proves nothing: {finding.spoiled}")
    about = ", ".join(f"{name} {value}" for name, value in machine().items())
    lines.append(f"  {about}")
    extent = "quick run, " if conditions.is_quick else ""
    lines.append(f"{claim.name}: {'holds' if finding.holds else 'falls short'} ({extent}seed {conditions.seed})\n")
    return "\n".join(lines) + "\n"


def _as_json(claim: Claim, finding: Finding, conditions: Conditions) -> dict[str, Any]:
    return {"name": claim.name, "says": claim.says, "holds": finding.holds, "quick": conditions.is_quick,
            "seed": conditions.seed, "at": SystemClock().wall(), "machine": machine(), "spoiled": finding.spoiled,
            "figures": [{**msgspec.structs.asdict(figure), "holds": figure.holds} for figure in finding.figures],
            "notes": finding.notes}


def _spread(figure: Figure) -> str:
    if figure.low is None and figure.high is None:
        return ""
    low, high = figure.low, figure.high
    return f"({_number(low) if low is not None else ''} to {_number(high if high is not None else figure.value)})"


def _number(value: float) -> str:
    if isnan(value) or value == int(value) or abs(value) >= 1000:
        return f"{value:.0f}"
    return f"{value:.3g}" if abs(value) >= 1 else f"{value:.2g}"
