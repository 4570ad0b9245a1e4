"""Thought signatures in other dialects."""

from hypothesis import given
from hypothesis import strategies as st

from stayfast.wire.signatures import (
    ExtraContent,
    GoogleContent,
    encode_extra_content,
    mark_signature,
    read_extra_content,
    read_marked_signature,
)


@given(st.text(min_size=1))
def test_mark_signature_any_text_is_read_back(signature: str) -> None:
    """Marking loses nothing."""
    assert read_marked_signature(mark_signature(signature)) == signature


def test_read_marked_signature_of_another_provider_is_none() -> None:
    """A base64 text has no colon: Anthropic's and OpenAI's are never taken for Gemini's."""
    assert read_marked_signature("EuYBCkQYAiJA+/=") is None
    assert read_marked_signature(None) is None
    assert read_marked_signature("gemini:") is None


def test_read_extra_content_missing_levels_are_none() -> None:
    """Each level may be absent."""
    assert read_extra_content(None) is None
    assert read_extra_content(ExtraContent()) is None
    assert read_extra_content(ExtraContent(GoogleContent(""))) is None
    assert read_extra_content(ExtraContent(GoogleContent("c2ln"))) == "c2ln"
    assert encode_extra_content("c2ln") == {"google": {"thought_signature": "c2ln"}}
