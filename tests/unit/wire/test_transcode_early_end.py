"""An answer that is ended early, at any byte, is a proper answer of its protocol with the reason of a met length limit."""

import pytest

from stayfast.core.types import Api
from stayfast.wire.request_body import can_translate
from stayfast.wire.transcode import make_transcoder
from tests.unit.wire.recorded import WHOLE_STREAMS, request
from tests.unit.wire.sdk_types import CLIENTS, check, read_again

CASES = [pytest.param(name, client, stream, id=f"{name}-{client.value}-{'stream' if stream else 'whole'}")
         for name, recorded in WHOLE_STREAMS.items() if recorded.n_content
         for client in CLIENTS if can_translate(client, recorded.api)
         for stream in (True, False)]
LENGTH = ("length", "max_tokens", "max_output_tokens")


@pytest.mark.parametrize(("name", "client", "stream"), CASES)
def test_early_end_at_every_byte_is_a_valid_end(name: str, client: Api, stream: bool) -> None:
    """At each byte behind the first content: every part so far, an end that its readers take, and never a second one."""
    recorded = WHOLE_STREAMS[name]
    n_cuts = 0
    for at in range(len(recorded.data)):
        coder = make_transcoder(recorded.api, request(client, stream=stream), source_streams=True, upstream="up",
                                created_at=7)
        before = coder.feed(recorded.data[:at])
        if not coder.summary.n_content or coder.summary.is_complete:
            continue
        had_reason = coder.summary.finish_reason
        ending = coder.end_early()
        assert ending is not None
        assert (coder.summary.is_cut, coder.summary.is_complete) == (True, False)
        assert coder.summary.finish_reason == had_reason if had_reason else coder.summary.finish_reason in LENGTH
        body = (before.data if before is not None else b"") + ending.data
        check(client, ending.data, stream=stream)
        again = read_again(client, body, stream=stream)
        assert again.failure is None
        assert again.is_complete
        assert coder.end_early() is None
        assert coder.feed(recorded.data[at:]) is None
        n_cuts += 1
    assert n_cuts > 10


def test_early_end_after_the_end_is_none() -> None:
    """A whole answer has its end; so has one that failed."""
    for recorded in WHOLE_STREAMS.values():
        coder = make_transcoder(recorded.api, request(recorded.api), source_streams=True, upstream="up")
        coder.feed(recorded.data)
        coder.finish()
        assert coder.end_early() is None
        assert not coder.summary.is_cut


def test_early_end_of_a_whole_answer_is_none() -> None:
    """An upstream's answer in one piece cannot be cut."""
    coder = make_transcoder(Api.CHAT, request(Api.CHAT, stream=False), source_streams=False, upstream="up")
    coder.feed(b'{"choices":[')
    assert coder.end_early() is None
