"""`stayfast explain`: shows where the time of one request went."""

import argparse
import shutil
import sys
from collections.abc import Callable
from urllib.parse import quote

import msgspec

from stayfast.cli import print_message
from stayfast.cli.admin_client import AdminRequestFailed, GatewayUnreachable, send
from stayfast.cli.requests import RequestListing
from stayfast.observe.waterfall import AttemptLane, StepSpent, Waterfall, format_s, format_spent
from stayfast.settings import read_environment

_BROKE = "  broke its budget"
_RED, _PLAIN = "\x1b[31m", "\x1b[0m"
_WAITING, _RUNNING, _STALLED, _FIRST = "·█▒▶"
_ASCII = str.maketrans({_WAITING: ".", _RUNNING: "=", _STALLED: "~", _FIRST: ">"})
_N_NAME, _N_FIGURES = 18, 26
_MAX_DEPTH = 3


def run(arguments: argparse.Namespace) -> int:
    """Print the waterfall. Status 1: the request is unknown or no longer stored; 2: the gateway is unreachable."""
    try:
        body = send(arguments, "GET", f"/admin/requests/{quote(_find_id(arguments), safe='')}")
    except _NothingFound:
        print_message("stayfast explain: the gateway has answered no request yet")
        return 1
    except (GatewayUnreachable, AdminRequestFailed) as error:
        print_message(f"stayfast explain: {error}")
        return 1 if isinstance(error, AdminRequestFailed) and error.status == 404 else 2
    if arguments.json:
        sys.stdout.write(body.decode() + "\n")
        return 0
    is_seen = sys.stdout.isatty() and "NO_COLOR" not in read_environment()
    text = draw_waterfall(msgspec.json.decode(body, type=Waterfall), shutil.get_terminal_size((100, 24)).columns,
                          is_red=is_seen)
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        text = text.translate(_ASCII).encode("ascii", "replace").decode()
    sys.stdout.write(text)
    return 0


class _NothingFound(Exception):
    """The gateway remembers no request."""


def _find_id(arguments: argparse.Namespace) -> str:
    """The given id, or that of the last or the slowest request. Raises _NothingFound."""
    if arguments.request_id is not None:
        return str(arguments.request_id)
    which = "slowest" if arguments.slowest else "all"
    found = msgspec.json.decode(send(arguments, "GET", f"/admin/requests?n=1&which={which}"), type=RequestListing).data
    if not found:
        raise _NothingFound
    return found[0].request_id


def draw_waterfall(waterfall: Waterfall, n_columns: int, *, is_red: bool = False) -> str:
    """The waterfall and the explanation as text with lines of `n_columns`."""
    n_bar = max(20, min(n_columns, 160) - _N_NAME - _N_FIGURES - 2)
    whole_ms = max(waterfall.ms, 0.001)

    def at(ms: float) -> int:
        return min(n_bar, max(0, round(ms / whole_ms * n_bar)))

    margin = " " * _N_NAME
    lines = [_title(waterfall), "", f"{margin}0{_ms(waterfall.ms):>{n_bar - 1}}"]
    for stage in waterfall.stages:
        bar = _bar(n_bar, at(stage.began_ms), at(stage.began_ms + stage.spent_ms), _RUNNING)
        figures = format_spent(stage.spent_ms / 1e3, stage.allowance_ms / 1e3)
        lines.append(f"  {stage.stage:{_N_NAME - 2}}{bar}  {figures}{_BROKE if stage.is_over else ''}")
    for number, lane in enumerate(waterfall.attempts, 1):
        name = f"{number} {lane.upstream}"[:_N_NAME - 3]
        bar = _lane_bar(lane, n_bar, at)
        lines.append(f"  {name:{_N_NAME - 2}}{bar}  {_describe_lane(lane)}".rstrip())
        for step in lane.steps:
            name = f"{'  ' * min(step.depth, _MAX_DEPTH)}{step.step}"[:_N_NAME - 5]
            bar = _bar(n_bar, at(step.began_ms), at(step.began_ms + step.spent_ms), _RUNNING)
            lines.append(f"    {name:{_N_NAME - 4}}{bar}  {_describe_step(step)}")
    if waterfall.attempts:
        lines.append(f"{margin}{_WAITING} waiting  {_FIRST} first token  {_RUNNING} answering  {_STALLED} stalled")
    # names and codes may come from clients or upstreams: no control characters
    printed = ["".join(char if char.isprintable() else "?" for char in line) for line in (*lines, "", *waterfall.verdict)]
    return "\n".join(f"{_RED}{line}{_PLAIN}" if is_red and line.endswith(_BROKE) else line for line in printed) + "\n"


def _title(waterfall: Waterfall) -> str:
    path = " -> ".join(name for name in (waterfall.route or waterfall.model, waterfall.upstream) if name)
    parts = [waterfall.request_id, path, waterfall.api, f"{waterfall.status} {waterfall.outcome}", _ms(waterfall.ms)]
    if waterfall.deadline_ms is not None:
        parts[-1] = format_spent(waterfall.ms / 1e3, waterfall.deadline_ms / 1e3)
    if waterfall.cost_usd is not None:
        parts.append(f"{waterfall.cost_usd:.6f} USD")
    return "  ".join(parts)


def _bar(n_bar: int, begin: int, end: int, mark: str) -> str:
    end = max(end, begin + 1) if begin < n_bar else n_bar
    begin = min(begin, n_bar - 1)
    return (" " * begin + mark * (end - begin)).ljust(n_bar)


def _lane_bar(lane: AttemptLane, n_bar: int, at: Callable[[float], int]) -> str:
    first_ms = lane.first_token_ms
    cells = list(_bar(n_bar, at(lane.began_ms), at(lane.ended_ms), _WAITING))
    if first_ms is not None:
        first = min(at(first_ms), n_bar - 1)
        for cell in range(first, max(at(lane.ended_ms), first + 1)):
            cells[cell] = _RUNNING
        for stall in lane.stalls:
            for cell in range(at(stall.at_ms), at(stall.at_ms + stall.ms)):
                cells[cell] = _STALLED
        cells[first] = _FIRST
    return "".join(cells)


def _describe_lane(lane: AttemptLane) -> str:
    status = f" {lane.upstream_status}" if lane.upstream_status is not None else ""
    parts = [f"{lane.fault}{status}" if lane.fault is not None else "lost the race" if lane.is_lost else lane.outcome]
    if lane.output_tokens or (lane.output_tokens == 0 and not lane.is_lost):
        parts.append(f"{lane.output_tokens} tokens")
    return ", ".join(parts)


def _describe_step(step: StepSpent) -> str:
    figures = format_spent(step.spent_ms / 1e3, step.allowance_ms / 1e3)
    parts = [figures] if step.how == "ok" else [figures, step.how]
    if step.cost_usd is not None:
        parts.append(f"{step.cost_usd:.6f} USD")
    return ", ".join(parts) + (_BROKE if step.is_over else "")


def _ms(ms: float) -> str:
    return format_s(ms / 1e3)
