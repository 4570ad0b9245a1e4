"""The claims of the embedded engine, small: what does not depend on the machine holds, and a broken variant falls short."""

import pytest

from stayfast.lab.claims.engine import EngineClaim
from stayfast.lab.claims.prefix_chat import BY_PREFIX, OWN_CHOICE, PrefixChatClaim
from stayfast.lab.harness.claim import ClaimResult, Extent
from tests.prove.running import figure_of, run, run_until, short_of, without_interval

pytestmark = pytest.mark.sockets
SMALL = Extent(n=2, n_rounds=6)
READ = f"prompt tokens read from the cache, {BY_PREFIX}"
COMPUTED = f"prompt tokens computed, fewer than with {OWN_CHOICE}"


def test_engine_claim_tokens_per_cpu_second_do_not_fall_short() -> None:
    """Tokens per second depend on the cores that are left."""

    def shorts(finding: ClaimResult) -> list[str]:
        return [name for name in short_of(finding) if "CPU second" in name]

    finding = run_until(EngineClaim(quick=SMALL), lambda found: not shorts(found))
    assert shorts(finding) == []
    assert without_interval(finding) == []


def test_engine_claim_gateway_that_queues_falls_short() -> None:
    """One answer at a time, whatever the clients send: the engine's batches are lost."""
    short = short_of(run(EngineClaim(quick=SMALL, upstream={"limit": {"mode": "fixed", "max": 1}})))
    assert "tokens per second at 8 at a time, gateway over engine" in short
    assert "tokens per second at 1 at a time, gateway over engine" not in short


def test_prefix_chat_claim_counts_hold() -> None:
    """By counters of the engine; times depend on the machine."""
    finding = run(PrefixChatClaim())
    assert {READ, COMPUTED}.isdisjoint(short_of(finding))
    assert figure_of(finding, READ).value > 80.0


def test_prefix_chat_claim_engine_that_chooses_slots_falls_short() -> None:
    assert COMPUTED in short_of(run(PrefixChatClaim(by_prefix=False)))
