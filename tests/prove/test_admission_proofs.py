"""The claims about admission hold in short virtual runs, and fall short with broken parts."""

import pytest

from stayfast.lab.claims import fair, noisy, quota
from stayfast.lab.harness.virtual import VirtualTenants, chat_request, run_virtual
from stayfast.policy.admission.overload import AdmissionConfig
from stayfast.policy.admission.queue import QueueConfig
from stayfast.testing.simloop import SimLoop


def test_quota_claim_holds() -> None:
    """6,000 requests, with a lower goal for the used share than in a long run."""
    finding = run_virtual(quota.measure, 6000, 1, min_percent=80.0)
    assert [figure.name for figure in finding.figures if not figure.holds] == []


def test_quota_claim_missing_reconciliation_falls_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Estimates that are never corrected leave a gap of thousands of tokens."""
    monkeypatch.setattr("stayfast.policy.admission.quota.TenantQuota.reconcile", lambda *_: None)
    finding = run_virtual(quota.measure, 3000, 1, min_percent=0.0)
    assert "by tokens: the books are off by" in [figure.name for figure in finding.figures if not figure.holds]


def test_fair_claim_holds_and_equal_weights_fall_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two phases of each kind."""
    monkeypatch.setattr(fair, "AWAY_S", 40.0)
    monkeypatch.setattr(fair, "WARMUP_S", 10.0)
    assert run_virtual(fair.measure, 160.0, 1).holds
    assert not run_virtual(fair.measure, 80.0, 1, dict.fromkeys(fair.WEIGHTS, 1.0)).holds


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
