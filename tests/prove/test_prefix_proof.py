"""The claim about prompt caches holds in a short run, and falls short with the feature off."""

import asyncio

from stayfast.lab.claims.prefix import CASES, PrefixClaim, run_agents
from stayfast.lab.harness.claim import Conditions, Extent
from stayfast.lab.harness.virtual import run_virtual
from stayfast.policy.prompt_cache.breakpoints import PrefixConfig
from tests.prove.running import short_of


def test_prefix_claim_holds() -> None:
    """Three agents of each kind."""
    finding = asyncio.run(PrefixClaim(quick=Extent(3)).run(Conditions(is_quick=True)))
    assert short_of(finding) == []


def test_prefix_claim_off_reads_nothing() -> None:
    for case in CASES:
        assert run_virtual(run_agents, case, PrefixConfig(), 2, 1, shuffles=True).cached_percents == [0.0, 0.0]


def test_run_agents_same_seed_repeats() -> None:
    runs = [run_virtual(run_agents, CASES[1], PrefixConfig("auto"), 2, 7, shuffles=True) for _ in range(2)]
    assert runs[0] == runs[1]
