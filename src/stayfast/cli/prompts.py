"""`stayfast prompts`: versions of system prompts of a running gateway, what they cost, and how they differ."""

import argparse
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from urllib.parse import quote

import msgspec

from stayfast.cli import print_message
from stayfast.cli.admin_client import AdminRequestFailed, GatewayUnreachable, send
from stayfast.cli.jobs import format_table
from stayfast.core.prompt_versions import PromptHunk, PromptList, PromptReport, PromptVersionRow
from stayfast.core.units import format_count, format_seconds, format_share, make_printable

_NOTHING = "-"
_HEAD = ("ROUTE", "PROMPT", "TOKENS", "OF PROMPT", "REQUESTS", "CACHED", "TTFT P50", "P95", "USD A DAY", "FIRST SEEN",
         "NOTES")
_N_DIGITS = 12


def run(arguments: argparse.Namespace) -> int:
    """Run one action. Exit status 1: refused or unknown; 2: the gateway is unreachable."""
    actions: dict[str, Callable[[argparse.Namespace], int]] = {"list": _list, "show": _show, "diff": _show}
    try:
        return actions[arguments.action](arguments)
    except (GatewayUnreachable, AdminRequestFailed) as error:
        print_message(f"stayfast prompts {arguments.action}: {error}")
        return 1 if isinstance(error, AdminRequestFailed) else 2


def _list(arguments: argparse.Namespace) -> int:
    body = send(arguments, "GET", "/admin/prompts")
    rows = [row for row in msgspec.json.decode(body, type=PromptList).data if arguments.route in (None, row.route)]
    if arguments.json:
        sys.stdout.write(msgspec.json.encode(PromptList(tuple(rows))).decode() + "\n")
    elif not rows:
        print_message("No request with a system prompt or tools in the last hour (setting prompts.track).")
        return 1
    else:
        sys.stdout.write(format_versions(rows))
    return 0


def _show(arguments: argparse.Namespace) -> int:
    """Print one version, or its difference from another."""
    other = getattr(arguments, "against", None)
    against = f"?against={quote(other, safe='')}" if other is not None else ""
    body = send(arguments, "GET", f"/admin/prompts/{quote(arguments.prompt, safe='')}{against}")
    if arguments.json:
        sys.stdout.write(body.decode() + "\n")
        return 0
    report = msgspec.json.decode(body, type=PromptReport)
    lines = format_difference(report) if arguments.action == "diff" else format_version(report)
    sys.stdout.write("\n".join(make_printable(line) for line in lines) + "\n")
    return 0


def format_versions(rows: list[PromptVersionRow]) -> str:
    """A table: one line for each version."""
    return format_table([_HEAD, *[_cells(row) for row in rows]])


def _cells(row: PromptVersionRow) -> tuple[str, ...]:
    return (make_printable(row.route), row.id[:_N_DIGITS], format_count(round(row.n_tokens)), _share(row.share_of_prompt),
            format_count(row.n), _share(row.cached_ratio), _seconds(row.ttft_p50_s), _seconds(row.ttft_p95_s),
            _usd(row.usd_a_day), _instant(row.first_at), ", ".join(_notes(row)) or _NOTHING)


def _notes(row: PromptVersionRow) -> Iterator[str]:
    if row.moving is not None:
        yield f"moves at byte {row.moving.at}"
    if row.repeats:
        yield f"{len(row.repeats)} repeats"
    if unused := sum(not tool.n_calls for tool in row.tools):
        yield f"{unused} of {len(row.tools)} tools not called"


