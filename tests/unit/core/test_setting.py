"""core.setting: a record is checked against its declarations, including the type of each value."""

from typing import Any

import pytest

from stayfast.core.deadline import Timeouts
from stayfast.policy.resilience.hedge import HedgeConfig


@pytest.mark.parametrize(("cls", "given", "complaint"), [
    (HedgeConfig, {"mode": None}, "mode must be one of auto, off, race, not None"),
    (HedgeConfig, {"mode": "on"}, "mode must be one of auto, off, race, not 'on'"),
    (HedgeConfig, {"max_extra": 1.5}, "max_extra must be a whole number from 1 to 2, not 1.5"),
    (HedgeConfig, {"max_extra": 3}, "max_extra must be from 1 to 2, not 3"),
    (HedgeConfig, {"budget": "automatic"}, "budget must be auto or a number more than 0 and at most 1, not 'automatic'"),
    (HedgeConfig, {"budget": 2}, "budget must be auto or a number more than 0 and at most 1, not 2"),
    (HedgeConfig, {"budget": None}, "budget must be auto or a number more than 0 and at most 1, not None"),
    (Timeouts, {"total_s": "5"}, "total_s must be a number more than 0 and at most 86400, not '5'"),
    (Timeouts, {"total_s": True}, "total_s must be a number more than 0 and at most 86400, not True"),
    (Timeouts, {"total_s": float("nan")}, "total_s must be more than 0 and at most 86400, not nan"),
])
def test_check_bounds_wrong_value_names_setting_and_bounds(cls: Any, given: dict[str, object], complaint: str) -> None:
    """For records made from a file or in code."""
    with pytest.raises(ValueError, match=complaint):
        cls(**given)


def test_check_bounds_whole_seconds_are_numbers() -> None:
    """An int is within bounds where a float is declared."""
    assert Timeouts(total_s=5).total_s == 5
