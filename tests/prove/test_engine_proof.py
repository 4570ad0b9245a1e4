"""The claims of the embedded engine, small: what does not depend on the machine holds, and a broken variant falls short."""

import pytest

from stayfast.lab.claims.engine import AT_A_TIME, ENGINE, GATEWAY, EngineClaim, EngineTurnCost, compare_arms
from stayfast.lab.claims.prefix_chat import BY_PREFIX, OWN_CHOICE, PrefixChatClaim
from stayfast.lab.harness.claim import ClaimResult, Extent
from tests.prove.running import figure_of, run, run_until, short_figures, short_of, without_interval

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


@pytest.mark.parametrize(("slower", "more_cpu", "n_short"), [(1.0, 1.0, 0), (0.98, 1.02, 0), (0.95, 1.0, 3), (1.0, 1.1, 3),
                                                             (0.79, 1.2, 6)])
def test_engine_claim_slower_gateway_falls_short(slower: float, more_cpu: float, n_short: int) -> None:
    """Rounds whose speed varies twofold, as on a busy machine: the pairs of a round decide."""
    turns: dict[tuple[int, str], list[EngineTurnCost]] = {}
    for n in AT_A_TIME:
        speeds = [500.0 * (1 + number % 2) for number in range(12)]
        turns[n, ENGINE] = [EngineTurnCost(speed, 4e-4, 0.0) for speed in speeds]
        turns[n, GATEWAY] = [EngineTurnCost(slower * speed, more_cpu * 4e-4, 5e-5) for speed in speeds]
    assert len(short_figures(compare_arms(turns))) == n_short


def test_prefix_chat_claim_counts_hold() -> None:
    """By counters of the engine; times depend on the machine."""
    finding = run(PrefixChatClaim())
    assert {READ, COMPUTED}.isdisjoint(short_of(finding))
    assert figure_of(finding, READ).value > 80.0


def test_prefix_chat_claim_engine_that_chooses_slots_falls_short() -> None:
    assert COMPUTED in short_of(run(PrefixChatClaim(by_prefix=False)))
