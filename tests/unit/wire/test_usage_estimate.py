"""Estimates that serve as bounds hold for the least favourable vocabulary."""

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from stayfast.core.types import Api
from stayfast.wire.request_body import decode
from stayfast.wire.usage import estimate_input_tokens_high, estimate_text_tokens_high, may_exceed_tokens

ENGLISH = "The quick brown fox jumps over the lazy dog, and then it sleeps in the sun for a while. "


@pytest.mark.parametrize(("text", "least", "most"), [
    (ENGLISH * 10, 200, 240),  # 4.4 bytes a token in the GPT vocabularies: 200
    ("a" * 4000, 1000, 1000),
    ("\u6f22\u5b57" * 650, 1300, 1950),  # one to two tokens a character
    ("\u0e2a\u0e27\u0e31" * 100, 300, 450),
    ("\U0001f469" * 900, 1800, 1800),  # two to three tokens each
    ("7" * 3900, 3900, 3900),  # a token a digit where numbers are not grouped
    ("1,2,3," * 100, 600, 600),  # digits and commas are tokens
    ('{"a":1,"b":23}' * 50, 450, 600),
])
def test_text_tokens_of_samples(text: str, least: int, most: int) -> None:
    """Between the counts of real vocabularies."""
    assert least <= estimate_text_tokens_high(text.encode()) <= most


@given(st.text(max_size=200), st.text(max_size=200))
def test_text_tokens_are_bounded_by_the_bytes(one: str, other: str) -> None:
    """Two texts are no less than each of them, at least a quarter of the bytes and never more than a token a byte."""
    tokens = estimate_text_tokens_high((one + other).encode())
    assert tokens >= estimate_text_tokens_high(one.encode()) + estimate_text_tokens_high(other.encode()) - 1e-6
    assert len((one + other).encode()) / 4 <= tokens <= len((one + other).encode())


@given(st.recursive(st.text(max_size=20) | st.integers(0, 9), lambda inner: st.lists(inner, max_size=4)
                    | st.dictionaries(st.sampled_from(["text", "content", "name"]), inner, max_size=3), max_leaves=20))
def test_may_be_over_small_body_is_not(said: object) -> None:
    """A body that passes the cheap check also passes the exact count."""
    body = msgspec.json.encode({"model": "m", "messages": [{"role": "user", "content": said}]})
    plain = decode(Api.CHAT, b'{"model":"m","messages":[{"role":"user","content":"x"}]}')
    request = msgspec.structs.replace(plain, body=body)
    most = len(body)
    assume(b"image" not in body)
    assert not may_exceed_tokens(body, most)
    assert estimate_input_tokens_high(request) <= most


def test_input_tokens_include_tools_and_images() -> None:
    """The names in a tool's schema are read; a picture by its address is a few bytes and many tokens."""
    messages = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://x/y"}}]}]
    body = msgspec.json.encode({"model": "m", "messages": messages})
    assert may_exceed_tokens(body, 1000)
    assert estimate_input_tokens_high(decode(Api.CHAT, body)) == 1604
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"properties": {"word" * 100: {}}}}}]
    assert estimate_input_tokens_high(decode(Api.CHAT, msgspec.json.encode({
        "model": "m", "messages": [{"role": "user", "content": "x"}], "tools": tools}))) > 100
