"""Keys of requests that differ in nothing but their question."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.core.types import Api, Request
from stayfast.wire.alike import _OTHER_WORDS, MAX_BODY_BYTES, MAX_FRAMES, Alike
from stayfast.wire.canonical import asked, key_of, said_of, terms_of
from stayfast.wire.decode import decode

WHO = said_of("tenant")
SYSTEM = {"role": "system", "content": "Be brief."}


def said(question: str, *before: dict[str, Any], **more: Any) -> bytes:
    """A chat's body, as most clients write it."""
    return msgspec.json.encode({"model": "m", "messages": [*before, {"role": "user", "content": question}], **more})


def the_long_way(body: bytes, who: bytes = WHO, api: Api = Api.CHAT) -> bytes | None:
    """Its key, as it is read without any memory; None where there is none."""
    what = asked(decode(api, body))
    return None if what.why_not else key_of(terms_of(what, who), what)


def taught(*bodies: bytes, who: bytes = WHO, api: Api = Api.CHAT) -> Alike:
    """What has seen these, each twice, by whoever asks."""
    alike = Alike()
    for body in [*bodies, *bodies]:
        request = decode(api, body)
        if not asked(request).why_not:
            learn(alike, request, who)
    return alike


def learn(alike: Alike, request: Request, who: bytes = WHO) -> None:
    """As the cache does of what it has read."""
    what = asked(request)
    alike.learn(request, who, terms_of(what, who), what)


def test_another_question_has_the_key_that_reading_finds() -> None:
    """And nothing is known of a body that came once, of another tenant's, or with another system prompt."""
    alike, other = taught(said("What is TTFT?", SYSTEM)), said("  What is ITL?", SYSTEM)
    assert alike.key(other, WHO) == the_long_way(other)
    assert alike.key(other, WHO) == the_long_way(said("What is ITL?", SYSTEM))
    assert alike.key(other, said_of("another")) is None
    assert alike.key(said("What is ITL?"), WHO) is None
    once, request = Alike(), decode(Api.CHAT, other)
    learn(once, request)
    assert once.key(other, WHO) is None


@pytest.mark.parametrize("api", [Api.CHAT, Api.MESSAGES, Api.RESPONSES])
def test_in_every_dialect_that_has_turns(api: Api) -> None:
    """Spaced as Python's json spaces it, too."""
    def body(question: str, *, is_spaced: bool) -> bytes:
        turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
                 {"role": "user", "content": question}]
        whole = msgspec.json.encode({"model": "m", "max_tokens": 9, "input" if api is Api.RESPONSES else "messages": turns})
        return msgspec.json.format(whole, indent=0) if is_spaced else whole

    for is_spaced in (False, True):
        alike, other = taught(body("one", is_spaced=is_spaced), api=api), body("two", is_spaced=is_spaced)
        assert alike.key(other, WHO) == the_long_way(other, api=api) is not None


@pytest.mark.parametrize("trap", [
    b'{"model":"m","messages":[{"role":"user","content":"A"},{"content":"A","role":"user"}]}',
    b'{"model":"m","messages":[{"role":"user","content":"A"}],"messages":[{"content":"A","role":"user"}]}',
    b'{"model":"m","messages":[{"role":"user","content":"A"}],"m\\u0065ssages":[{"content":"A","role":"user"}]}',
    b'{"model":"m","messages":[{"role":"user","content":"A","content":"A"}]}',
    b'{"model":"m","messages":[{"role":"user","content":"A","content":"A "}],"temperature":0}',
    b'{"model":"m","messages":[{"content":"A","role":"user"}],"metadata":{"x":[{"role":"user","content":"A"}]}}',
    b'{"model":"m","messages":[{"content":"A","role":"user"}],"x":"{\\"role\\":\\"user\\",\\"content\\":\\"A\\""}',
])
def test_a_place_that_is_not_the_question_is_not_learned(trap: bytes) -> None:
    """Members twice, names spelled with escapes, words that only look like it: else whoever writes there would choose the
    question under which the answer to another one is kept.
    """
    alike = taught(trap)
    for other in (trap.replace(b"A", b"B", 1), trap.replace(b"A", b"B")):
        assert alike.key(other, WHO) in (None, the_long_way(other))
    assert len(alike) == 0


def test_a_question_cannot_end_itself() -> None:
    """Escapes are read the long way; so are words of nothing, and very long bodies that are not like the last one."""
    alike = taught(said("A"))
    for question in ('B"},{"role":"user","content":"C', "B\\", "B\nC", "", "   "):
        assert alike.key(said(question), WHO) is None
    longer = said("x" * MAX_BODY_BYTES)
    assert Alike().key(longer, WHO) is taught(longer).key(longer, WHO) is None
    assert alike.key(said("B"), WHO) is not None
    assert alike.key(longer, WHO) is None  # though it is like the last one


