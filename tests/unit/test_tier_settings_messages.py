"""Settings of tiers and their checks that cannot be used: the place, and what is possible there."""

import pytest

from stayfast.lab.simulated.settings import KINDS
from stayfast.settings import SettingsError, SettingsText, load_settings

TEXT = """upstreams: {u: {kind: simulated}}
routes:
  m:
    tiers: [{name: small, upstreams: [u], model: a}, {name: large, upstreams: [u], model: b, service_tier: TIER}]
    enough: {mode: cascade, compare: exact, checks: {CHECKS}}
"""


@pytest.mark.parametrize(("checks", "tier", "message"), [
    ('hook: "no_such_module:check"', '""', "routes.m.enough.checks.hook: there is no module no_such_module"),
    ('hook: "math:pi"', '""', "routes.m.enough.checks.hook: math:pi is a float: name a function"),
    ("classifier: intnt", '""', 'routes.m.enough.checks.classifier: there is no classifier "intnt"'),
    ("not_empty: true", "quick", "service_tier: must be one of flex, standard, fast, ultrafast, not"),
])
def test_unusable_tier_setting_is_named_with_what_is_possible(checks: str, tier: str, message: str) -> None:
    text = TEXT.replace("CHECKS", checks).replace("TIER", tier)
    with pytest.raises(SettingsError) as refused:
        load_settings(SettingsText("f.yaml", text), {}, kinds=KINDS)
    (problem,) = refused.value.problems
    assert message in str(problem)
