"""The costs that steps report."""

from math import inf, nan

import pytest

from stayfast.turns import charge


@pytest.mark.parametrize("usd", [nan, inf, -0.01])
def test_charge_of_a_wrong_amount_raises(usd: float) -> None:
    with pytest.raises(ValueError, match=r"dollars, 0 or more, as in charge\(0.0004\)"):
        charge(usd)
