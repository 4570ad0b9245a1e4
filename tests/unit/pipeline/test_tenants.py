"""What a tenant's request is thought to be in work, and in money."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.core.constants import BYTES_A_TOKEN
from stayfast.core.types import Api, Request, Usage
from stayfast.pipeline.admission.tenants import Tenant
from stayfast.policy.admission.overload import TenantConfig
from stayfast.policy.admission.price import Price
from stayfast.policy.admission.priority import Points
from stayfast.policy.admission.quota import QuotaConfig
from stayfast.wire.request_body import decode

USD = st.floats(0, 1000)
PRICES = st.builds(Price, USD, USD, st.none() | USD, st.none() | USD, st.none() | USD)


def tenant() -> Tenant:
    """A new one."""
    return Tenant("a", TenantConfig(), Points(), 0.0)


def test_tenant_estimated_output_is_usual_or_max_tokens() -> None:
    """A high max_tokens makes no answer long, a low one makes it short."""
    one = tenant()
    for _ in range(200):
        one.learn_usage(100, 0.0)
    assert one.estimate_work(10, 5000)[1] == pytest.approx(100, rel=0.01)
    assert one.estimate_work(10, 20)[1] == 20


def test_tenant_estimated_input_excludes_cached_tokens() -> None:
    """Upstreams compute a quarter of the prompts: large prompts weigh by their size."""
    one = tenant()
    assert one.estimate_work(1000, 1)[0] == 1000
    for _ in range(200):
        one.learn_computed_tokens(10_000, 2500)
        one.learn_computed_tokens(100, 100)
    assert one.estimate_work(1000, 1)[0] == pytest.approx(250, rel=0.05)


def test_tenant_reload_gives_no_quota_back() -> None:
    """A reload changes one limit, or the tier: what was used of the others stays used."""
    one = Tenant("a", TenantConfig(quota=QuotaConfig(tokens_per_day=1000, requests_per_minute=1000)), Points(), 0.0)
    assert one.quota.reserve((1, 900, 0), 0.0) is None
    one.configure(TenantConfig(weight=2.0, quota=QuotaConfig(tokens_per_day=1000, requests_per_minute=999)), Points(), 0.0)
    assert one.quota.bucket_for("tokens_per_day").level(0.0) == 100


def chat(max_tokens: int | None, n_bytes: int = 400) -> Request:
    """A request whose prompt has about so many bytes."""
    body = {"model": "m", "messages": [{"role": "user", "content": "x" * n_bytes}]}
    return decode(Api.CHAT, msgspec.json.encode(body if max_tokens is None else {**body, "max_tokens": max_tokens}))


@given(st.lists(PRICES, min_size=1, max_size=3), st.floats(1e-6, 100), st.none() | st.integers(1, 4096),
       st.lists(st.lists(st.tuples(st.integers(0, 2), *[st.floats(0, 1)] * 4), max_size=50), min_size=1, max_size=4))
def test_tenant_burst_costs_no_more_than_the_limit(prices: list[Price], limit: float, max_tokens: int | None,
                                                   bursts: list[list[tuple[int, float, float, float, float]]]) -> None:
    """Of any size and price, at any upstream of the route: at most L pass at once, and in all; but for one that alone may
    cost more than L.
    """
    one = Tenant("a", TenantConfig(quota=QuotaConfig(cost_per_day=limit)), Points(), 0.0)
    request, spent, dearest_usd = chat(max_tokens), 0.0, 0.0
    most = {"m": Price(max(price.highest_input_per_mtok for price in prices),
                       max(price.output_per_mtok for price in prices))}
    n_input = len(request.body) / BYTES_A_TOKEN
    for burst in bursts:
        under_way = []
        for who, *parts in burst:
            reserved = (1.0, 0.0, one.most_cost_usd(request, n_input, most))
            if one.quota.reserve(reserved, 0.0) is None:
                under_way.append((reserved, prices[who % len(prices)], parts))
        for reserved, price, (prompt, read, written, said) in under_way:
            n_prompt = int(n_input * prompt)
            n_read = int(n_prompt * read)
            n_written = int((n_prompt - n_read) * written)
            n_output = int((max_tokens or 1000) * said)
            usd = price.cost_usd(Usage(n_prompt, n_output, n_read, n_written // 2, n_written - n_written // 2))
            one.quota.reconcile(reserved, (1.0, 0.0, usd), 0.0)
            spent, dearest_usd = spent + usd, max(dearest_usd, usd)
    assert spent <= max(limit, dearest_usd) * (1 + 1e-9)


def test_tenant_output_without_max_tokens_is_the_recent_maximum() -> None:
    """1024 tokens at first; a longer answer counts from its end on, and decays."""
    one, prices = tenant(), {"m": Price(0.0, 1e6)}
    assert one.most_cost_usd(chat(None), 100, prices) == 1024
    one.learn_usage(5000, 0.0)
    assert one.most_cost_usd(chat(None), 100, prices) == 5000
    assert one.most_cost_usd(chat(50), 100, prices) == 50
    for _ in range(200):
        one.learn_usage(100, 0.0)
    assert one.most_cost_usd(chat(None), 100, prices) == pytest.approx(100, rel=0.01)


def test_tenant_reserved_cost_is_at_least_the_usual_one() -> None:
    """Upstreams add their own prompts; also without a price."""
    one = tenant()
    for _ in range(200):
        one.learn_usage(10, 2.0)
    assert one.most_cost_usd(chat(10), 100, {"m": Price(1.0, 1.0)}) == pytest.approx(2.0, rel=0.01)
    assert one.most_cost_usd(chat(10), 100, {}) == pytest.approx(2.0, rel=0.01)


def test_tenant_embeddings_cost_their_input() -> None:
    request = decode(Api.EMBEDDINGS, b'{"model": "m", "input": "hello"}')
    assert tenant().most_cost_usd(request, 500_000, {"*": Price(2.0, 1000.0)}) == 1.0
