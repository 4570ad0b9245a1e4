"""Splits of the bytes change neither the client's bytes nor the summary."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stayfast.core.errors import UpstreamFailed
from stayfast.core.types import Api
from stayfast.wire.request_body import can_translate
from stayfast.wire.transcode import make_transcoder
from tests.unit.wire.recorded import STREAMS, Recorded, request

CLIENTS = (Api.CHAT, Api.COMPLETIONS, Api.RESPONSES, Api.MESSAGES)
CASES = [(name, client, stream) for name, recorded in STREAMS.items() for client in CLIENTS
         if can_translate(client, recorded.api) for stream in (True, False)]


def outcome(recorded: Recorded, client: Api, stream: bool, cuts: list[int]) -> tuple[Any, ...]:
    """Bytes for the client and everything that was seen, with `recorded` cut at `cuts`."""
    coder = make_transcoder(recorded.api, request(client, stream=stream), source_streams=True, upstream="up", created_at=7)
    edges = [0, *sorted(cuts), len(recorded.data)]
    parts = [coder.feed(recorded.data[start:end]) for start, end in pairwise(edges)]
    parts.append(coder.finish())
    summary = coder.summary
    failure = summary.failure
    assert failure is None or isinstance(failure, UpstreamFailed)
    return (b"".join(part.data for part in parts if part), sum(part.n_content for part in parts if part),
            summary.n_content, summary.finish_reason, summary.usage, summary.response_id, summary.is_complete,
            failure and (failure.fault, failure.upstream_status, failure.body))


@pytest.mark.parametrize("name", STREAMS)
def test_transcode_every_single_split(name: str) -> None:
    """In its own dialect, a stream cut at each byte is the same stream."""
    recorded = STREAMS[name]
    whole = outcome(recorded, recorded.api, True, [])
    for cut in range(len(recorded.data)):
        assert outcome(recorded, recorded.api, True, [cut]) == whole


@pytest.mark.parametrize(("name", "client", "stream"), CASES)
def test_transcode_byte_by_byte(name: str, client: Api, stream: bool) -> None:
    """Each pair of dialects, streamed and collected, fed one byte at a time."""
    recorded = STREAMS[name]
    assert outcome(recorded, client, stream, list(range(len(recorded.data)))) == outcome(recorded, client, stream, [])


@settings(max_examples=150, deadline=None)
@given(case=st.sampled_from(CASES), data=st.data())
def test_transcode_random_splits(case: tuple[str, Api, bool], data: st.DataObject) -> None:
    """Any number of cuts anywhere."""
    name, client, stream = case
    recorded = STREAMS[name]
    cuts = data.draw(st.lists(st.integers(0, len(recorded.data)), max_size=12))
    assert outcome(recorded, client, stream, cuts) == outcome(recorded, client, stream, [])
