"""wire/kv_events: messages of vLLM and SGLang, of several versions, and junk."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.core.kv_events import AllCleared, BlocksRemoved, BlocksStored, KvBatch
from stayfast.policy.routing.block_index import BlockIndex, chain_root, hash_tokens
from stayfast.wire.kv_events import MAX_EVENT_BLOCKS, MAX_PAYLOAD_BYTES, ReplayEnd, decode_message, encode_number
from tests.kv_recording import frames, read_recording, removed, stored

VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-2**63, 2**64 - 1) | st.floats() | st.text(max_size=5) | st.binary(max_size=5)
    | st.sampled_from(["BlockStored", "BlockRemoved", "AllBlocksCleared", "type", "block_hashes", "token_ids", "GPU"]),
    lambda inner: st.lists(inner, max_size=9) | st.dictionaries(st.text(max_size=5), inner, max_size=4), max_leaves=30)
NAMES = ("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name", "extra_keys",
         "group_idx", "kv_cache_spec_kind", "locality")


def batch_of(message: list[bytes]) -> KvBatch:
    batch = decode_message(message)
    assert isinstance(batch, KvBatch)
    return batch


def test_decode_message_recorded_vllm_frames_have_all_kinds() -> None:
    batches = [batch_of(message) for message in read_recording()]
    assert [batch.number for batch in batches] == list(range(len(batches)))
    assert all(not batch.n_unknown and not batch.n_malformed and batch.ts > 1.7e9 for batch in batches)
    assert {type(event) for batch in batches for event in batch.events} == {BlocksStored, BlocksRemoved, AllCleared}
    first = batches[0].events[0]
    assert isinstance(first, BlocksStored)
    assert (first.parent, first.block_size, first.medium, len(first.token_ids)) == (None, 32, "GPU", 32 * len(first.hashes))
    salted = [event for batch in batches for event in batch.events
              if isinstance(event, BlocksStored) and not event.is_by_tokens]
    assert len(salted) == 1  # of the one request with a cache_salt


def test_decode_message_recorded_replay_ends_with_its_marker() -> None:
    *messages, last = read_recording("replay_from_3")
    assert [batch_of(message).number for message in messages] == [3, 4]
    assert decode_message(last) == ReplayEnd()


def test_decode_message_replay_without_topic_is_read() -> None:
    """As versions before 2026-06 replay: DEALER receives an empty frame, then number and payload."""
    batch = batch_of([b"", *frames(7, stored([1], [5, 6]), topic=None)])
    assert (batch.number, batch.events) == (7, (BlocksStored((1,), None, (5, 6), 2, "", "GPU"),))


@pytest.mark.parametrize(("event", "expected"), [
    (stored([b"ab", b"cd"], [1, 2, 3, 4], b"xy"), BlocksStored((b"ab", b"cd"), b"xy", (1, 2, 3, 4), 2, "", "GPU")),
    (["BlockStored", [1], None, [5, 6], 2], BlocksStored((1,), None, (5, 6), 2)),
    (["BlockStored", [1], None, [5, 6], 2, 3], BlocksStored((1,), None, (5, 6), 2, "3")),
    ([*stored([1], [5, 6])[:7], "sql", [["sql"]]], BlocksStored((1,), None, (5, 6), 2, "sql", "GPU")),
    ([*stored([1], [5, 6]), [["sql", "salt"]]], BlocksStored((1,), None, (), 2, "", "GPU", is_by_tokens=False)),
    ([*stored([1], [5, 6]), None, 1, "sliding_window", 128],
     BlocksStored((1,), None, (), 2, "", "GPU", 1, is_by_tokens=False)),
    ([*stored([1], [5, 6]), None, 1, "full_attention", None, "new field", 8],
     BlocksStored((1,), None, (5, 6), 2, "", "GPU", 1)),
    (["BlockRemoved", [1, b"x"]], BlocksRemoved((1, b"x"))),
    ({"type": "BlockRemoved", "block_hashes": [1], "medium": "CPU", "group_idx": 2, "more": []},
     BlocksRemoved((1,), "CPU", 2)),
    ({"type": "AllBlocksCleared"}, AllCleared()), (["AllBlocksCleared"], AllCleared()),
])
def test_decode_message_forms_of_all_versions_are_read(event: Any, expected: Any) -> None:
    batch = batch_of(frames(0, event))
    assert (batch.events, batch.n_unknown, batch.n_malformed) == ((expected,), 0, 0)


@pytest.mark.parametrize("event", [
    ["BlockStored", [1], None, [5, 6, 7], 2], ["BlockStored", [1], None, [5, "6"], 2], ["BlockStored", "1", None, [5], 1],
    ["BlockStored", [1], None, [], 0], ["BlockStored", [1], 1.5, [5], 1], ["BlockStored"], ["BlockRemoved"],
    {"type": "BlockRemoved", "block_hashes": None}])
def test_decode_message_malformed_event_is_counted_and_others_are_read(event: Any) -> None:
    batch = batch_of(frames(0, removed(9), event, removed(8)))
    assert (len(batch.events), batch.n_malformed, batch.n_unknown) == (2, 1, 0)


def test_decode_message_unknown_event_is_skipped() -> None:
    batch = batch_of(frames(0, ["BlockPinned", [1]], {"type": "More"}, {"type": 5}, "x", [], removed(8)))
    assert (len(batch.events), batch.n_unknown, batch.n_malformed) == (1, 5, 0)


@given(st.lists(st.binary(max_size=40), max_size=5))
def test_decode_message_junk_frames_raise_nothing(message: list[bytes]) -> None:
    decode_message(message)
    decode_message([*message, encode_number(1), b"".join(message)])


@given(VALUES, st.lists(VALUES, max_size=4), st.dictionaries(st.sampled_from(NAMES), VALUES))
def test_decode_message_junk_events_raise_nothing_and_all_count(ts: Any, events: list[Any], fields: dict[str, Any]) -> None:
    events = [*events, {"type": "BlockStored", **fields}, {"type": "BlockRemoved", **fields},
              ["BlockStored", *fields.values()]]
    try:
        payload = msgspec.msgpack.encode([ts, events, 0])
    except (msgspec.MsgspecError, OverflowError):
        return
    batch = batch_of([b"", encode_number(3), payload])
    assert len(batch.events) + batch.n_unknown + batch.n_malformed == len(events)


def test_decode_message_long_event_is_divided_and_indexed_as_one() -> None:
    n = 2 * MAX_EVENT_BLOCKS + 3
    tokens = list(range(4 * n))
    batch = batch_of(frames(0, stored(list(range(n)), tokens, size=4), removed(*range(n - 1, 0, -1))))
    sizes = [len(event.hashes) for event in batch.events if not isinstance(event, AllCleared)]
    assert sizes == [MAX_EVENT_BLOCKS, MAX_EVENT_BLOCKS, 3, MAX_EVENT_BLOCKS, MAX_EVENT_BLOCKS, 2]
    index, chain = BlockIndex(), hash_tokens(tokens, 4, chain_root())
    index.begin(is_complete=True)
    for at, n_held in zip(range(len(batch.events)), (512, 1024, n, n - 512, n - 1024, 1), strict=True):
        index.apply_event(batch.events[at], 0)
        assert index.n_held(chain) == n_held


@pytest.mark.parametrize("changes", [
    {"block_hashes": [], "token_ids": [], "block_size": 10**9}, {"block_size": 10**9}, {"block_size": 0}, {"block_size": -4},
    {"block_hashes": [b"x" * 65]}, {"parent_block_hash": b"x" * 65}, {"token_ids": ["1", "2", "3", "4"]},
    {"token_ids": [1, 2, 3, 2.5]}, {"token_ids": [True] * 4}])
def test_decode_message_hostile_block_is_malformed(changes: dict[str, Any]) -> None:
    block = {"type": "BlockStored", "block_hashes": [7], "token_ids": [1, 2, 3, 4], "block_size": 4}
    assert len(batch_of(frames(0, block)).events) == 1
    batch = batch_of(frames(0, {**block, **changes}))
    assert (batch.events, batch.n_malformed) == ((), 1)


def test_decode_message_over_the_largest_payload_is_none() -> None:
    assert decode_message([b"", encode_number(0), bytes(MAX_PAYLOAD_BYTES + 1)]) is None
