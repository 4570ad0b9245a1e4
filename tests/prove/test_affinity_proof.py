"""The claim about routing by cost holds in a short run, and falls short of broken policies."""

import asyncio
from pathlib import Path

import pytest

from stayfast.lab.claims.affinity import BY_COST, BY_TOKENS, FILTER, AffinityClaim
from stayfast.lab.harness.claim import ClaimResult, Conditions, Extent, NeedsData
from stayfast.lab.load.arrivals import TraceRequest
from stayfast.lab.workloads.chat_traces import link_trace, make_conversations
from tests.prove.running import short_of


def run_claim(claim: AffinityClaim) -> ClaimResult:
    return asyncio.run(claim.run(Conditions(is_quick=True)))


def surge_claim(rule: str) -> AffinityClaim:
    """A surge on cold caches, beyond what the rivals can read: the quickest way to tell policies apart."""
    return AffinityClaim(quick=Extent(600), rule=rule, shown=(), loads={"a surge": 42.0}, ramp_s=0.0)


def test_affinity_claim_holds() -> None:
    assert short_of(run_claim(surge_claim(BY_COST))) == []


@pytest.mark.parametrize("rule", [BY_TOKENS, FILTER])
def test_affinity_claim_broken_policy_falls_short(rule: str) -> None:
    """Without an index, and with a filter that makes queues."""
    assert "conversations, a surge: p99 over the best rival's" in short_of(run_claim(surge_claim(rule)))


def test_affinity_claim_folder_without_traces_names_the_missing_one(tmp_path: Path) -> None:
    claim = AffinityClaim(quick=Extent(20), shown=(), ramp_s=0.0)
    with pytest.raises(NeedsData, match="mooncake_conversation"):
        asyncio.run(claim.run(Conditions(is_quick=True, data=tmp_path)))


def test_link_trace_prompt_continues_the_newest_of_that_length() -> None:
    rows = [TraceRequest(0.0, 1100, 10), TraceRequest(1.0, 1200, 10), TraceRequest(2.0, 2500, 10, n_shared=1024),
            TraceRequest(3.0, 700, 10)]
    first, second, later, alone = link_trace(rows, 60_000)
    assert later.blocks[:2] == second.blocks[:2]
    assert not set(first.blocks) & set(later.blocks)
    assert not set(alone.blocks) & {*first.blocks, *second.blocks, *later.blocks}
    assert len(later.blocks) == 5


def test_make_conversations_same_seed_repeats_in_order_of_time() -> None:
    made = make_conversations(10.0, 300, 3)
    assert made == make_conversations(10.0, 300, 3)
    assert [one.at_s for one in made] == sorted(one.at_s for one in made)
    assert len({one.blocks[:4] for one in made}) == 8
