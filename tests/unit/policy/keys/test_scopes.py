"""Scopes of keys: their form, their rights, and the matching of patterns."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.policy.keys.scopes import (
    DEFAULT_SCOPES,
    MAX_PATTERNS,
    compile_scopes,
    matches_pattern,
    normalize_scopes,
)

TEXTS = st.text("ab*.", max_size=12)


@given(TEXTS, st.text("ab.", max_size=12))
def test_matches_pattern_equals_a_regular_expression(pattern: str, name: str) -> None:
    """The reference: each star is `.*`, everything else is itself."""
    expected = re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), name) is not None
    assert matches_pattern(pattern, name) == expected


@pytest.mark.parametrize(("pattern", "name", "matches"), [
    ("gpt-4o", "gpt-4o", True), ("gpt-4o", "gpt-4o-mini", False), ("gpt-4o*", "gpt-4o-mini", True), ("*", "", True),
    ("*", "a/b", True), ("", "", True), ("", "a", False), ("GPT-*", "gpt-4o", False), ("*mini", "gpt-4o-mini", True),
    ("a*b*c", "a-b-b-c", True), ("a*b*c", "a-b-b", False), ("[ab]", "a", False), ("?", "a", False)])
def test_matches_pattern_examples(pattern: str, name: str, matches: bool) -> None:
    assert matches_pattern(pattern, name) == matches


def test_matches_pattern_with_many_stars_ends_soon() -> None:
    """A regular expression of this form would backtrack for ever."""
    assert not matches_pattern("*a" * 60 + "b", "a" * 5000)


@given(st.lists(st.sampled_from(["admin", "metrics", "routes:a", "routes:b*,a", "routes:*", "routes: c , a"]), max_size=6))
def test_normalize_scopes_is_stable_and_grants_what_one_of_them_names(given_scopes: list[str]) -> None:
    scopes = normalize_scopes(given_scopes)
    assert normalize_scopes(scopes) == scopes
    rights = compile_scopes(scopes)
    if not given_scopes:
        assert scopes == DEFAULT_SCOPES
        assert rights.allows_all_routes
        return
    assert rights.is_admin == ("admin" in given_scopes)
    assert rights.may_read_metrics == bool({"admin", "metrics"} & set(given_scopes))
    for name in ("a", "b", "bb", "c", "d"):
        allowed = any(matches_pattern(pattern.strip(), name) for scope in given_scopes if scope.startswith("routes:")
                      for pattern in scope.removeprefix("routes:").split(","))
        assert rights.allows_route(name) == allowed


@pytest.mark.parametrize("scope", ["", "root", "routes", "routes:", "routes:a,,b", "admin:x", "Admin", "routes:" + "x" * 200,
                                   "routes:a\x00"])
def test_normalize_scopes_refuses_what_is_no_scope(scope: str) -> None:
    with pytest.raises(ValueError, match=r"scope|pattern"):
        normalize_scopes([scope])


def test_normalize_scopes_bounds_the_patterns() -> None:
    with pytest.raises(ValueError, match=str(MAX_PATTERNS)):
        normalize_scopes([f"routes:{','.join(f'r{n}' for n in range(MAX_PATTERNS + 1))}"])


def test_compile_scopes_of_a_later_version_grants_nothing() -> None:
    rights = compile_scopes(("superuser", "routes:a"))
    assert (rights.is_admin, rights.may_read_metrics, rights.allows_route("a"), rights.allows_route("b")) == (
        False, False, True, False)
