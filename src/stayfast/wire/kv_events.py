"""KV events: what vLLM and SGLang publish about the blocks of their prefix caches, over ZMQ.

A message is [topic, number of the batch (u64, big-endian), msgpack]; the msgpack is [ts, events, dp_rank]. An event is a map
with its name in `type` (vLLM 0.32), or an array with its name first (before, and SGLang). A replayed message has no topic in
versions before 2026-06, and the last one an empty payload. Versions add fields and events, so what is unknown is skipped; a
known event whose needed fields have another shape is counted as malformed.
Source: vLLM's distributed/kv_events.py, recorded frames of 0.32; SGLang's disaggregation/kv_events.py.
"""

from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from typing import Any, Final, TypeGuard

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from stayfast.core.kv_events import AllCleared, BlockHash, BlocksRemoved, BlocksStored, KvBatch, KvEvent

MAX_PAYLOAD_BYTES: Final = 8 << 20  # a batch of a million tokens has 5 MB
MAX_HASH_BYTES: Final = 64
MAX_BLOCK_TOKENS: Final = 1 << 16
MAX_EVENT_BLOCKS: Final = 512  # longer events are divided, so that an index takes them in pieces
MAX_TEXT: Final = 256
NUMBER_BYTES: Final = 8
_END: Final = (1 << 64) - 1  # -1, as an unsigned number
_WINDOWS: Final = ("sliding_window", "sliding_window_mla", "mamba", "chunked_local_attention", "encoder_only_attention",
                   "cross_attention")  # groups of layers that hold less than a whole prefix
_STORED: Final = ("type", "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name",
                  "extra_keys", "group_idx", "kv_cache_spec_kind")
_REMOVED: Final = ("type", "block_hashes", "medium", "group_idx")
_DECODER: Final = msgspec.msgpack.Decoder()
_LISTS: Final = msgspec.msgpack.Decoder(list[msgspec.Raw])  # a long batch in one piece would hold up other threads


class ReplayEnd(Struct, frozen=True):
    """The last message of a replay."""


def decode_message(frames: Sequence[bytes]) -> KvBatch | ReplayEnd | None:
    """A published or replayed message; None: it is none. Raises nothing."""
    if len(frames) < 2 or len(frames[-2]) != NUMBER_BYTES or len(frames[-1]) > MAX_PAYLOAD_BYTES:
        return None
    number, payload = int.from_bytes(frames[-2], "big"), frames[-1]
    if not payload or number == _END:
        return ReplayEnd()
    try:
        read = _LISTS.decode(payload)
        if len(read) < 2:
            return None
        ts, rank = _DECODER.decode(read[0]), _DECODER.decode(read[2]) if len(read) > 2 else None
        events, n_unknown, n_malformed = _read_events(_LISTS.decode(read[1]))
    except (ValueError, RecursionError):  # msgspec.DecodeError is a ValueError
        return None
    return KvBatch(number, float(ts) if isinstance(ts, int | float) and isfinite(ts) else 0.0, tuple(events),
                   rank if isinstance(rank, int) else 0, n_unknown, n_malformed)


def encode_number(number: int) -> bytes:
    """The number of a batch, as a request for the replay of this one and all later ones."""
    return number.to_bytes(NUMBER_BYTES, "big")


def _read_events(encoded: list[msgspec.Raw]) -> tuple[list[KvEvent], int, int]:
    """The known events, and how many were unknown and malformed."""
    found: list[KvEvent] = []
    n_unknown = n_malformed = 0
    for one in map(_DECODER.decode, encoded):
        fields = dict(zip(_STORED if one[:1] == ["BlockStored"] else _REMOVED, one, strict=False)
                      ) if isinstance(one, list) else one if isinstance(one, dict) else {}
        name = fields.get("type")
        read = _READERS.get(name) if isinstance(name, str) else None
        if read is None:
            n_unknown += 1
        elif (event := read(fields)) is None:
            n_malformed += 1
        else:
            found += _divide(event)
    return found, n_unknown, n_malformed


def _divide(event: KvEvent) -> Sequence[KvEvent]:
    """The same in pieces of at most MAX_EVENT_BLOCKS; each continues the prompt of the one before."""
    if isinstance(event, AllCleared) or len(event.hashes) <= MAX_EVENT_BLOCKS:
        return (event,)
    starts, hashes = range(0, len(event.hashes), MAX_EVENT_BLOCKS), event.hashes
    if isinstance(event, BlocksRemoved):
        return [replace(event, hashes=hashes[at:at + MAX_EVENT_BLOCKS]) for at in starts]
    size = event.block_size
    return [replace(event, hashes=hashes[at:at + MAX_EVENT_BLOCKS], parent=hashes[at - 1] if at else event.parent,
                    token_ids=event.token_ids[at * size:(at + MAX_EVENT_BLOCKS) * size]) for at in starts]


def _read_stored(fields: Mapping[Any, Any]) -> BlocksStored | None:
    hashes, parent, token_ids = fields.get("block_hashes"), fields.get("parent_block_hash"), fields.get("token_ids")
    block_size, medium, group = fields.get("block_size"), _text(fields.get("medium")), _number(fields.get("group_idx"))
    if (not _are_hashes(hashes) or not hashes or type(block_size) is not int or not 1 <= block_size <= MAX_BLOCK_TOKENS
            or not (parent is None or _are_hashes([parent]))):
        return None
    lora = _text(fields.get("lora_name")) or (str(lora_id) if isinstance(lora_id := fields.get("lora_id"), int) else "")
    if fields.get("kv_cache_spec_kind") in _WINDOWS or _has_extra(fields.get("extra_keys"), lora):
        return BlocksStored(tuple(hashes), parent, (), block_size, lora, medium, group, is_by_tokens=False)
    if (not isinstance(token_ids, list) or len(token_ids) != block_size * len(hashes)
            or set(map(type, token_ids)) != {int}):
        return None
    return BlocksStored(tuple(hashes), parent, tuple(token_ids), block_size, lora, medium, group)


def _read_removed(fields: Mapping[Any, Any]) -> BlocksRemoved | None:
    hashes = fields.get("block_hashes")
    if not _are_hashes(hashes):
        return None
    return BlocksRemoved(tuple(hashes), _text(fields.get("medium")), _number(fields.get("group_idx")))


def _read_cleared(_: Mapping[Any, Any]) -> AllCleared:
    return AllCleared()


_READERS: Final[Mapping[str, Callable[[Mapping[Any, Any]], KvEvent | None]]] = {
    "BlockStored": _read_stored, "BlockRemoved": _read_removed, "AllBlocksCleared": _read_cleared}


def _are_hashes(value: Any) -> TypeGuard[list[BlockHash]]:
    return isinstance(value, list) and all(
        isinstance(one, int) or (isinstance(one, bytes) and len(one) <= MAX_HASH_BYTES) for one in value)


def _has_extra(value: Any, lora: str) -> bool:
    """Whether more than tokens and adapter belongs to the identity of a block."""
    return isinstance(value, list) and any(
        key != lora for keys in value for key in (keys if isinstance(keys, list) else [keys] if keys else ()))


def _text(value: Any) -> str:
    return value[:MAX_TEXT] if isinstance(value, str) else ""


def _number(value: Any) -> int:
    return value if type(value) is int else 0
