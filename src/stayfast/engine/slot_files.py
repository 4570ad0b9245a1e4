"""The slots of an engine on disk, over a restart of the gateway: an operator's choice, because they contain prompts.

llama.cpp writes and reads one file for each slot. They are saved at a graceful stop, the last used first, within a bound of
disk space, and are read, then deleted, by the next start with the same model file, context and types. An index holds the
block hashes of the slots. A failure leaves slots empty, which costs prefills, and never delays a stop by more than
SAVE_WITHIN_S.
"""

import asyncio
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Final

import msgspec

from stayfast.engine.config import EngineConfig
from stayfast.policy.engines.sizing import EngineSize
from stayfast.policy.engines.slots import SlotMap

SAVE_WITHIN_S: Final = 10.0
_NAME: Final = "stayfast-slots"


class _Index(msgspec.Struct):
    """What was saved. blocks: of each saved slot."""

    key: str
    blocks: dict[int, list[int]]


class _Saved(msgspec.Struct):
    n_saved: int = 0
    n_written: int = 0


class SlotFiles:
    """The files of one engine's slots. Raises nothing."""

    def __init__(self, config: EngineConfig, size: EngineSize, owner: str) -> None:
        """owner: the engine's name. Engines with the same model may share a folder."""
        assert config.slots_folder is not None
        self._folder = Path(config.slots_folder)
        self._n_slots = size.n_slots
        self._max_bytes = config.slots_disk_mib << 20
        try:
            state = config.model_path.stat()
            stamp = f"{state.st_size} {state.st_mtime_ns}"
        except OSError:
            stamp = ""
        self._name = f"{_NAME}-{sha256(f'{owner} {config.model_path.absolute()}'.encode()).hexdigest()[:12]}"
        self._key = sha256(f"{config.model_path.absolute()} {stamp} {size.ctx_per_slot} {config.cache_type_k} "
                           f"{config.cache_type_v}".encode()).hexdigest()

    @property
    def _index(self) -> Path:
        return self._folder / f"{self._name}.json"

    async def save(self, host: str, port: int, slots: SlotMap | None) -> None:
        """Save the slots that hold something."""
        with suppress(OSError, TimeoutError, msgspec.DecodeError):
            self._clear()
            async with asyncio.timeout(SAVE_WITHIN_S):
                blocks = await self._save_each(host, port, slots)
            _write_private(self._index, msgspec.json.encode(_Index(self._key, blocks)))

    async def _save_each(self, host: str, port: int, slots: SlotMap | None) -> dict[int, list[int]]:
        n_bytes, blocks = 0, {}
        for number in slots.by_use() if slots is not None else range(self._n_slots):
            name = f"{self._name}-{number}.bin"
            status, body = await _post(host, port, f"/slots/{number}?action=save", {"filename": name})
            saved = msgspec.json.decode(body, type=_Saved) if status == 200 else _Saved()
            n_bytes += saved.n_written
            if not saved.n_saved or n_bytes > self._max_bytes:
                n_bytes -= saved.n_written
                (self._folder / name).unlink(missing_ok=True)
                continue
            blocks[number] = list(slots.blocks_of(number)) if slots is not None else []
        return blocks

    async def restore(self, host: str, port: int, slots: SlotMap | None) -> None:
        """Fill the slots from the files of an engine like this one; deletes all files."""
        with suppress(OSError, TimeoutError, msgspec.DecodeError, msgspec.ValidationError):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = msgspec.json.decode(self._index.read_bytes(), type=_Index)
            for number, blocks in found.blocks.items() if found.key == self._key else ():
                if not 0 <= number < self._n_slots:
                    continue
                status, _ = await _post(host, port, f"/slots/{number}?action=restore",
                                        {"filename": f"{self._name}-{number}.bin"})
                if status == 200 and slots is not None:
                    slots.fill(number, blocks)
        self._clear()

    def _clear(self) -> None:
        with suppress(OSError):
            for path in self._folder.glob(f"{self._name}*"):
                path.unlink(missing_ok=True)


def _write_private(path: Path, data: bytes) -> None:
    """A new file for this user alone."""
    path.touch(0o600)
    path.write_bytes(data)


async def _post(host: str, port: int, path: str, body: dict[str, str]) -> tuple[int, bytes]:
    """The status and the body of one request. Raises OSError."""
    data = msgspec.json.encode(body)
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(b"POST %b HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n"
                     b"Content-Length: %d\r\n\r\n%b" % (path.encode(), len(data), data))
        head, _, rest = (await reader.read()).partition(b"\r\n\r\n")
    finally:
        writer.transport.abort()
    words = head.split(b" ", 2)
    return int(words[1]) if len(words) > 1 and words[1].isdigit() else 0, rest
