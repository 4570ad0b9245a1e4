"""policy.prompt_cache.learned: minimum lengths, rejected fields, refreshes, and parts of keys."""

from collections import Counter

import pytest

from stayfast.policy.prompt_cache.learned import (
    AGAIN_S,
    KEY,
    MARGIN_S,
    MIN_USES,
    MOST,
    MOST_TIMES,
    CacheKeyParts,
    HotPrefixes,
    PrefixRefresh,
    RejectedFields,
    TokenFloor,
    TokenScale,
)
from stayfast.policy.prompt_cache.rules import HOUR_S, rules_of

GPT = rules_of("gpt-5.6-mini", {})
assert GPT is not None


def test_token_floor_two_silent_answers_raise_it() -> None:
    """To what was marked in vain; one that wrote says that it is not higher."""
    floor = TokenFloor(1024)
    floor.record_usage(1500, n_read=0, n_written=0, now=0.0)
    floor.record_usage(1500, n_read=0, n_written=1500, now=1.0)
    floor.record_usage(1600, n_read=0, n_written=0, now=2.0)
    assert floor.tokens(2.0) == 1024
    floor.record_usage(1700, n_read=0, n_written=0, now=3.0)
    assert floor.tokens(3.0) == 1700


def test_token_floor_shorter_cached_prefix_lowers_it() -> None:
    """After an hour; at once if a prompt as short is cached; and it never rises beyond its maximum."""
    floor = TokenFloor(1024)
    for _ in range(2):
        floor.record_usage(24_000, n_read=0, n_written=0, now=0.0)
    assert floor.tokens(HOUR_S - 1) == 1024 * MOST_TIMES
    assert floor.tokens(HOUR_S) == 1024
    floor.record_usage(30_000, n_read=0, n_written=30_000, now=10.0)
    assert floor.tokens(10.0) == 1024 * MOST_TIMES
    floor.record_usage(20_000, n_read=20_000, n_written=0, now=11.0)
    assert floor.tokens(11.0) == 1024


def test_refusals_rejected_field_is_left_out_for_an_hour() -> None:
    """A mark or a key, each for itself."""
    assert GPT is not None
    refusals = RejectedFields()
    refusals.add("prompt_cache_breakpoint", 0.0)
    rules = refusals.apply_to(GPT, 1.0)
    assert (rules.marks, rules.most_marks, rules.has_key) == ("none", 0, True)
    refusals.add(KEY, 10.0)
    assert not refusals.apply_to(GPT, 11.0).has_key
    assert refusals.apply_to(GPT, HOUR_S + 10) == GPT


def test_token_scale_follows_reported_tokens() -> None:
    """From four bytes a token to what the answers tell."""
    scale = TokenScale()
    for _ in range(60):
        scale.record_usage(6000, 1000)
    scale.record_usage(0, 0)
    assert scale.bytes_a_token == pytest.approx(6, abs=0.01)


def test_prompt_parts_hold_as_many_conversations_as_a_machine() -> None:
    """Agents one each, as long as their pace is only guessed; questions that come alone share by the dozen."""
    agents = CacheKeyParts(0.0, is_of_agents=True)
    assert [agents.part_for(n, n * 0.1) for n in range(4)] == [0, 1, 2, 3]
    assert agents.part_for(2, 30.0) == 2
    alone = CacheKeyParts(0.0, is_of_agents=False)
    parts = [alone.part_for(n, n * 5.0) for n in range(60)]
    assert max(parts[24:]) <= 1
    assert agents.part_for(77, 500.0) == 0  # all are over: the first part has room again


@pytest.mark.parametrize(("every_s", "most_parts"), [(5.0, 2), (1.1, 8)])
def test_prompt_parts_single_questions_lower_the_guess(every_s: float, most_parts: int) -> None:
    """Though they have tools: a conversation of one request makes no eight requests a minute."""
    parts = CacheKeyParts(0.0, is_of_agents=True)
    assert len({parts.part_for(n, n * every_s) for n in range(int(60 / every_s))}) <= most_parts


