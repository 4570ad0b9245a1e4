"""The versions of system prompts of each worker, and how the parts of all workers become rows of a snapshot."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from stayfast.core.prompt_versions import OfferedTool, PromptVersionRow
from stayfast.observe.snapshot.tallies import PackedTally, RowTally
from stayfast.policy.context.prompt_costs import usd_a_day

SPAN_S: Final = 3600.0
SLOT_S: Final = 120.0
LEAST_S: Final = 300.0  # shortest span from which a rate per day is computed
DAY_S: Final = 86_400.0
MAX_ROWS: Final = 200


class PromptVersionPart(msgspec.Struct, frozen=True, omit_defaults=True):
    """One version in one worker. row: what does not add up; figures of the window are in the tally."""

    row: PromptVersionRow
    tally: PackedTally = PackedTally()


def merge_versions(parts: Iterable[Sequence[PromptVersionPart]], now: float) -> tuple[PromptVersionRow, ...]:
    """The rows of all workers, by route and in the order of first use; at most MAX_ROWS, the most used. now: wall time."""
    by_key: dict[tuple[str, str], list[PromptVersionPart]] = {}
    for part in parts:
        for version in part:
            by_key.setdefault((version.row.route, version.row.id), []).append(version)
    rows = [_merge_version(known, now) for known in by_key.values()]
    most_used = sorted(rows, key=lambda row: (-row.n, -row.last_at))[:MAX_ROWS]
    return tuple(sorted(most_used, key=lambda row: (row.route, row.first_at, row.id)))


def _merge_version(parts: Sequence[PromptVersionPart], now: float) -> PromptVersionRow:
    rows = sorted([part.row for part in parts], key=lambda row: row.first_at)
    tally = RowTally()
    for part in parts:
        tally.add_packed(part.tally)
    first, newest = rows[0], max(rows, key=lambda row: row.last_at)
    n, counts = tally.n(), tally.counts
    n_tokens = newest.n_tokens
    span_s = min(SPAN_S, now - first.first_at)
    n_a_day = n / span_s * DAY_S if span_s >= LEAST_S else None
    cached = counts["head_cached"] / (n * n_tokens) if n and n_tokens else None
    ttft = tally.spread("ttft_s")
    row = msgspec.structs.replace(
        newest, first_at=first.first_at, n=n, n_a_day=n_a_day,
        share_of_prompt=min(1.0, n * n_tokens / counts["input"]) if counts["input"] else None,
        cached_ratio=min(1.0, cached) if cached is not None else None, ttft_p50_s=ttft.p50, ttft_p95_s=ttft.p95,
        change=next((row.change for row in rows if row.change is not None), None),
        moving=min((row.moving for row in rows if row.moving is not None), key=lambda place: place.ratio, default=None),
        n_samples=tally.n("samples"), n_moved=tally.n("moved"), n_tool_ends=tally.n("tool_ends"), tools=_merge_tools(rows))
    return msgspec.structs.replace(row, usd_a_day=usd_a_day(row))


def _merge_tools(rows: Sequence[PromptVersionRow]) -> tuple[OfferedTool, ...]:
    calls: Counter[str] = Counter()
    for row in rows:
        for tool in row.tools:
            calls[tool.name] += tool.n_calls
    return tuple(msgspec.structs.replace(tool, n_calls=calls[tool.name]) for tool in rows[-1].tools)

