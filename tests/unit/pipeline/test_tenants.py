"""What a tenant's request is thought to be in work."""

import pytest

from stayfast.pipeline.tenants import Tenant
from stayfast.policy.admission import TenantConfig
from stayfast.policy.priority import Points
from stayfast.policy.quota import QuotaConfig


def tenant() -> Tenant:
    """A new one."""
    return Tenant("a", TenantConfig(), Points(), 0.0)


def test_answers_are_as_long_as_usual_or_as_they_may_be() -> None:
    """A high max_tokens makes no answer long, a low one makes it short."""
    one = tenant()
    for _ in range(200):
        one.learn(100, 0.0)
    assert one.work(10, 5000)[1] == pytest.approx(100, rel=0.01)
    assert one.work(10, 20)[1] == 20


def test_what_is_cached_is_no_work() -> None:
    """Prompts of which upstreams read a quarter are taken for a quarter, and large ones weigh as they are large."""
    one = tenant()
    assert one.work(1000, 1)[0] == 1000
    for _ in range(200):
        one.learn_read(10_000, 2500)
        one.learn_read(100, 100)
    assert one.work(1000, 1)[0] == pytest.approx(250, rel=0.05)


def test_other_terms_give_nothing_back() -> None:
    """A reload that changes one limit, or the tier, leaves what was used of the others."""
    one = Tenant("a", TenantConfig(quota=QuotaConfig(tokens_per_day=1000, requests_per_minute=1000)), Points(), 0.0)
    assert one.quota.reserve((1, 900, 0), 0.0) is None
    one.configure(TenantConfig(weight=2.0, quota=QuotaConfig(tokens_per_day=1000, requests_per_minute=999)), Points(), 0.0)
    assert one.quota.bucket("tokens_per_day").level(0.0) == 100