def test_prompt_parts_continuing_agents_keep_the_guess() -> None:
    """Each at eight requests a minute, and a new one every two seconds: no part has much more than a machine takes."""
    parts = CacheKeyParts(0.0, is_of_agents=True)
    steps = sorted((begins_at + n * 7.5, agent) for agent, begins_at in enumerate(range(0, 40, 2)) for n in range(8))
    asked = [(parts.part_for(agent, at), at) for at, agent in steps]
    in_a_minute = Counter(part for part, at in asked if at < 60.0)
    assert max(in_a_minute.values()) <= 17
    assert 9 <= len(in_a_minute) <= 20


OPENING = PrefixRefresh("up", "claude-opus-5", b"{}", 1000.0, 300.0)


def used(hot: HotPrefixes, n: int, now: float, opening: PrefixRefresh = OPENING) -> None:
    """So many requests begin with it."""
    for _ in range(n):
        if not hot.record_use(opening.model, now):
            hot.add(opening, opening.model, now)


def due(hot: HotPrefixes, now: float) -> list[PrefixRefresh]:
    """All prefixes due now; each refresh is answered at once."""
    found = []
    while (taken := hot.take_due(now)) is not None:
        hot.record_refresh(taken[0])
        found.append(taken[1])
    return found


def test_hot_prefixes_due_once_before_expiry() -> None:
    """Not before; and not again until it is about to end again."""
    hot = HotPrefixes(10_000)
    used(hot, MIN_USES, 0.0)
    assert due(hot, 300 - MARGIN_S - 1) == []
    assert due(hot, 300 - MARGIN_S) == [OPENING]
    assert due(hot, 300 - MARGIN_S + 1) == []
    assert due(hot, 2 * (300 - MARGIN_S)) == [OPENING]


def test_hot_prefixes_rare_or_expired_are_not_due() -> None:
    """Two uses are too few; an expired prefix must be written again by a real request."""
    hot = HotPrefixes(10_000)
    used(hot, MIN_USES - 1, 0.0)
    assert due(hot, 290) == []
    used(hot, 1, 291.0)
    assert due(hot, 291 + 301) == []
    used(hot, MIN_USES - 1, 600.0)
    assert due(hot, 600 + 290) == []


def test_hot_prefixes_budget_bounds_tokens_per_hour() -> None:
    """Spent is spent, until it has come again."""
    hot = HotPrefixes(1500)
    other = OPENING._replace(model="other")
    used(hot, MIN_USES, 0.0)
    used(hot, MIN_USES, 0.0, other)
    assert due(hot, 290) == [OPENING]
    used(hot, 1, 290.0, other)
    assert due(hot, 570) == []  # 500 and 280 seconds' worth are less than 1000


def test_hot_prefixes_without_real_use_are_given_up() -> None:
    """And a real use begins it anew."""
    hot = HotPrefixes(1_000_000)
    used(hot, MIN_USES, 0.0)
    times = [now for now in range(0, 20_000, 15) if due(hot, float(now))]
    assert len(times) == MOST
    assert times[-1] < 3600


def test_hot_prefixes_earliest_expiry_goes_first() -> None:
    """A recently used prefix can wait; a failed refresh is repeated until the prefix expires."""
    hot = HotPrefixes(1_000_000)
    early, late = OPENING, OPENING._replace(model="late")
    used(hot, MIN_USES, 10.0, late)
    used(hot, MIN_USES, 5.0, early)
    assert hot.take_due(280.0) == (early.model, early)
    assert hot.take_due(280.0) == (late.model, late)
    assert hot.take_due(280.0) is None
    hot.record_refresh(late.model)
    assert hot.take_due(280.0 + AGAIN_S) == (early.model, early)
    assert hot.take_due(304.0) is None
    assert hot.take_due(305.0) is None
    used(hot, 1, 306.0, early)  # it was gone: this one begins anew
    assert hot.take_due(306.0 + 290) is None


def test_hot_prefixes_refresh_counts_from_its_request() -> None:
    """Not from its due time, nor from its answer; a real use in between is later."""
    hot = HotPrefixes(1_000_000)
    used(hot, MIN_USES, 0.0)
    assert hot.take_due(270.0) is not None
    hot.record_refresh(OPENING.model)
    assert hot.take_due(270.0 + 300 - MARGIN_S - 1) is None
    assert hot.take_due(270.0 + 300 - MARGIN_S) is not None
    used(hot, 1, 540.0)
    hot.record_refresh(OPENING.model)
    assert hot.take_due(540.0 + 300 - MARGIN_S - 1) is None
    assert hot.take_due(540.0 + 300 - MARGIN_S) is not None
