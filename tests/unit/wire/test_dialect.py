"""Helpers that all dialects share."""

from time import process_time

import pytest

from stayfast.core.conversation import Image, Message, Text, ToolUse
from stayfast.core.errors import Rejected
from stayfast.wire.dialect import join_adjacent_messages, join_instructions, parse_image_url, parse_object, read_begin


def test_join_neighbours_joins_turns_but_not_system_messages() -> None:
    """Texts and calls of one role are one message; each system message stays alone."""
    user, call = Text("a"), ToolUse("c", "f", "{}")
    messages = [Message("system", (user,)), Message("system", (user,)), Message("user", (user,)), Message("user", (call,))]
    assert join_adjacent_messages(messages) == (messages[0], messages[1], Message("user", (user, call)))


def test_join_neighbours_of_many_messages_takes_linear_time() -> None:
    """Joining 50,000 messages pairwise would take seconds, on the event loop."""
    messages = [Message("user", (Text("a"),))] * 50_000
    began_at = process_time()
    (joined,) = join_adjacent_messages(messages)
    assert process_time() - began_at < 0.5
    assert len(joined.parts) == 50_000


@pytest.mark.parametrize(("url", "detail", "image"), [
    ("https://x/y.png", "auto", Image(url="https://x/y.png")),
    ("https://x/y.png", "high", Image(url="https://x/y.png", detail="high")),
    ("data:image/png;base64,aGk=", None, Image(data="aGk=", media_type="image/png")),
    ("data:image/png,raw", None, Image(url="data:image/png,raw"))])
def test_image_of_splits_base64_data_urls_only(url: str, detail: str | None, image: Image) -> None:
    """Any other URL stays whole, and the default detail is dropped."""
    assert parse_image_url(url, detail) == image


@pytest.mark.parametrize(("body", "expected"), [
    (b'{"a":1}', {"a": 1}), (b"[1]", {}), (b"{", {}), (b"\xff", {}), (b"[" * 5000, {})])
def test_object_in_returns_only_objects(body: bytes, expected: dict[str, int]) -> None:
    """Other values, broken text and deep nesting are an empty object."""
    assert parse_object(body) == expected


@pytest.mark.parametrize(("created_at", "expected"), [(7.9, 7), (-1, None), (2**53, None), ("7", None), (None, None)])
def test_read_begin_ignores_invalid_instants(created_at: object, expected: int | None) -> None:
    """An invalid date of an upstream must not fail the answer."""
    assert read_begin(1, "m", created_at).created_at == expected


def test_join_instructions_rejects_a_part_that_is_no_text() -> None:
    """The error names the part."""
    assert join_instructions([Text("a"), Text("b")], "system") == "a\nb"
    with pytest.raises(Rejected, match=r"system\[1\]"):
        join_instructions([Text("a"), Image(url="u")], "system")
