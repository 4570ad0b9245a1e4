"""The prompt in the order in which engines read it, and its session, in all dialects."""

from contextlib import suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.core.errors import Rejected
from stayfast.core.types import Api
from stayfast.wire.prompt import RequestPrompt, read_prompt, read_session
from stayfast.wire.request_body import decode

JSON = st.recursive(st.none() | st.booleans() | st.integers(0, 9) | st.text(max_size=5),
                    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
                    max_leaves=8)
FIELDS = ("tools", "system", "messages", "input", "session_id", "conversation", "prompt_cache_key", "metadata", "user",
          "safety_identifier", "previous_response_id")


def body(**fields: object) -> bytes:
    """As a client sends it."""
    return msgspec.json.encode({"model": "m", **fields})


def test_read_prompt_next_turn_has_this_turn_as_prefix() -> None:
    """Wherever the system prompt is in the body."""
    messages = [{"role": "user", "content": "one"}]
    turn = read_prompt(body(max_tokens=5, messages=messages, system="be brief", tools=[{"name": "f"}])).prompt
    later = [*messages, {"role": "assistant", "content": "1"}, {"role": "user", "content": "two"}]
    following = read_prompt(body(tools=[{"name": "f"}], system="be brief", user="u", messages=later)).prompt
    assert turn.startswith(b'[{"name":"f"}]"be brief"')
    assert following.startswith(turn[:-1])


@pytest.mark.parametrize(("fields", "session"), [
    ({"user": "u"}, b'"u"'), ({"metadata": {"user_id": "m"}, "user": "u"}, b"m"),
    ({"prompt_cache_key": "k", "metadata": {"user_id": "m"}}, b'"k"'), ({"conversation": {"id": "c"}}, b'{"id":"c"}'),
    ({"session_id": "s", "prompt_cache_key": "k"}, b'"s"'), ({"safety_identifier": "i", "user": ""}, b'"i"'),
    ({"user": None, "metadata": {"other": "x"}}, b""), ({}, b"")])
def test_read_session_sources_in_order(fields: dict[str, object], session: bytes) -> None:
    """Fields that name the conversation take precedence over those that name the user."""
    assert read_prompt(body(messages=[], **fields)).session_id == session


def test_read_session_previous_response() -> None:
    """In the responses API."""
    assert read_prompt(body(input="x", previous_response_id="resp_1")).previous_response_id == "resp_1"
    assert read_prompt(body(input="x")).previous_response_id == ""


@given(fields=st.dictionaries(st.sampled_from(FIELDS), JSON))
def test_read_prompt_accepts_every_decoded_fuzzed_body(fields: dict[str, object]) -> None:
    """No type of any field is a surprise."""
    found = read_prompt(body(**fields))
    assert isinstance(found.previous_response_id, str)
    assert isinstance(found.session_id, bytes)
    assert read_session(body(**fields)) == RequestPrompt(b"", found.session_id, found.previous_response_id)


@given(api=st.sampled_from([Api.CHAT, Api.RESPONSES, Api.MESSAGES]), user_id=st.text(min_size=1))
def test_read_prompt_accepts_every_decoded_body(api: Api, user_id: str) -> None:
    """Also with half of a surrogate pair in an unchecked field."""
    said = body(messages=[{"role": "user", "content": "x"}], input="x", max_tokens=1, metadata={"user_id": user_id})
    assert read_prompt(decode(api, said).body).session_id == user_id.encode()


@pytest.mark.parametrize("said", [rb'"\ud800"', rb'"\q"', b'"\xff"', b'"\x01"', b"tru", b"01", b"[1,]", rb'"\u12"',
                                  b'{"user_id":[]}'])
@pytest.mark.parametrize("field", ["metadata", "previous_response_id", "user", "session_id"])
def test_read_prompt_non_text_fields_are_ignored(said: bytes, field: str) -> None:
    """Either `decode` rejects the body, or it can be read."""
    for api in (Api.CHAT, Api.RESPONSES, Api.MESSAGES):
        text = (b'{"model":"m","max_tokens":1,"input":"x","messages":[{"role":"user","content":"x"}],"%b":%b}'
                % (field.encode(), said))
        with suppress(Rejected):
            read_prompt(decode(api, text).body)
