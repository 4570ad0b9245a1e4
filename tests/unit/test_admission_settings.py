"""Settings of admission and tenants: what they become, and what is wrong with them."""

from random import Random

import pytest

from stayfast.compose.system import Observers, System, build
from stayfast.lab.simulated.settings import KINDS
from stayfast.pipeline.stages.admit.admission import Admission, AdmitAll
from stayfast.policy.admission.overload import TenantConfig
from stayfast.policy.admission.priority import Points, TenantTier
from stayfast.policy.admission.quota import QuotaConfig
from stayfast.settings import Settings, SettingsError, SettingsText, load_settings
from stayfast.testing import SimLoop

DIGEST = "sha256:" + "0" * 64
BASE = f"upstreams: {{p: {{kind: simulated, probe: false}}}}\nroutes: {{m: [p]}}\nserver: {{keys: {{web: '{DIGEST}'}}}}\n"
FULL = BASE.replace("probe: false", "probe: false, prices: {'*': {output_per_mtok: 15}}") + """
admission: {max_in_flight: 64, max_queue: 10, max_wait_s: 1.5, reserved_share: 0.05, priority_points: {retry: -100}}
tenants:
  web: {tier: premium, weight: 2, priority: 10, quota: {requests_per_minute: 60, cost_per_day: 0.5}}
  "*": {tier: batch}
"""


def settings(text: str) -> Settings:
    """Loaded."""
    return load_settings(SettingsText("test", text), {}, kinds=KINDS)


def system(of: Settings, old: System | None = None) -> System:
    """Built."""
    loop = SimLoop()
    try:
        return build(of, Observers(of, loop), {}, loop, Random(1), old=old)
    finally:
        loop.close()


def test_admission_settings_complete_file_is_loaded() -> None:
    """Each to its own dataclass."""
    its = settings(FULL)
    assert its.prices_for("p")["*"].output_per_mtok == 15
    assert (its.admission.max_in_flight, its.admission.queue.max_queue, its.admission.queue.max_wait_s) == (64, 10, 1.5)
    assert (its.admission.reserved_share, its.admission.priority_points) == (0.05, Points(retry=-100))
    assert its.tenants == {
        "web": TenantConfig(TenantTier.PREMIUM, 2.0, 10, QuotaConfig(requests_per_minute=60, cost_per_day=0.5)),
        "*": TenantConfig(TenantTier.BATCH)}


def test_lanes_section_present_creates_lanes() -> None:
    """None by default; with a bare mapping, the defaults; and a prediction for what queues."""
    admit = system(settings(BASE + "admission: {max_in_flight: 8, lanes: {long_share: 0.5, isolate_short: true}}"
                            )).gateway.admit
    assert isinstance(admit, Admission)
    assert repr(admit.places.lanes) == "<Lanes short 0 of 3, 0 waiting; long 0 of 4, 0 waiting; batch 0 of 1, 0 waiting>"
    assert admit.places.outlook.predict_ttft_s is not None
    plain = system(settings(BASE + "tenants: {web: {}}")).gateway.admit
    assert isinstance(plain, Admission)
    assert (plain.places.lanes, plain.places.outlook.predict_ttft_s) == (None, None)


def test_admission_without_settings_is_absent() -> None:
    """The null object, until there is a ceiling or a tenant with terms."""
    assert isinstance(system(settings(BASE)).gateway.admit, AdmitAll)
    assert isinstance(system(settings(BASE + "admission: {max_in_flight: 1}")).gateway.admit, Admission)
    assert isinstance(system(settings(BASE + "tenants: {web: {}}")).gateway.admit, Admission)


def test_reload_keeps_used_quota_and_slots() -> None:
    """The same object with the new settings; another one where there was none."""
    old = system(settings(FULL))
    assert system(settings(FULL.replace("64", "8")), old).gateway.admit is old.gateway.admit
    assert isinstance(old.gateway.admit, Admission)
    assert old.gateway.admit.places.n_places == 8


@pytest.mark.parametrize(("text", "words"), [
    ("tenants: {wep: {}}", "tenants.wep: no key of this name in server.keys, did you mean web?"),
    ("tenants: {web: {tier: gold}}", "tenants.web.tier: must be one of premium, standard, batch"),
    ("tenants: {web: {weight: 0}}", "tenants.web.weight: must be a number from 0.001 to 1000"),
    ("tenants: {web: {quota: {tokens_per_hour: 1}}}", "tenants.web.quota.tokens_per_hour: unknown setting"),
    ("tenants: {web: {quota: {cost_per_day: 5}}}", "tenants.web.quota.cost_per_day: has no effect: no upstream has"),
    ("tenants: {web: {quota: {requests_per_minute: 0}}}", "tenants.web.quota.requests_per_minute: must be"),
    ("admission: {max_in_flight: 0}", "admission.max_in_flight: must be a whole number from 1"),
    ("admission: {lanes: {}}", "share the places of max_in_flight, which must be at least 3, which is not set"),
    ("admission: {max_in_flight: 9, lanes: {long_share: 0.9, batch_share: 0.5}}",
     "admission.lanes.long_share: must be at most 0.95 together with batch_share"),
    ("admission: {max_in_flight: 9, lanes: {long_share: 1}}", "lanes.long_share: must be a number from 0.001 to 0.9"),
    ("admission: {max_wait_s: 1, target_wait_s: 2}", "admission.target_wait_s: must be at most max_wait_s (1), not 2"),
])
def test_admission_settings_invalid_value_is_reported(text: str, words: str) -> None:
    """Where, what, and what instead."""
    with pytest.raises(SettingsError) as wrong:
        settings(BASE + text)
    assert words in str(wrong.value)
