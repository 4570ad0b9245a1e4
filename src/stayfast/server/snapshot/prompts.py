"""The answers of /admin/prompts: versions of system prompts, and the difference of one from another."""

import asyncio
import re
from typing import Protocol

import msgspec

from stayfast.core.errors import Rejected
from stayfast.core.prompt_versions import PromptComparison, PromptList, PromptReport, PromptVersionRow
from stayfast.core.snapshot import Snapshot
from stayfast.policy.context.prompt_costs import cost_of_change
from stayfast.server.snapshot.service import SnapshotService


class PromptTextSource(Protocol):
    """The workers, which have the texts."""

    async def compare_prompts(self, version_id: str, before: str) -> bytes | None:
        """A `PromptComparison` in msgpack; None: no worker has the text of the version. before: may be empty."""


_ID = re.compile(r"[0-9a-fA-F]{6,64}")


async def list_prompts(snapshots: SnapshotService) -> bytes:
    """All versions as JSON. Raises Shed (503)."""
    return msgspec.json.encode(PromptList(await _read_rows(snapshots)))


async def _read_rows(snapshots: SnapshotService) -> tuple[PromptVersionRow, ...]:
    body = await snapshots.snapshot()
    return (await asyncio.to_thread(msgspec.json.decode, body, type=Snapshot)).prompt_versions


async def show_prompt(snapshots: SnapshotService, together: PromptTextSource, version_id: str,
                      against: str | None) -> bytes:
    """One version as JSON. against: the one to compare it with; None: the one before it. Ids may be cut to 6 digits. Raises
    Rejected for an unknown or ambiguous id, Shed (503).
    """
    rows = await _read_rows(snapshots)
    row = _find_row(rows, version_id, "id")
    before = _find_before(rows, row, against)
    found = await together.compare_prompts(row.id, before.id if before is not None else "")
    comparison = msgspec.msgpack.decode(found, type=PromptComparison) if found else PromptComparison()
    cost = cost_of_change(before, row) if before is not None else None
    return msgspec.json.encode(PromptReport(row, before, comparison, cost.longer if cost is not None else None,
                                            cost.read_less if cost is not None else None))


def _find_row(rows: tuple[PromptVersionRow, ...], version_id: str, param: str) -> PromptVersionRow:
    """The most used row of a version, which several routes may have."""
    if not _ID.fullmatch(version_id):
        raise Rejected("A system prompt is named by 6 to 64 hexadecimal digits. `stayfast prompts list` shows them.",
                       param=param)
    found = [row for row in rows if row.id.startswith(version_id.lower())]
    if len({row.id for row in found}) > 1:
        raise Rejected(f"{version_id} begins the ids of {len({row.id for row in found})} system prompts. Give more digits.",
                       param=param)
    if not found:
        raise Rejected("No system prompt with this id was seen in the last hour. `stayfast prompts list` shows all.",
                       status=404, code="prompt_not_found", param=param)
    return max(found, key=lambda row: row.n)


def _find_before(rows: tuple[PromptVersionRow, ...], row: PromptVersionRow,
                 against: str | None) -> PromptVersionRow | None:
    if against is not None:
        return _find_row(rows, against, "against")
    change = row.change
    return next((one for one in rows if change is not None and (one.route, one.id) == (row.route, change.before)), None)
