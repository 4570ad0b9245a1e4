"""KV events of a real vLLM 0.32: requests to an engine with 40 blocks, which evicts, and what usage said was cached."""

import json
from base64 import b64decode
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

GOLDEN = Path(__file__).parent / "unit/wire/golden/kv_events/vllm-0.32.json"


class RecordedStep(NamedTuple):
    """One request. n_frames: messages published until it had ended."""

    token_ids: list[int]
    cached: int
    salted: bool
    n_frames: int


def read_recording(name: str = "frames") -> list[list[bytes]]:
    """The messages: frames, or replay_from_3."""
    return [[b64decode(frame) for frame in message] for message in json.loads(GOLDEN.read_text())[name]]


def recorded_steps() -> list[RecordedStep]:
    return [RecordedStep(**step) for step in json.loads(GOLDEN.read_text())["steps"]]


def stored(hashes: list[int | bytes], tokens: list[int], parent: int | bytes | None = None, size: int = 2) -> list[Any]:
    """A BlockStored event in the form of an array."""
    return ["BlockStored", hashes, parent, tokens, size, None, "GPU", None]


def removed(*hashes: int | bytes) -> list[Any]:
    return ["BlockRemoved", list(hashes), "GPU"]


def frames(number: int, *events: Any, ts: float | None = None, topic: bytes | None = b"", rank: int = 0) -> list[bytes]:
    """A message. topic: None: without one."""
    payload = msgspec.msgpack.encode([float(number) if ts is None else ts, list(events), rank])
    return [*([topic] if topic is not None else []), number.to_bytes(8, "big"), payload]
