"""Which beginnings are asked for again, as instants."""

from stayfast.policy.prefix_hot import MARGIN_S, MIN_USES, MOST, Hot, Opening

OPENING = Opening("up", "claude-opus-5", b"{}", 1000.0, 300.0)


def used(hot: Hot, n: int, now: float, opening: Opening = OPENING) -> None:
    """So many requests begin with it."""
    for _ in range(n):
        if not hot.used(opening.model, now):
            hot.add(opening, opening.model, now)


def test_it_is_due_shortly_before_its_end_and_once() -> None:
    """Not before; and not again until it is about to end again."""
    hot = Hot(10_000)
    used(hot, MIN_USES, 0.0)
    assert hot.due(300 - MARGIN_S - 1) == []
    assert hot.due(300 - MARGIN_S) == [OPENING]
    assert hot.due(300 - MARGIN_S + 1) == []
    assert hot.due(2 * (300 - MARGIN_S)) == [OPENING]


def test_what_is_rare_or_gone_is_not() -> None:
    """Two uses are no habit; what has ended must be written anew by somebody who wants it."""
    hot = Hot(10_000)
    used(hot, MIN_USES - 1, 0.0)
    assert hot.due(290) == []
    used(hot, 1, 291.0)
    assert hot.due(291 + 301) == []
    used(hot, MIN_USES - 1, 600.0)
    assert hot.due(600 + 290) == []


def test_the_budget_is_so_many_tokens_an_hour() -> None:
    """Spent is spent, until it has come again."""
    hot = Hot(1500)
    other = OPENING._replace(model="other")
    used(hot, MIN_USES, 0.0)
    used(hot, MIN_USES, 0.0, other)
    assert hot.due(290) == [OPENING]
    used(hot, 1, 290.0, other)
    assert hot.due(570) == []  # 500 and 280 seconds' worth are less than 1000


def test_without_a_real_use_it_ends() -> None:
    """And a real use begins it anew."""
    hot = Hot(1_000_000)
    used(hot, MIN_USES, 0.0)
    times = [now for now in range(0, 20_000, 15) if hot.due(float(now))]
    assert len(times) == MOST
    assert times[-1] < 3600
