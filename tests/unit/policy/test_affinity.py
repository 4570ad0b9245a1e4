"""policy/affinity: blocks of a prompt's beginning, what was sent where, the homes of sessions."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.policy.routing.affinity import (
    BLOCK_BYTES,
    MAX_BLOCKS,
    AffinityConfig,
    SentPrefixes,
    hash_blocks,
    session_owner,
)

KNOWN_S = 600.0


def prefixes(most: int = 10_000) -> SentPrefixes:
    """Empty."""
    return SentPrefixes(most, KNOWN_S)


@given(head=st.integers(0, 6000), one=st.binary(max_size=3000), other=st.binary(max_size=3000))
def test_blocks_of_common_prefix_are_equal(head: int, one: bytes, other: bytes) -> None:
    """Blocks that lie in the common beginning are the same; only whole blocks count."""
    shared = (b"%d " * head)[:head]
    first, second = hash_blocks(shared + one), hash_blocks(shared + other)
    n_shared = head // BLOCK_BYTES
    assert first[:n_shared] == second[:n_shared]
    assert len(first) == min(MAX_BLOCKS, (head + len(one)) // BLOCK_BYTES)


def test_blocks_of_changed_start_changes_all_later_blocks() -> None:
    """The same text after another beginning, or for another model, is another block."""
    text = b"x" * BLOCK_BYTES
    assert hash_blocks(text * 2)[1] != hash_blocks(b"y" + text * 2)[1]
    assert hash_blocks(text, "a") != hash_blocks(text, "b")


@given(sent=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 40)), max_size=30), most=st.integers(1, 60))
def test_prefixes_n_known_counts_leading_blocks(sent: list[tuple[int, int]], most: int) -> None:
    """Whatever was evicted, what is left of a chain is its beginning: halving finds the same as walking. Never too many."""
    known = prefixes(most)
    chains = [list(range(chain * 100, chain * 100 + 40)) for chain in range(4)]
    for at, (number, n) in enumerate(sent):
        known.record_sent(chains[number][:n], float(at))
    total = 0
    for chain in chains:
        walked = 0
        while walked < len(chain) and known.n_known(chain[walked:walked + 1], 30.0):
            walked += 1
        assert known.n_known(chain, 30.0) == walked
        assert not any(known.n_known([block], 30.0) for block in chain[walked:])
        total += walked
    assert total <= most


def test_prefixes_after_known_s_are_forgotten() -> None:
    """A cache keeps nothing for ever; what is sent again is known again."""
    known = prefixes()
    known.record_sent([1, 2, 3], 0.0)
    assert (known.n_known([1, 2, 3], KNOWN_S - 1), known.n_known([1, 2, 3], KNOWN_S)) == (3, 0)
    known.record_sent([1, 2], KNOWN_S)
    assert known.n_known([1, 2, 3], KNOWN_S + 1) == 2


def test_session_owner_follows_weights() -> None:
    """The owner is the same wherever it is computed; an upstream of weight 2 owns twice as many sessions."""
    names, weights = ["a", "b", "c"], {"a": 2.0}
    homes = Counter(session_owner(b"%d" % n, names, weights) for n in range(4000))
    assert homes["a"] == pytest.approx(2000, rel=0.1)
    assert homes["b"] == pytest.approx(1000, rel=0.1)


def test_session_owner_new_upstream_moves_only_its_share() -> None:
    """All other sessions stay where their cache is."""
    for n in range(500):
        before, after = session_owner(b"%d" % n, ["a", "b", "c"], {}), session_owner(b"%d" % n, ["c", "d", "b", "a"], {})
        assert after in (before, "d")


@pytest.mark.parametrize("wrong", [{"mode": "on"}, {"ttl_s": 0}, {"cache_tokens": 10}])
def test_affinity_config_out_of_bounds_is_rejected(wrong: dict[str, Any]) -> None:
    """Each with its own name first."""
    with pytest.raises(ValueError, match=next(iter(wrong))):
        AffinityConfig(**wrong)