def format_version(report: PromptReport) -> Iterator[str]:
    """Lines about one version."""
    row = report.row
    yield f"{row.id}  route {row.route}"
    yield (f"{row.n_tokens:.0f} tokens ({row.system_tokens:.0f} instructions, {row.tool_tokens:.0f} tools), "
           f"{_share(row.share_of_prompt)} of the prompt, {_share(row.cached_ratio)} cached")
    yield (f"{format_count(row.n)} requests in the last hour; first token p50 {_seconds(row.ttft_p50_s)}, "
           f"p95 {_seconds(row.ttft_p95_s)}; {_usd(row.usd_a_day)} USD a day")
    yield f"first seen {_instant(row.first_at)}, last {_instant(row.last_at)}"
    if row.change is not None:
        place = row.change.place
        yield (f"differs from {row.change.before[:_N_DIGITS]} from byte {place.at} of {place.path} on: "
               f"stayfast prompts diff {row.id[:_N_DIGITS]}")
    if row.moving is not None:
        yield (f"moves: {row.moving.kind} at byte {row.moving.at} of {row.moving.path}, in {row.n_moved} of {row.n_samples} "
               f"samples; {row.moving.n_tokens_after:.0f} tokens stand behind it")
    for one in row.repeats:
        yield (f"repeats: byte {one.at} of {one.path} the paragraph at byte {one.first_at} of {one.first_path}, "
               f"{one.n_tokens:.0f} tokens, {format_share(one.overlap)} alike")
    for tool in row.tools:
        yield f"tool {tool.name}: {tool.n_tokens:.0f} tokens, {tool.n_calls} calls in {row.n_samples} samples"
    if row.n_examples:
        yield f"examples: {row.n_examples}, {row.example_tokens:.0f} tokens"
    yield from ("", *report.comparison.text) if report.comparison.text is not None else (
        "The text is not shown: set prompts.content.",)


def format_difference(report: PromptReport) -> Iterator[str]:
    """Lines about the difference of a version from an earlier one, and what it costs."""
    row, before, found = report.row, report.before, report.comparison
    if before is None:
        yield f"{row.id[:_N_DIGITS]} is the first of its kind; name another one with --against."
        return
    yield f"{before.id[:_N_DIGITS]} -> {row.id[:_N_DIGITS]}  route {row.route}"
    if row.change is not None and row.change.before == before.id:
        place = row.change.place
        yield (f"first changed byte: {place.at} of {place.path} ({place.kind}); what stands behind it, "
               f"{place.n_tokens_after:.0f} tokens, left the prompt cache")
        yield f"{row.change.n_removed} bytes became {row.change.n_added} bytes"
    yield (f"{before.n_tokens:.0f} -> {row.n_tokens:.0f} tokens, cached {_share(before.cached_ratio)} -> "
           f"{_share(row.cached_ratio)}, first token p50 {_seconds(before.ttft_p50_s)} -> {_seconds(row.ttft_p50_s)}")
    if report.usd_longer is not None and report.usd_read_less is not None:
        yield (f"it costs {report.usd_longer + report.usd_read_less:+.2f} USD a day: {report.usd_longer:+.2f} for its "
               f"length, {report.usd_read_less:+.2f} for what the cache serves")
    yield from _format_hunks(found.hunks, found.n_hunks)
    yield from ("", *found.diff) if found.diff is not None else ("The texts are not shown: set prompts.content.",)


def _format_hunks(hunks: tuple[PromptHunk, ...] | None, n_hunks: int) -> Iterator[str]:
    if hunks is None:
        yield "The texts are no longer in memory."
        return
    for hunk in hunks:
        yield (f"@@ -{hunk.before_line},{hunk.n_removed} +{hunk.after_line},{hunk.n_added} @@ {hunk.kind}")
    if n_hunks > len(hunks):
        yield f"and {n_hunks - len(hunks)} more"


def _share(share: float | None) -> str:
    return _NOTHING if share is None else format_share(share)


def _seconds(seconds: float | None) -> str:
    return _NOTHING if seconds is None else format_seconds(seconds)


def _usd(usd: float | None) -> str:
    return _NOTHING if usd is None else f"{usd:.2f}"


def _instant(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).astimezone().strftime("%m-%d %H:%M")
