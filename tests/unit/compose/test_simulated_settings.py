"""The settings of a simulated upstream: a script, or the model of a provider with all of its knobs."""

from random import Random

import pytest

from stayfast.compose.system import Observers, build
from stayfast.core.types import Api
from stayfast.lab.simulated import (
    EngineModel,
    FaultKind,
    FaultRule,
    Mixture,
    ProviderConfig,
    Regime,
    Regimes,
    ScriptedUpstream,
    Simulated,
    VendorQuota,
)
from stayfast.lab.simulated.settings import KINDS
from stayfast.settings import SettingsText, load_settings
from stayfast.testing import SimLoop
from stayfast.upstreams.base import Upstream


def built(of: str) -> Upstream:
    """The upstream that such settings become."""
    settings = load_settings(SettingsText("test", f"upstreams: {{p: {{kind: simulated, {of}}}}}\nroutes: {{m: [p]}}"), {},
                    kinds=KINDS)
    loop = SimLoop()
    try:
        return build(settings, Observers(settings, loop), {}, loop, Random(1)).registry["p"].upstream
    finally:
        loop.close()


def test_simulated_upstream_is_a_script_by_default() -> None:
    assert isinstance(built("probe: false"), ScriptedUpstream)
    assert isinstance(built("script: steady"), ScriptedUpstream)


def test_simulated_upstream_with_a_model_setting_is_a_model() -> None:
    assert isinstance(built("preset: gpt-4o-like"), Simulated)
    assert isinstance(built("seed: 5"), Simulated)


def test_simulated_upstream_settings_reach_the_model() -> None:
    """Nested sections, lists and words."""
    upstream = built("preset: haiku-4.5-like, seed: 3, ttft: {median_s: 0.3}, "
                     "regimes: {outage: {mean_s: 5, error_rate: 0.5}}, "
                     "quota: {requests_per_min: 10}, engine: {batching: static, max_waiting: 4}, "
                     "tail_correlation: 0.2, "
                     "faults: [{kind: hang, rate: 0.1, until_s: 60}, {kind: status, status: 529, api: messages}]")
    assert isinstance(upstream, Simulated)
    assert upstream.provider.config == ProviderConfig(
        "haiku-4.5-like", 3, ttft=Mixture(0.3), regimes=Regimes(outage=Regime(5, error_rate=0.5)),
        quota=VendorQuota(requests_per_min=10), engine=EngineModel("static", max_waiting=4), tail_correlation=0.2,
        faults=(FaultRule(FaultKind.HANG, 0.1, until_s=60), FaultRule(FaultKind.STATUS, status=529, api=Api.MESSAGES)))


@pytest.mark.parametrize(("of", "words"), [
    ("preset: gpt-4o", "preset: must be one of gpt-4o-like"), ("ttft: {median: 1}", "unknown setting"),
    ("faults: [{kind: explode}]", r"faults\[0\].kind|faults.0.kind"), ("quota: {requests_per_min: 0}", "requests_per_min"),
    ("cold_start: {load_min_s: 9}", "load_min_s"),
])
def test_simulated_upstream_settings_errors_name_the_setting(of: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        built(of)
