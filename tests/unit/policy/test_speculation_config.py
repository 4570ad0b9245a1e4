"""policy.speculation.config: bounds of the settings."""

from typing import Any

import pytest

from stayfast.policy.speculation.config import SpeculationConfig


@pytest.mark.parametrize(("fields", "complaint"), [
    ({"mode": "always"}, "mode must be one of off, auto, ngram, draft"), ({"n_draft": 0}, "n_draft must be"),
    ({"explore_share": 0.5}, "explore_share must be from 0 to 0.2"), ({"min_output_tokens": -1}, "min_output_tokens must")])
def test_speculation_config_bad_value_names_the_field(fields: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        SpeculationConfig(**fields)


def test_speculation_config_default_is_off() -> None:
    assert SpeculationConfig().mode == "off"
