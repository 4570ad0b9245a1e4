"""What steps say that they cost."""

from math import inf, nan

import pytest

from stayfast.turns import charge


@pytest.mark.parametrize("usd", [nan, inf, -0.01])
def test_what_is_no_amount_is_refused(usd: float) -> None:
    """One such sum would spoil the metrics of all turns after it."""
    with pytest.raises(ValueError, match=r"dollars, 0 or more, as in charge\(0.0004\)"):
        charge(usd)
