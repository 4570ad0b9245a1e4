"""Which beginnings are asked for again, as instants."""

from stayfast.policy.prompt_cache.learned import AGAIN_S, MARGIN_S, MIN_USES, MOST, HotPrefixes, Opening

OPENING = Opening("up", "claude-opus-5", b"{}", 1000.0, 300.0)


def used(hot: HotPrefixes, n: int, now: float, opening: Opening = OPENING) -> None:
    """So many requests begin with it."""
    for _ in range(n):
        if not hot.used(opening.model, now):
            hot.add(opening, opening.model, now)


def due(hot: HotPrefixes, now: float) -> list[Opening]:
    """All that is asked for now; answers come at once."""
    found = []
    while (taken := hot.take(now)) is not None:
        hot.answered(taken[0])
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
    """Two uses are no habit; what has ended must be written anew by somebody who wants it."""
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
    """Whoever was used lately can wait; and one that nobody answered is asked for again, as long as it is there."""
    hot = HotPrefixes(1_000_000)
    early, late = OPENING, OPENING._replace(model="late")
    used(hot, MIN_USES, 10.0, late)
    used(hot, MIN_USES, 5.0, early)
    assert hot.take(280.0) == (early.model, early)
    assert hot.take(280.0) == (late.model, late)
    assert hot.take(280.0) is None
    hot.answered(late.model)
    assert hot.take(280.0 + AGAIN_S) == (early.model, early)
    assert hot.take(304.0) is None
    assert hot.take(305.0) is None
    used(hot, 1, 306.0, early)  # it was gone: this one begins anew
    assert hot.take(306.0 + 290) is None


def test_hot_prefixes_refresh_counts_from_its_request() -> None:
    """Not from when it was due, nor from when somebody looked; a real use meanwhile is later still."""
    hot = HotPrefixes(1_000_000)
    used(hot, MIN_USES, 0.0)
    assert hot.take(270.0) is not None
    hot.answered(OPENING.model)
    assert hot.take(270.0 + 300 - MARGIN_S - 1) is None
    assert hot.take(270.0 + 300 - MARGIN_S) is not None
    used(hot, 1, 540.0)
    hot.answered(OPENING.model)
    assert hot.take(540.0 + 300 - MARGIN_S - 1) is None
    assert hot.take(540.0 + 300 - MARGIN_S) is not None
