"""What system prompts and their changes cost."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.core.prompt_versions import PromptVersionRow
from stayfast.policy.context.prompt_costs import cost_of_change, usd_a_day, usd_a_token

ROW = PromptVersionRow("chat", "a", n_tokens=2000.0, n_a_day=1000.0, cached_ratio=0.5, usd_per_mtok=3.0,
                       usd_per_mtok_read=0.3)


def test_usd_half_cached_is_the_mean_of_both_prices() -> None:
    assert usd_a_token(ROW) == pytest.approx(1.65e-6)
    assert usd_a_day(ROW) == pytest.approx(3.3)
    assert usd_a_day(ROW, 100.0) == pytest.approx(0.165)
    assert usd_a_token(msgspec.structs.replace(ROW, usd_per_mtok_read=None)) == pytest.approx(3e-6)


@pytest.mark.parametrize("changes", [{"usd_per_mtok": None}, {"n_a_day": None}])
def test_usd_without_price_or_rate_is_unknown(changes: dict[str, None]) -> None:
    row = msgspec.structs.replace(ROW, **changes)
    assert usd_a_day(row) is None
    assert cost_of_change(ROW, row) is None


@given(st.floats(0, 1), st.floats(0, 1), st.floats(1, 1e5), st.floats(1, 1e5))
def test_change_both_parts_add_up_to_the_difference(cached0: float, cached1: float, n0: float, n1: float) -> None:
    before = msgspec.structs.replace(ROW, cached_ratio=cached0, n_tokens=n0)
    after = msgspec.structs.replace(ROW, cached_ratio=cached1, n_tokens=n1)
    cost = cost_of_change(before, after)
    assert cost is not None
    assert cost.usd_a_day == pytest.approx((usd_a_day(after) or 0.0) - (usd_a_day(before) or 0.0), abs=1e-6)
