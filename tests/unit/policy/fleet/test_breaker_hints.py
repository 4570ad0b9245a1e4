"""The quorum over the breakers of several gateways."""

from hypothesis import given
from hypothesis import strategies as st

from stayfast.policy.fleet.breaker_hints import (
    NO_VERDICT,
    VIEW_TTL_S,
    BreakerBoard,
    BreakerView,
    is_quorum,
    lower_thresholds,
    upstream_digest,
)
from stayfast.policy.resilience.breaker import BreakerConfig

UP = upstream_digest("openai", "https://example.com/v1", "m")
VIEWS = st.builds(BreakerView, st.booleans(), st.booleans(), st.integers(0, 9))


def board_of(*views: BreakerView) -> BreakerBoard:
    """One gateway for each view, at 0 s."""
    board = BreakerBoard()
    for n, view in enumerate(views):
        board.receive(f"g{n}", {UP: view}, 0.0, 0.0)
    return board


@given(views=st.lists(VIEWS, max_size=8), has_traffic=st.booleans())
def test_board_opens_by_two_votes_and_half_of_the_traffic(views: list[BreakerView], *, has_traffic: bool) -> None:
    """Never by one gateway, whatever it publishes; never against a majority that calls the upstream without trouble."""
    verdict = board_of(*views).judge(UP, 1.0, has_traffic=has_traffic)
    n_open = sum(view.is_open for view in views)
    n_well = sum(view.has_traffic and not view.is_open for view in views) + has_traffic
    assert verdict.has_quorum() is (n_open >= 2 and n_open >= n_well)
    assert verdict.is_lowered is (n_open > 0)


@given(st.lists(VIEWS, min_size=1, max_size=8))
def test_one_more_open_breaker_never_ends_a_quorum(views: list[BreakerView]) -> None:
    before = board_of(*views).judge(UP, 1.0, has_traffic=True).has_quorum()
    after = board_of(*views, BreakerView(True, is_open=True)).judge(UP, 1.0, has_traffic=True).has_quorum()
    assert after or not before


@given(st.integers(0, 50), st.integers(0, 50))
def test_quorum_needs_two_and_half(n_open: int, n_with_traffic: int) -> None:
    assert is_quorum(n_open, n_with_traffic) is (n_open > 1 and n_open >= n_with_traffic / 2)


def test_ignored_votes_do_not_count() -> None:
    down, well = BreakerView(has_traffic=True, is_open=True), BreakerView(has_traffic=True)
    verdict = board_of(down, down, well).judge(UP, 1.0, has_traffic=True)
    assert (sorted(verdict.votes), sorted(verdict.well), verdict.n_with_traffic) == (["g0", "g1"], ["g2"], 4)
    assert verdict.has_quorum()
    assert not verdict.has_quorum(verdict.votes)
    assert not verdict.has_quorum(frozenset({"g0"}))
    assert verdict.has_quorum(frozenset({"g7"}))


def test_views_expire_and_leave_with_their_gateway() -> None:
    down = BreakerView(has_traffic=True, is_open=True, cause="5 failures in a row")
    board = board_of(down, down)
    assert board.judge(UP, VIEW_TTL_S - 0.1, has_traffic=True).has_quorum()
    assert board.judge(UP, VIEW_TTL_S, has_traffic=False) == NO_VERDICT
    board.receive_one("g0", UP, down, 10.0, 10.0)
    assert board.judge(UP, 11.0, has_traffic=True).is_lowered
    board.keep_only(frozenset({"g1"}))
    assert board.judge(UP, 11.0, has_traffic=False) == NO_VERDICT


def test_hint_replaces_one_view_and_leaves_the_others() -> None:
    board, other = board_of(BreakerView(has_traffic=True)), upstream_digest("openai", "https://example.com/v1", "n")
    board.receive_one("g0", other, BreakerView(has_traffic=True, is_open=True), 1.0, 1.0)
    assert board.judge(UP, 2.0, has_traffic=False).n_with_traffic == 1
    assert board.judge(other, 2.0, has_traffic=False).is_lowered


def test_record_older_than_a_hint_is_ignored() -> None:
    """Sent before the breaker opened, and read after the hint; each gateway has a clock of its own."""
    well, down = BreakerView(has_traffic=True), BreakerView(has_traffic=False, is_open=True)
    board = BreakerBoard()
    board.receive("g0", {UP: well}, 500.0, 1.0)
    board.receive_one("g0", UP, down, 500.7, 1.5)
    board.receive("g0", {UP: well}, 500.5, 2.0)
    assert board.judge(UP, 2.0, has_traffic=True).is_lowered
    board.receive("g0", {UP: well}, 501.5, 3.0)
    assert not board.judge(UP, 3.0, has_traffic=True).is_lowered


def test_digest_is_of_what_an_upstream_is() -> None:
    """A slash at the end changes nothing; another kind, address or model does."""
    assert upstream_digest("openai", "https://example.com/v1/", "m") == UP
    assert len({UP, upstream_digest("anthropic", "https://example.com/v1", "m"),
                upstream_digest("openai", "https://example.org/v1", "m"),
                upstream_digest("openai", "https://example.com/v1", "n")}) == 4


@given(st.integers(1, 1000), st.integers(1, 1000))
def test_lowered_thresholds_are_half_and_at_least_one(n_in_row: int, min_calls: int) -> None:
    config = BreakerConfig(consecutive_failures=n_in_row, min_calls=min_calls, n_calls=1000)
    lowered = lower_thresholds(config)
    assert 1 <= lowered.consecutive_failures <= n_in_row / 2 + 0.5
    assert 1 <= lowered.min_calls <= min_calls / 2 + 0.5
    assert (lowered.failure_ratio, lowered.open_s) == (config.failure_ratio, config.open_s)
