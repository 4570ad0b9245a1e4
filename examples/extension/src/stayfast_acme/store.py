"""`kind: folder`: one file for each answer, in a folder that processes share.

    stores:
      answers: {kind: folder, path: /mnt/answers}

The gateway wraps a backend: answers in memory, time limits, a breaker, writes in the background. So a backend may be slow,
and may fail with StoreUnavailable.
"""

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal, TypeVar
from uuid import uuid4

from stayfast.core.clock import Clock
from stayfast.core.setting import SettingDoc
from stayfast.stores.base import (
    AcquireLead,
    Get,
    IsLed,
    Put,
    ReleaseLead,
    Remove,
    StoreCommand,
    StoreReply,
    StoreStats,
    StoreUnavailable,
)
from stayfast.stores.remote_store import SharedConfig

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class FolderStore:
    """Its fields are the settings; no base class is needed."""

    path: Annotated[str, SettingDoc("The folder, created if missing.")]
    kind: Annotated[Literal["folder"], SettingDoc("A folder of answers.")] = "folder"
    shared: Annotated[SharedConfig, SettingDoc("Settings of shared stores.", is_inline=True)] = field(
        default_factory=SharedConfig)

    def build_backend(self, name: str, clock: Clock) -> "FolderBackend":
        return FolderBackend(Path(self.path), clock)


class FolderBackend:
    """KEY.answer holds data, KEY.json what it is purged by, KEY.lead who computes it at present."""

    kind = "folder"

    def __init__(self, folder: Path, clock: Clock) -> None:
        self._folder = folder
        self._clock = clock

    async def execute(self, commands: Sequence[StoreCommand]) -> list[StoreReply]:
        return await self._run(lambda: [self._execute_one(command) for command in commands])

    async def append_log(self, name: str, records: Sequence[bytes], max_records: int) -> None:
        def append() -> None:
            for record in records:
                self._write(self._folder / f"{time.time_ns():020}-{uuid4().hex}.{name}.log", record)
            for old in sorted(self._folder.glob(f"*.{name}.log"))[:-max_records]:
                old.unlink(missing_ok=True)

        await self._run(append)

    async def read_log(self, name: str, after: str, n: int) -> list[tuple[str, bytes]]:
        def read() -> list[tuple[str, bytes]]:
            newer = sorted(path for path in self._folder.glob(f"*.{name}.log") if path.name > after)
            return [(path.name, path.read_bytes()) for path in newer[:n]]

        return await self._run(read)

    async def purge(self, route: str | None, tenant: str | None, tag: str | None) -> int:
        def purge() -> int:
            n_removed = 0
            for path in self._folder.glob("*.json"):
                about = json.loads(path.read_bytes())
                if (route in (None, about["route"]) and tenant in (None, about["tenant"])
                        and (tag is None or tag in about["tags"])):
                    self._remove(path.stem)
                    n_removed += 1
            return n_removed

        return await self._run(purge)

    async def stats(self) -> StoreStats:
        def measure() -> StoreStats:
            sizes = [path.stat().st_size for path in self._folder.glob("*.answer")]
            return StoreStats(self.kind, len(sizes), sum(sizes), None)

        return await self._run(measure)

    async def close(self) -> None:
        """Nothing is open between two calls."""

    async def _run(self, work: Callable[[], T]) -> T:
        """Run in a thread: a network file system may take its time."""
        try:
            return await asyncio.to_thread(self._run_in_folder, work)
        except (OSError, ValueError) as error:
            raise StoreUnavailable(f"{self._folder}: {type(error).__name__}") from None

    def _run_in_folder(self, work: Callable[[], T]) -> T:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return work()

    def _execute_one(self, command: StoreCommand) -> StoreReply:
        stem = command.key.hex()
        lead = self._folder / f"{stem}.lead"
        match command:
            case Get():
                answer = self._folder / f"{stem}.answer"
                return answer.read_bytes() if answer.exists() else None
            case Put(data=data, answer=about):
                self._write(self._folder / f"{stem}.json", json.dumps(
                    {"route": about.route, "tenant": about.tenant, "tags": about.tags}).encode())
                self._write(self._folder / f"{stem}.answer", data)
            case Remove():
                self._remove(stem)
            case AcquireLead(owner=owner, for_s=for_s):
                return self._acquire(lead, owner, for_s)
            case IsLed():
                return self._leader(lead) is not None
            case ReleaseLead(owner=owner):
                if self._leader(lead) == owner.hex():
                    lead.unlink(missing_ok=True)
        return None

    def _acquire(self, lead: Path, owner: bytes, for_s: float) -> bool:
        if self._leader(lead) is None:
            lead.unlink(missing_ok=True)  # of a leader whose time is over
        try:
            with lead.open("x") as file:  # of several processes one succeeds
                file.write(f"{owner.hex()} {self._clock.wall() + for_s}")
        except FileExistsError:
            return self._leader(lead) == owner.hex()
        return True

    def _leader(self, lead: Path) -> str | None:
        try:
            owner, _, until = lead.read_text().partition(" ")
        except FileNotFoundError:
            return None
        return owner if until and float(until) > self._clock.wall() else None

    def _remove(self, stem: str) -> None:
        for ending in ("answer", "json"):
            (self._folder / f"{stem}.{ending}").unlink(missing_ok=True)

    def _write(self, path: Path, data: bytes) -> None:
        """Readers see the old file or the whole new one."""
        part = path.with_suffix(f".{uuid4().hex}.part")
        part.write_bytes(data)
        part.rename(path)
