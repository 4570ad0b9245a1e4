"""Generated conversations, and damage to their summaries: a small run of what `prove history` measures."""

from random import Random

from stayfast.lab.context.conversations import make_conversation, make_summary
from stayfast.lab.context.damage import ALL_KINDS, damage_summary
from stayfast.lab.context.measure import measure_damage


def test_make_conversation_a_seed_is_a_conversation() -> None:
    """The same seed twice; its summary names what the conversation names."""
    one, other = make_conversation(7), make_conversation(7)
    assert one == other
    assert make_conversation(8).source != one.source
    summary = make_summary(one, one.lines)
    assert summary.pinned
    assert summary.covers == (1, one.n_turns)


def test_damage_summary_each_kind_changes_the_summary() -> None:
    """Of ten conversations each kind of damage applies to some, and changes these."""
    n_applied = dict.fromkeys(ALL_KINDS, 0)
    for seed in range(10):
        conversation = make_conversation(seed)
        good = make_summary(conversation, conversation.lines)
        for kind in ALL_KINDS:
            damaged = damage_summary(kind, conversation, Random(seed))
            n_applied[kind] += damaged is not None and damaged != good
    assert min(n_applied.values()) > 0


def test_measure_damage_finds_most_damage_and_few_good_summaries() -> None:
    """The bounds of the proof are tighter, and over more conversations."""
    result = measure_damage(1, 5)
    assert sum(found for found, _ in result.by_kind.values()) >= 0.95 * sum(n for _, n in result.by_kind.values())
    assert result.n_false_alarms <= 1
    assert result.n_good == 5
    assert result.quantile_ms(0.5) > 0
