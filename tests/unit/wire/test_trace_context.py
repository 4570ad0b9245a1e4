"""wire.trace_context: W3C's rules, with the cases of its own test suite."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.core.events import Trace
from stayfast.wire.trace_context import (
    MAX_STATE_CHARS,
    encode_trace_headers,
    make_child_span,
    parse_traceparent,
    start_trace,
)

ID, PARENT = "12345678901234567890123456789012", "1234567890123456"
VALID = f"00-{ID}-{PARENT}-01"


def state_of(text: str) -> str:
    """The `tracestate` that is forwarded."""
    place = parse_traceparent(VALID, text)
    assert place is not None
    return place.state


@pytest.mark.parametrize(("header", "is_sampled", "is_random"), [
    (VALID, True, False), (f"00-{ID}-{PARENT}-00", False, False), (f"00-{ID}-{PARENT}-03", True, True),
    (f"00-{ID}-{PARENT}-fc", False, False), (f" {VALID}\t", True, False), (f"cc-{ID}-{PARENT}-01", True, False),
    (f"cc-{ID}-{PARENT}-01-what-the-future-will-be-like", True, False), (f"01-{ID}-{PARENT}-09-", True, False),
])
def test_caller_of_valid_traceparent(header: str, is_sampled: bool, is_random: bool) -> None:
    """A later version is read by the rules of version 00; undefined flags are dropped."""
    assert parse_traceparent(header) == Trace(ID, "", PARENT, is_sampled, "", is_random)


@pytest.mark.parametrize("header", [
    "", "00", f"ff-{ID}-{PARENT}-01", f".0-{ID}-{PARENT}-01", f"0-{ID}-{PARENT}-01", f"000-{ID}-{PARENT}-01",
    f"00-{'0' * 32}-{PARENT}-01", f"00-{ID}-{'0' * 16}-01", f"00-{ID[:-1]}-{PARENT}-01", f"00-{ID}0-{PARENT}-01",
    f"00-{ID[:-1]}.-{PARENT}-01", f"00-{ID}-{PARENT}0-01", f"00-{ID}-{PARENT[:-1]}-01", f"00-{ID}-{PARENT}-1",
    f"00-{ID}-{PARENT}-.0", f"00-{ID}-{PARENT}-001", f"{VALID}-tail", f"{VALID}.", f"cc-{ID}-{PARENT}-01.tail",
    f"00-{ID}-{'A' * 16}-01", f"{VALID}, {VALID}", f"{VALID}\n", VALID.replace("1", "\u0661"),
])
def test_caller_of_invalid_traceparent_is_none(header: str) -> None:
    """They are as if they had not been sent."""
    assert parse_traceparent(header) is None


@pytest.mark.parametrize(("given_state", "kept"), [
    ("", ""), ("foo=1", "foo=1"), ("foo=1,bar=2", "foo=1,bar=2"), ("foo=1 \t , \t bar=2, \t baz=3", "foo=1,bar=2,baz=3"),
    ("foo=1,,bar=2, ", "foo=1,bar=2"), ("foo=1,foo=1", "foo=1,foo=1"), ("fw529a3039@dt=FfAfe", "fw529a3039@dt=FfAfe"),
    ("0a=1", "0a=1"), ("a b=1", ""), ("Foo=1", ""), ("foo=1=2", ""), ("foo =1", ""), ("foo", ""), ("foo=", ""), ("=1", ""),
    ("foo=a b", "foo=a b"), ("foo=\u00e9", ""), (f"{'z' * 256}=1", f"{'z' * 256}=1"), (f"{'z' * 257}=1", ""),
    (f"foo={'v' * 256}", f"foo={'v' * 256}"), (f"foo={'v' * 257}", ""),
    (",".join(f"k{n}=1" for n in range(32)), ",".join(f"k{n}=1" for n in range(32))),
    (",".join(f"k{n}=1" for n in range(33)), ""),
])
def test_caller_of_tracestate(given_state: str, kept: str) -> None:
    """One invalid member drops the whole list, but not the parent."""
    assert state_of(given_state) == kept


def test_caller_of_long_tracestate_loses_long_members_first() -> None:
    """The rest fits and begins with the caller's own member."""
    long = f"long={'x' * 200}"
    short = [f"k{n}={'v' * 40}" for n in range(9)]
    assert state_of(",".join([short[0], long, *short[1:]])) == ",".join(short)
    assert state_of(",".join([short[0], *([long] * 3)])) == f"{short[0]},{long},{long}"
    assert state_of(",".join([*short, *short])) == ",".join([*short, *short][:11])


@given(st.text(max_size=80), st.text(max_size=80))
def test_caller_of_any_text_never_raises(parent: str, state: str) -> None:
    """The forwarded state is ASCII on one line."""
    parse_traceparent(parent, state)
    place = parse_traceparent(VALID, state)
    assert place is not None
    assert place.state.isascii()
    assert place.state.isprintable()


@given(st.lists(st.from_regex(r"[a-z][a-z0-9_*/@-]{0,40}=[!-+\--<>-~]{1,200}", fullmatch=True), max_size=40))
def test_caller_of_state_is_valid_and_bounded(members: list[str]) -> None:
    """At most 512 characters, in the original order, for any number of members."""
    kept = state_of(",".join(members))
    assert len(kept) <= MAX_STATE_CHARS
    assert state_of(kept) == kept
    rest = iter(members)
    assert all(member in rest for member in kept.split(",") if member)


@given(st.randoms(use_true_random=False), st.floats(0, 1))
def test_headers_of_is_parsed_back(rng: Random, ratio: float) -> None:
    """The span becomes the parent of the next service."""
    root = start_trace(rng, ratio)
    assert root.parent_id is None
    attempt = make_child_span(root, rng)
    assert (attempt.trace_id, attempt.parent_id) == (root.trace_id, root.span_id)
    ((name, value),) = encode_trace_headers(attempt)
    assert name == "traceparent"
    assert parse_traceparent(value) == Trace(root.trace_id, "", attempt.span_id, root.is_sampled, "", is_random=True)


def test_below_keeps_state_and_flags_of_the_caller() -> None:
    """A request under a caller's span keeps trace, decision, state and the flag of random ids."""
    caller = parse_traceparent(f"00-{ID}-{PARENT}-02", "foo=1")
    assert caller is not None
    own = make_child_span(caller, Random(1))
    assert own == Trace(ID, own.span_id, PARENT, is_sampled=False, state="foo=1", is_random=True)
    assert own.span_id not in ("", PARENT)
    assert encode_trace_headers(own) == [("traceparent", f"00-{ID}-{own.span_id}-02"), ("tracestate", "foo=1")]


@pytest.mark.parametrize("ratio", [0.0, 0.01, 0.5, 1.0])
def test_new_trace_samples_by_ratio(ratio: float) -> None:
    """The share of sampled traces is the ratio; all and none are exact."""
    rng = Random(3)
    share = sum(start_trace(rng, ratio).is_sampled for _ in range(20_000)) / 20_000
    assert share == ratio if ratio in (0.0, 1.0) else abs(share - ratio) < 0.015


def test_new_trace_ids_are_never_zero() -> None:
    """Zero is no id."""
    class Zeros(Random):
        def getrandbits(self, k: int) -> int:
            return 0

    place = start_trace(Zeros(), 1.0)
    assert (place.trace_id, place.span_id) == (f"{1:032x}", f"{1:016x}")
