"""The claims about admission hold in short virtual runs, and fall short with broken parts."""

from dataclasses import replace

import pytest

from stayfast.lab.claims import fair, noisy, quota
from stayfast.lab.harness.claim import Verdict
from stayfast.lab.harness.virtual import VirtualTenants, chat_request, run_virtual, seed_provider
from stayfast.policy.admission.overload import AdmissionConfig
from stayfast.policy.admission.queue import QueueConfig
from stayfast.testing.simloop import SimLoop
from tests.prove.running import short_figures, short_of, without_interval


def test_quota_claim_holds() -> None:
    assert run_virtual(quota.measure, 6000, 1).holds


def test_quota_claim_missing_reconciliation_falls_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Estimates that are never corrected leave a gap of thousands of tokens."""
    monkeypatch.setattr("stayfast.policy.admission.quota.TenantQuota.reconcile", lambda *_: None)
    assert "by tokens: the books are off by" in short_of(run_virtual(quota.measure, 3000, 1))


def test_fair_claim_holds_and_equal_weights_fall_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two phases of each kind."""
    monkeypatch.setattr(fair, "AWAY_S", 40.0)
    monkeypatch.setattr(fair, "WARMUP_S", 10.0)
    finding = run_virtual(fair.measure, 160.0, 1)
    assert short_of(finding) == []
    assert without_interval(finding) == []
    assert run_virtual(fair.measure, 80.0, 1, dict.fromkeys(fair.WEIGHTS, 1.0)).verdict is Verdict.FALLS_SHORT


def test_noisy_claim_holds_and_missing_admission_falls_short() -> None:
    """Half a virtual minute."""
    config = AdmissionConfig(noisy.N_PLACES)
    alone, _ = run_virtual(noisy.run_in_virtual_time, 30.0, config, 2, has_noise=False)
    beside, (n, n_shed) = run_virtual(noisy.run_in_virtual_time, 30.0, config, 2, has_noise=True)
    assert noisy.moved_percent(alone, beside) < 15
    assert n_shed > n / 2
    config = AdmissionConfig(1, QueueConfig(max_queue=0))
    unprotected, _ = run_virtual(noisy.run_in_virtual_time, 30.0, config, 2, has_noise=True)
    assert float("inf") in unprotected
    assert short_figures(noisy.make_figures("it", alone, unprotected, noisy.WITHIN)) == [
        "it: quiet requests that failed"]
    assert short_figures(noisy.make_figures("it", alone, beside, noisy.WITHIN)) == []


def test_virtual_tenants_seed_redraws_provider() -> None:
    """Two seeds give other durations, the same seed the same ones."""
    async def durations_s(loop: SimLoop, seed: int) -> list[float]:
        tenants = VirtualTenants(noisy.PROVIDER, {}, AdmissionConfig(), loop, seed)
        return [await tenants.send(None, chat_request(20, 4)) for _ in range(5)]

    first, again, other = (run_virtual(durations_s, seed) for seed in (1, 1, 2))
    assert first == again
    assert not set(first) & set(other)


def test_seed_provider_depends_on_both_seeds() -> None:
    configs = [seed_provider(replace(noisy.PROVIDER, seed=own), seed) for own in (0, 1) for seed in (1, 2, 3)]
    assert len({config.seed for config in configs}) == 6
    assert all(0 <= config.seed < 2**32 for config in configs)
    assert seed_provider(noisy.PROVIDER, 2**32 - 1) != noisy.PROVIDER


def test_virtual_tenants_ledger_counts_finished_requests() -> None:
    """Tokens and cost are those reported by the upstream; requests before `open` are not counted."""
    async def main(loop: SimLoop) -> None:
        tenants = VirtualTenants(quota.PROVIDER, quota.TENANTS, AdmissionConfig(), loop, 1, price=quota.PRICE)
        tenants.ledger.is_open = False
        await tenants.send("by cost", chat_request(20, 40))
        tenants.ledger.open()
        await tenants.send("by cost", chat_request(20, 40))
        book = tenants.ledger.by_tenant["by cost"]
        assert (book.n, book.requests, book.n_shed, len(book.ttft_s)) == (1, 1, 0, 1)
        n_output = book.tokens - book.input_tokens
        assert book.cost_usd == pytest.approx((book.input_tokens + 4 * n_output) / 1e6)

    run_virtual(main)
