"""What the proof of resumed streams counts as lost, doubled or begun again."""

import json

from stayfast.lab.claims.job_resume import CHAT, RESPONSES, is_end, n_different_bytes, read_text
from stayfast.lab.harness.event_client import ReceivedEvent


def chat(n: int, text: str, epoch: int = 1) -> ReceivedEvent:
    """One chunk of a chat stream."""
    return ReceivedEvent(f"{epoch}-{n}", "", json.dumps({"choices": [{"index": 0, "delta": {"content": text}}]}))


def test_read_text_of_a_lost_or_repeated_event_differs() -> None:
    """So a proof whose streams lose or repeat one falls short."""
    events = [chat(0, "a"), chat(1, " b"), chat(2, " c"), ReceivedEvent("1-3", "", "[DONE]")]
    assert read_text(CHAT, events) == "a b c"
    assert read_text(CHAT, [events[0], *events[2:]]) == "a c"
    assert read_text(CHAT, [*events[:2], *events[1:]]) == "a b b c"
    assert is_end(CHAT, events[-1])
    assert not is_end(CHAT, events[0])


def test_read_text_drops_what_came_before_a_reset() -> None:
    """In both dialects; an epoch without a reset is joined, and the text is wrong."""
    later = [chat(3, "a", 2), chat(4, " b", 2)]
    assert read_text(CHAT, [chat(0, "a"), ReceivedEvent("2-2", "reset", '{"type":"reset"}'), *later]) == "a b"
    assert read_text(CHAT, [chat(0, "a"), *later]) == "aa b"
    created = ReceivedEvent("", "response.created", "{}")
    delta = ReceivedEvent("", "response.output_text.delta", '{"delta":"a"}')
    assert read_text(RESPONSES, [created, delta, created, delta]) == "a"


def test_n_different_bytes_counts_positions_and_lengths() -> None:
    """Zero only for equal streams."""
    assert n_different_bytes(b"abc", b"abc") == 0
    assert n_different_bytes(b"abc", b"abd") == 1
    assert n_different_bytes(b"abc", b"ab") == 1