@pytest.mark.parametrize("trap", [
    b'{"model":"m","messages":[{"role":"user","content":"one","content":"%b"}]}',
    b'{"model":"m","messages":[{"role":"user","content":"one"}],"messages":[{"content":"%b","role":"user"}]}',
    b'{"model":"m","messages":[{"content":"%b","role":"user"}],"cache_control":{"x":{"role":"user","content":"one"}}}',
])
def test_nobody_asks_for_what_is_put_into_the_place(trap: bytes) -> None:
    """Else who asks just that would teach any place to be the question."""
    body = trap % _OTHER_WORDS
    alike = taught(body)
    assert len(alike) == 0
    assert alike.key(body.replace(b"one", b"What is our refund policy?"), WHO) is None


def test_a_place_that_is_not_the_question_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading such a body costs no more from then on than if nobody remembered any."""
    body = b'{"model":"m","messages":[{"role":"user","content":"A"},{"content":"A","role":"user"}]}'
    alike = taught(body)
    monkeypatch.setattr("stayfast.wire.alike.asked", lambda _: pytest.fail("it is read again"))
    for _ in range(2):
        request = decode(Api.CHAT, body)
        learn(alike, request)
    assert alike.key(body, WHO) is None


def test_the_next_one_need_not_be_like_the_last_one() -> None:
    """A turn more begins and ends as the one before it; others come in between; short ones end before they began."""
    def turns(*questions: str) -> bytes:
        return said(questions[-1], SYSTEM, *({"role": "user", "content": question} for question in questions[:-1]))

    alike = taught(turns("A"), turns("A", "A"), said("A"))
    for body in (turns("B"), turns("C"), turns("A", "B"), turns("D"), said("B"), turns("A", "D"), said("E"), turns("E")):
        assert alike.key(body, WHO) == the_long_way(body) is not None
    for body in (turns("B", "A"), turns(""), turns("E"), turns("E", "A")):
        assert alike.key(body, WHO) == (the_long_way(body) if body == turns("E") else None)


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from([
    '"', "\\", '"role":"user","content":"', "\u00e9", "e\u0301", _OTHER_WORDS.decode(), "\u2028 x", " \t", "a\r\nb"])
ROLES = st.sampled_from(["system", "user", "assistant"])
TURNS = st.lists(st.fixed_dictionaries({"role": ROLES, "content": TEXTS}), max_size=3)
MORE = st.fixed_dictionaries({}, optional={
    "temperature": st.sampled_from([0, 0.0, 0.2, None]), "user": TEXTS, "metadata": st.fixed_dictionaries({"a": TEXTS}),
    "stop": st.lists(TEXTS, max_size=2)})
PLAIN = st.text(st.characters(codec="ascii", categories=["L", "N", "Zs"]), min_size=1).filter(str.strip)


@given(TURNS, MORE, TEXTS, TEXTS, st.booleans())
def test_it_never_says_what_reading_does_not(before: list[dict[str, Any]], more: dict[str, Any], one: str, other: str,
                                             is_spaced: bool) -> None:
    """Whatever stands around the question, and in it."""
    bodies = [said(question, *before, **more) for question in (one, other)]
    if is_spaced:
        bodies = [msgspec.json.format(body, indent=0) for body in bodies]
    bodies += [said(question, *before, {"role": "user", "content": one}, **more) for question in (one, other)]
    alike = taught(bodies[0], bodies[-1])
    for body in [*bodies, *reversed(bodies)]:  # some of them like the last one
        assert alike.key(body, WHO) in (None, the_long_way(body))


@given(TURNS, MORE, PLAIN, PLAIN)
def test_plain_words_are_always_known(before: list[dict[str, Any]], more: dict[str, Any], one: str, other: str) -> None:
    """In place of other plain words, whatever stands around them."""
    another = said(other, *before, **more)
    alike = taught(said(one, *before, **more))
    assert [alike.key(another, WHO), alike.key(another, WHO)] == [the_long_way(another)] * 2


def test_what_is_remembered_is_bounded() -> None:
    """By number; the oldest goes."""
    alike = Alike()
    for number in range(MAX_FRAMES + 1):
        for _ in range(2):
            request = decode(Api.CHAT, said("A", user=f"u{number}"))
            learn(alike, request)
    assert len(alike) == MAX_FRAMES
    last = said("B", user=f"u{MAX_FRAMES}")
    assert alike.key(last, WHO) == the_long_way(last)
    assert alike.key(said("B", user="u0"), WHO) is None
    assert alike.key(said("B", user="u1"), WHO) is not None
