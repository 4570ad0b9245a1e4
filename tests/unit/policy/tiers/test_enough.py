"""The settings `enough`: contradictions are errors that name the field."""

from typing import Any

import pytest

from stayfast.policy.tiers.enough import ChecksConfig, EnoughConfig


@pytest.mark.parametrize(("wrong", "name"), [
    ({"at_least": 1.0}, "at_least"), ({"share": 1.1}, "share"), ({"audit": 0.0}, "audit"),
    ({"min_labels": 10}, "min_labels"),
    ({"min_labels": 300, "max_labels": 200}, "max_labels"), ({"mode": "shadow", "compare": ""}, "compare"),
    ({"mode": "always"}, "mode")])
def test_enough_out_of_bounds_names_the_setting(wrong: dict[str, Any], name: str) -> None:
    with pytest.raises(ValueError, match=name):
        EnoughConfig(**wrong)


@pytest.mark.parametrize(("wrong", "name"), [
    ({"pattern": "("}, "pattern"), ({"hook": "module"}, "hook"), ({"min_logprob": 0.1}, "min_logprob"),
    ({"json": "maybe"}, "json")])
def test_checks_out_of_bounds_name_the_setting(wrong: dict[str, Any], name: str) -> None:
    with pytest.raises(ValueError, match=name):
        ChecksConfig(**wrong)


def test_judge_route_is_the_comparison_that_is_no_word() -> None:
    assert EnoughConfig(compare="critic").judge_route == "critic"
    assert EnoughConfig(compare="exact").judge_route == ""
    assert EnoughConfig().judge_route == ""
