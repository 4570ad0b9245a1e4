"""`stayfast jobs`: the queue of a running gateway: list, show, retry, cancel, the dead-letter list, and failed webhooks."""

import argparse
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, urlencode

import msgspec

from stayfast.cli import print_message
from stayfast.cli.admin_client import AdminRequestFailed, GatewayUnreachable, send
from stayfast.core.clock import SystemClock
from stayfast.core.jobs import JobState

_HEAD = ("JOB", "STATE", "MODEL", "KEY", "AGE", "CLAIMS", "WHY")
_QUEUE_HEAD = ("MODEL", "QUEUED", "RUNNING", "LATER", "OLDEST")
_WEBHOOK_HEAD = ("EVENT", "STATE", "OF", "AGE", "ATTEMPTS", "WHY")
_LABELS = {"token": "claims", "n_tokens": "tokens_about"}
_DEAD = JobState.DEAD.value


def run(arguments: argparse.Namespace) -> int:
    """Run one action. Exit status 1: refused or unknown; 2: the gateway is unreachable."""
    actions: dict[str, Callable[[argparse.Namespace], None]] = {
        "list": _print_list, "dead": _print_list, "show": _show, "retry": _change, "cancel": _change,
        "webhooks": _print_webhooks}
    try:
        actions[arguments.action](arguments)
    except (GatewayUnreachable, AdminRequestFailed) as error:
        print_message(f"stayfast jobs {arguments.action}: {error}")
        return 2 if isinstance(error, GatewayUnreachable) else 1
    return 0


def _print_list(arguments: argparse.Namespace) -> None:
    wanted = {"limit": str(arguments.limit)}
    if arguments.action == "dead":
        wanted["state"] = _DEAD
    elif arguments.state is not None:
        wanted["state"] = arguments.state
    for name in ("tenant", "batch", "after"):
        if getattr(arguments, name) is not None:
            wanted[name] = getattr(arguments, name)
    body = send(arguments, "GET", f"/admin/jobs?{urlencode(wanted)}")
    listing = format_jobs(msgspec.json.decode(body), SystemClock().wall()) if not arguments.json else body.decode() + "\n"
    sys.stdout.write(listing)


def _show(arguments: argparse.Namespace) -> None:
    body = send(arguments, "GET", f"/admin/jobs/{quote(arguments.job, safe='')}")
    if arguments.json:
        sys.stdout.write(body.decode() + "\n")
        return
    sys.stdout.write(format_job(msgspec.json.decode(body), SystemClock().wall()))


def _change(arguments: argparse.Namespace) -> None:
    for job in arguments.job:
        body = send(arguments, "POST", f"/admin/jobs/{quote(job, safe='')}/{arguments.action}")
        state = msgspec.json.decode(body)
        word = "is being cancelled" if state.get("is_cancelling") else f"is {state['state']}"
        sys.stdout.write(body.decode() + "\n" if arguments.json else f"{job} {word}\n")


def _print_webhooks(arguments: argparse.Namespace) -> None:
    for event in arguments.retry or ():
        send(arguments, "POST", f"/admin/webhooks/{quote(event, safe='')}/retry")
    body = send(arguments, "GET", "/admin/webhooks")
    listing = format_webhooks(msgspec.json.decode(body)["data"], SystemClock().wall())
    sys.stdout.write(body.decode() + "\n" if arguments.json else listing)


def format_job(job: dict[str, Any], now: float) -> str:
    """One job, a line for each field that has a value; then how to see its last request."""
    lines = []
    for name, value in job.items():
        if value in (None, ""):
            continue
        text = str(value)
        if isinstance(value, dict):
            text = ", ".join(f"{key} {item}" for key, item in value.items() if item)
        elif name.endswith("_at"):
            text = format_instant(value, now)
        lines.append(f"{_LABELS.get(name, name):14}{text}\n")
    if job.get("request_id"):
        lines.append(f"\nWhere its time went: stayfast explain {job['request_id']}\n")
    return "".join(lines)


def format_webhooks(reports: list[dict[str, Any]], now: float) -> str:
    """The webhooks that are not confirmed, the failed ones first."""
    if not reports:
        return "All webhooks are confirmed.\n"
    return format_table([_WEBHOOK_HEAD, *(
        (report["id"], report["status"], report["subject"], format_age(report["created_at"], now), str(report["attempts"]),
         report["why"]) for report in reports)])


def format_jobs(listing: dict[str, Any], now: float) -> str:
    """The queues by route, then the jobs, newest first."""
    parts = []
    if listing["queues"]:
        parts.append(format_table([_QUEUE_HEAD, *(
            (queue["model"], str(queue["n_queued"]), str(queue["n_running"]), str(queue["n_deferred"]),
             format_age(queue["oldest_at"], now)) for queue in listing["queues"])]))
    jobs = listing["data"]
    if not jobs:
        return "\n".join([*parts, "No matching jobs.\n"])
    parts.append(format_table([_HEAD, *(
        (job["id"], job["state"], job["model"], job.get("tenant", "-"), format_age(job["created_at"], now),
         str(job.get("token", 0)), job.get("why", "")) for job in jobs)]))
    if listing["has_more"]:
        parts.append(f"More: --after {jobs[-1]['id']}\n")
    return "\n".join(parts)


def format_table(rows: list[tuple[str, ...]]) -> str:
    """Columns of equal width; control characters, which may come from clients, are replaced."""
    clean = [tuple("".join(char if char.isprintable() else "?" for char in cell) for cell in row) for row in rows]
    widths = [max(len(row[column]) for row in clean) for column in range(len(clean[0]))]
    return "".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() + "\n"
                   for row in clean)


def format_instant(value: float, now: float) -> str:
    """An instant in UTC, and how far it is away."""
    text = datetime.fromtimestamp(value, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return f"{text} ({format_age(value, now)} ago)" if value <= now else f"{text} (in {format_age(2 * now - value, now)})"


def format_age(since: float | None, now: float) -> str:
    """45 s, 12 min, 3.5 h, 2.1 d."""
    if since is None:
        return "-"
    age_s = max(0.0, now - since)
    for limit_s, unit_s, unit in ((120, 1, "s"), (7200, 60, "min")):
        if age_s < limit_s:
            return f"{age_s / unit_s:.0f} {unit}"
    return f"{age_s / 3600:.1f} h" if age_s < 172_800 else f"{age_s / 86_400:.1f} d"
