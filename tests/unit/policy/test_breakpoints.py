"""policy.prompt_cache.breakpoints: which blocks of a prompt are marked."""

from itertools import accumulate
from typing import Any

import pytest

from stayfast.policy.prompt_cache.breakpoints import (
    JUDGED_S,
    N_JUDGED,
    MarkDecision,
    PrefixConfig,
    PrefixReuse,
    PromptHistory,
    PromptSizes,
)
from stayfast.policy.prompt_cache.rules import ModelRules, PrefixRules, rules_of

CLAUDE = rules_of("claude-sonnet-4-6", {})
GPT = rules_of("gpt-5.6-mini", {})
AUTO = PrefixConfig("auto")
assert CLAUDE is not None
assert GPT is not None


def shape(*blocks: str, n_static: int = 1, n_before: int = 0, tokens: float = 2000) -> PromptSizes:
    """A prompt of blocks with `tokens` each; each digest covers all blocks up to its own."""
    chain = [hash(blocks[:n + 1]) for n in range(len(blocks))]
    return PromptSizes(chain, list(accumulate([tokens] * len(blocks))), n_static, n_before, len(blocks), lambda n: n)


def saw(history: PromptHistory, what: PromptSizes, now: float, rules: PrefixRules | None = CLAUDE,
        config: PrefixConfig = AUTO) -> MarkDecision:
    """One prompt."""
    assert rules is not None
    return history.place_marks(what, rules, rules.min_tokens, config, now)


def test_prompt_history_marks_static_part_and_conversation() -> None:
    """A second turn marks the place of the first one's last mark again: there it is read."""
    history = PromptHistory(0.0)
    first = saw(history, shape("s", "u1"), 0.0)
    second = saw(history, shape("s", "u1", "a1", "u2", n_before=2), 5.0)
    assert (first.at, first.is_known) == ((1, 2), False)
    assert (second.at, second.is_known) == ((1, 2, 4), True)


def test_prompt_history_same_prompts_same_marks() -> None:
    """Another process that sees the same marks the same."""
    prompts = [shape("s", f"u{n}", "a", "b", n_before=2) for n in range(30)]
    runs = [[saw(history, prompt, n * 2.0) for n, prompt in enumerate(prompts)] for history in (PromptHistory(0),
                                                                                                PromptHistory(0))]
    assert runs[0] == runs[1]


def test_prompt_history_shared_examples_become_static() -> None:
    """The last place at which requests went on differently is marked as well."""
    history = PromptHistory(0.0)
    assert saw(history, shape("s", "shot", "shot2", "q1"), 0.0).at == (1, 4)
    assert saw(history, shape("s", "shot", "shot2", "q2"), 1.0).at == (1, 3, 4)


def test_prompt_history_marks_at_most_the_models_limit() -> None:
    """Four at Anthropic, the last ones first; three at OpenAI, which sets one itself."""
    history = PromptHistory(0.0)
    saw(history, shape("t", "s", "shot", "x", n_static=2), 0.0)
    marked = saw(history, shape("t", "s", "shot", "u", "a", "v", n_static=2, n_before=4), 1.0)
    assert marked.at == (2, 3, 4, 6)
    assert saw(PromptHistory(0), shape("s", "u"), 0.0, GPT).at == (1,)


def test_prompt_history_short_prefix_is_not_marked() -> None:
    """Less than 1.1 times the floor would be sent for nothing."""
    assert saw(PromptHistory(0), shape("s", "u", tokens=600), 0.0).at == (2,)
    assert saw(PromptHistory(0), shape("s", "u", tokens=1120), 0.0).at == (2,)
    assert saw(PromptHistory(0), shape("s", "u", tokens=500), 0.0).at == ()


def test_prompt_history_changing_instructions_are_not_marked() -> None:
    """After some that never came back; what stands before them still is."""
    history = PromptHistory(0.0)
    for n in range(N_JUDGED * 5):
        marked = saw(history, shape("tools", f"now {n}", "u", n_static=2), n * 1.0)
    assert 2 in marked.at
    marked = saw(history, shape("tools", "now x", "u", n_static=2), JUDGED_S + 40)
    assert marked.is_moving
    assert marked.n_static == 1
    assert marked.at == (1,)


def test_prompt_history_continued_conversation_is_marked() -> None:
    """Single questions are marked at their instructions only, once they are known to be single."""
    history = PromptHistory(0.0)
    for n in range(20):
        saw(history, shape("s", f"alone {n}"), float(n))
    saw(history, shape("s", "u1"), 90.0)
    assert saw(history, shape("s", "alone"), 91.0).at == (1,)
    assert saw(history, shape("s", "u1", "a1", "u2", n_before=2), 92.0).at == (1, 2, 4)


def test_prefix_reuse_late_recurrence_counts() -> None:
    """What counted as lost and comes back counts as come back."""
    reuse = PrefixReuse()
    for n in range(10):
        reuse.record_use(n, 0.0)
    reuse.record_use(99, JUDGED_S + 1)
    assert reuse.share < 0.2
    for n in range(10):
        reuse.record_use(n, JUDGED_S + 2)
    assert reuse.share == 1.0


def test_prompt_history_slow_recurrence_uses_hour() -> None:
    """With `auto`; otherwise as configured."""
    history = PromptHistory(0.0)
    config = PrefixConfig("auto", ttl="auto")
    told = [saw(history, shape("s", f"u{n}"), n * 900.0, config=config).is_long for n in range(8)]
    assert not told[0]
    assert told[-1]
    assert saw(PromptHistory(0), shape("s", "u"), 0.0, config=PrefixConfig("auto", ttl="1h")).is_long


def test_prompt_history_unread_writes_stop_marks_for_an_hour() -> None:
    """After five answers that should have read; one that reads begins the count anew."""
    history = PromptHistory(0.0)
    saw(history, shape("s", "u"), 0.0)

    def told(n_read: int = 0) -> bool:
        return history.record_usage(was_known=True, n_read=n_read, n_written=9, now=0.0)

    assert [told(), told(), told(n_read=5), *[told() for _ in range(4)]] == [False] * 7
    assert told()
    assert saw(history, shape("s", "u"), 1.0).at == ()
    assert saw(history, shape("s", "u"), 3601.0).at == (1, 2)


@pytest.mark.parametrize(("of", "wrong"), [
    (PrefixConfig, {"mode": "on"}), (PrefixConfig, {"ttl": "2h"}), (PrefixConfig, {"leader_wait_s": -1}),
    (ModelRules, {"breakpoints": "all"}), (ModelRules, {"min_tokens": -1})])
def test_prefix_settings_out_of_bounds_are_rejected(of: type[Any], wrong: dict[str, Any]) -> None:
    """By name."""
    with pytest.raises(ValueError, match=next(iter(wrong))):
        of(**wrong)
