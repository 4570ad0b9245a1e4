"""Where prompts are marked for a provider's cache, as lists of chains and instants."""

from collections import Counter
from itertools import accumulate
from typing import Any

import pytest

from stayfast.policy.prompt_cache.breakpoints import (
    JUDGED_S,
    N_JUDGED,
    Marked,
    PrefixConfig,
    PrefixReuse,
    PromptHistory,
    PromptShape,
)
from stayfast.policy.prompt_cache.learned import KEY, MOST_TIMES, PromptParts, Refusals, TokenFloor, TokenScale
from stayfast.policy.prompt_cache.rules import HOUR_S, ModelRules, PrefixRules, rules_of

CLAUDE = rules_of("claude-sonnet-4-6", {})
GPT = rules_of("gpt-5.6-mini", {})
AUTO = PrefixConfig("auto")
assert CLAUDE is not None
assert GPT is not None


def shape(*blocks: str, n_static: int = 1, n_before: int = 0, tokens: float = 2000) -> PromptShape:
    """A prompt of blocks with so many tokens each; digests are those of the blocks up to there."""
    chain = [hash(blocks[:n + 1]) for n in range(len(blocks))]
    return PromptShape(chain, list(accumulate([tokens] * len(blocks))), n_static, n_before, len(blocks), lambda n: n)


def saw(history: PromptHistory, what: PromptShape, now: float, rules: PrefixRules | None = CLAUDE,
        config: PrefixConfig = AUTO) -> Marked:
    """One prompt."""
    assert rules is not None
    return history.saw(what, rules, rules.min_tokens, config, now)


def test_the_static_part_and_where_a_conversation_stands_are_marked() -> None:
    """A second turn marks the place of the first one's last mark again: there it is read."""
    history = PromptHistory(0.0)
    first = saw(history, shape("s", "u1"), 0.0)
    second = saw(history, shape("s", "u1", "a1", "u2", n_before=2), 5.0)
    assert (first.at, first.is_known) == ((1, 2), False)
    assert (second.at, second.is_known) == ((1, 2, 4), True)


def test_the_same_prompts_make_the_same_marks() -> None:
    """Another process that sees the same marks the same."""
    prompts = [shape("s", f"u{n}", "a", "b", n_before=2) for n in range(30)]
    runs = [[saw(history, prompt, n * 2.0) for n, prompt in enumerate(prompts)] for history in (PromptHistory(0),
                                                                                                PromptHistory(0))]
    assert runs[0] == runs[1]


def test_few_shot_examples_are_static_once_two_requests_agree_in_them() -> None:
    """The last place at which requests went on differently is marked as well."""
    history = PromptHistory(0.0)
    assert saw(history, shape("s", "shot", "shot2", "q1"), 0.0).at == (1, 4)
    assert saw(history, shape("s", "shot", "shot2", "q2"), 1.0).at == (1, 3, 4)


def test_never_more_marks_than_the_model_takes() -> None:
    """Four at Anthropic, the last ones first; three beside OpenAI's own."""
    history = PromptHistory(0.0)
    saw(history, shape("t", "s", "shot", "x", n_static=2), 0.0)
    marked = saw(history, shape("t", "s", "shot", "u", "a", "v", n_static=2, n_before=4), 1.0)
    assert marked.at == (2, 3, 4, 6)
    assert saw(PromptHistory(0), shape("s", "u"), 0.0, GPT).at == (1,)


def test_what_is_too_short_is_not_marked() -> None:
    """Less than 1.1 times the floor would be sent for nothing."""
    assert saw(PromptHistory(0), shape("s", "u", tokens=600), 0.0).at == (2,)
    assert saw(PromptHistory(0), shape("s", "u", tokens=1120), 0.0).at == (2,)
    assert saw(PromptHistory(0), shape("s", "u", tokens=500), 0.0).at == ()


def test_instructions_that_change_each_time_are_marked_no_more() -> None:
    """After some that never came back; what stands before them still is."""
    history = PromptHistory(0.0)
    for n in range(N_JUDGED * 5):
        marked = saw(history, shape("tools", f"now {n}", "u", n_static=2), n * 1.0)
    assert 2 in marked.at
    marked = saw(history, shape("tools", "now x", "u", n_static=2), JUDGED_S + 40)
    assert marked.is_moving
    assert marked.n_static == 1
    assert marked.at == (1,)


def test_a_conversation_that_goes_on_is_marked_where_most_do_not() -> None:
    """Single questions are marked at their instructions only, once they are known to be single."""
    history = PromptHistory(0.0)
    for n in range(20):
        saw(history, shape("s", f"alone {n}"), float(n))
    saw(history, shape("s", "u1"), 90.0)
    assert saw(history, shape("s", "alone"), 91.0).at == (1,)
    assert saw(history, shape("s", "u1", "a1", "u2", n_before=2), 92.0).at == (1, 2, 4)


def test_a_late_comer_takes_back_what_was_said_of_it() -> None:
    """What counted as lost and comes back counts as come back."""
    reuse = PrefixReuse()
    for n in range(10):
        reuse.came(n, 0.0)
    reuse.came(99, JUDGED_S + 1)
    assert reuse.share < 0.2
    for n in range(10):
        reuse.came(n, JUDGED_S + 2)
    assert reuse.share == 1.0


def test_hours_are_asked_for_where_requests_come_by_the_quarter_of_an_hour() -> None:
    """With `auto`; else as it was said."""
    history = PromptHistory(0.0)
    config = PrefixConfig("auto", ttl="auto")
    told = [saw(history, shape("s", f"u{n}"), n * 900.0, config=config).is_long for n in range(8)]
    assert not told[0]
    assert told[-1]
    assert saw(PromptHistory(0), shape("s", "u"), 0.0, config=PrefixConfig("auto", ttl="1h")).is_long


def test_what_is_written_and_never_read_is_given_up_for_an_hour() -> None:
    """After five answers that should have read; one that reads begins the count anew."""
    history = PromptHistory(0.0)
    saw(history, shape("s", "u"), 0.0)

    def told(n_read: int = 0) -> bool:
        return history.note_usage(was_known=True, n_read=n_read, n_written=9, now=0.0)

    assert [told(), told(), told(n_read=5), *[told() for _ in range(4)]] == [False] * 7
    assert told()
    assert saw(history, shape("s", "u"), 1.0).at == ()
    assert saw(history, shape("s", "u"), 3601.0).at == (1, 2)


def test_the_floor_rises_after_two_silent_answers() -> None:
    """To what was marked in vain; one that wrote says that it is not higher."""
    floor = TokenFloor(1024)
    floor.note_usage(1500, n_read=0, n_written=0, now=0.0)
    floor.note_usage(1500, n_read=0, n_written=1500, now=1.0)
    floor.note_usage(1600, n_read=0, n_written=0, now=2.0)
    assert floor.tokens(2.0) == 1024
    floor.note_usage(1700, n_read=0, n_written=0, now=3.0)
    assert floor.tokens(3.0) == 1700


def test_a_raised_floor_comes_down() -> None:
    """After an hour; at once where as short a prompt is kept after all; and it never rises beyond all measure."""
    floor = TokenFloor(1024)
    for _ in range(2):
        floor.note_usage(24_000, n_read=0, n_written=0, now=0.0)
    assert floor.tokens(HOUR_S - 1) == 1024 * MOST_TIMES
    assert floor.tokens(HOUR_S) == 1024
    floor.note_usage(30_000, n_read=0, n_written=30_000, now=10.0)
    assert floor.tokens(10.0) == 1024 * MOST_TIMES
    floor.note_usage(20_000, n_read=20_000, n_written=0, now=11.0)
    assert floor.tokens(11.0) == 1024


def test_what_was_refused_is_left_out_for_an_hour() -> None:
    """A mark or a key, each for itself."""
    assert GPT is not None
    refusals = Refusals()
    refusals.add("prompt_cache_breakpoint", 0.0)
    rules = refusals.without(GPT, 1.0)
    assert (rules.marks, rules.most_marks, rules.has_key) == ("none", 0, True)
    refusals.add(KEY, 10.0)
    assert not refusals.without(GPT, 11.0).has_key
    assert refusals.without(GPT, HOUR_S + 10) == GPT


def test_the_scale_follows_what_is_counted() -> None:
    """From four bytes a token to what the answers tell."""
    scale = TokenScale()
    for _ in range(60):
        scale.note_usage(6000, 1000)
    scale.note_usage(0, 0)
    assert scale.bytes_a_token == pytest.approx(6, abs=0.01)


@pytest.mark.parametrize(("model", "marks", "min_tokens"), [
    ("claude-opus-5", "anthropic", 512), ("claude-fable-5", "anthropic", 512), ("claude-opus-4-8", "anthropic", 1024),
    ("claude-sonnet-4-6-20260601", "anthropic", 1024), ("claude-opus-4-7", "anthropic", 2048),
    ("claude-haiku-4-5-20251001", "anthropic", 4096), ("claude-3-5-haiku-latest", "anthropic", 2048),
    ("us.anthropic.claude-opus-4-5-20251101-v1:0", "anthropic", 4096), ("anthropic/claude-opus-4.8", "anthropic", 1024),
    ("gpt-5.6", "openai", 1024), ("gpt-5.10-mini", "openai", 1024), ("gpt-6", "openai", 1024), ("gpt-5.5", "none", 1024),
    ("gpt-5-2025-08-07", "none", 1024), ("openai/gpt-5-mini-2025-08-07", "none", 1024),
    ("gpt-5.6-2026-05-01", "openai", 1024), ("gpt-5.1-2025-11-13", "none", 1024), ("gpt-4.1-mini", "none", 1024),
    ("o4-mini", "none", 1024), ("gemini-2.5-flash", "none", 2048),
    ("google/gemini-3.6-flash", "none", 4096), ("deepseek-chat", "none", 64)])
def test_families(model: str, marks: str, min_tokens: int) -> None:
    """By the model's name, whoever sells it."""
    rules = rules_of(model, {})
    assert rules is not None
    assert (rules.marks, rules.min_tokens) == (marks, min_tokens)


def test_settings_replace_a_row() -> None:
    """The first pattern that fits; what it does not say stays."""
    own = {"claude-sonnet-*": ModelRules(min_tokens=2048), "*": ModelRules(breakpoints="anthropic")}
    sonnet, other = rules_of("claude-sonnet-4-6", own), rules_of("mistral-large", own)
    assert sonnet is not None
    assert other is not None
    assert (sonnet.marks, sonnet.min_tokens, sonnet.marks_end) == ("anthropic", 2048, True)
    assert (other.marks, other.most_marks, other.write_factor) == ("anthropic", 4, 1.25)
    assert rules_of("mistral-large", {}) is None
    assert rules_of("gpt-60b-chat", {}) is None
    assert rules_of("gpt-oss-120b", {}) is None
    assert (str(sonnet), str(other)) == ("prefix.models, claude-sonnet-*: anthropic marks from 2048 tokens on",
                                         "prefix.models, *: anthropic marks from 1024 tokens on")


def test_a_name_that_is_not_known_goes_by_its_protocol() -> None:
    """Anthropic's: as its family, from the highest floor on; a known name and the settings stand before it."""
    rules = rules_of("our-assistant", {}, is_anthropic=True)
    assert rules is not None
    assert (rules.marks, rules.min_tokens, rules.most_marks, rules.marks_end) == ("anthropic", 4096, 4, True)
    assert rules_of("our-assistant", {}) is None
    assert rules_of("claude-opus-4-8", {}, is_anthropic=True) == rules_of("claude-opus-4-8", {})
    own = rules_of("our-assistant", {"our-*": ModelRules(min_tokens=512)}, is_anthropic=True)
    assert own is not None
    assert (own.marks, own.min_tokens) == ("anthropic", 512)


@pytest.mark.parametrize(("of", "wrong"), [
    (PrefixConfig, {"mode": "on"}), (PrefixConfig, {"ttl": "2h"}), (PrefixConfig, {"leader_wait_s": -1}),
    (ModelRules, {"breakpoints": "all"}), (ModelRules, {"min_tokens": -1})])
def test_settings_out_of_range_are_refused(of: type[Any], wrong: dict[str, Any]) -> None:
    """By name."""
    with pytest.raises(ValueError, match=next(iter(wrong))):
        of(**wrong)


def test_parts_hold_as_many_conversations_as_a_machine_takes() -> None:
    """Agents one each, as long as their pace is only guessed; questions that come alone share by the dozen."""
    agents = PromptParts(0.0, is_of_agents=True)
    assert [agents.part(n, n * 0.1) for n in range(4)] == [0, 1, 2, 3]
    assert agents.part(2, 30.0) == 2
    alone = PromptParts(0.0, is_of_agents=False)
    parts = [alone.part(n, n * 5.0) for n in range(60)]
    assert max(parts[24:]) <= 1
    assert agents.part(77, 500.0) == 0  # all are over: the first part has room again


@pytest.mark.parametrize(("every_s", "most_parts"), [(5.0, 2), (1.1, 8)])
def test_questions_that_come_alone_are_not_long_taken_for_agents(every_s: float, most_parts: int) -> None:
    """Though they have tools: who began and is not heard of again makes no eight requests a minute."""
    parts = PromptParts(0.0, is_of_agents=True)
    assert len({parts.part(n, n * every_s) for n in range(int(60 / every_s))}) <= most_parts


def test_agents_that_go_on_are_not_taken_for_questions() -> None:
    """Each at eight requests a minute, and a new one every two seconds: no part has much more than a machine takes."""
    parts = PromptParts(0.0, is_of_agents=True)
    steps = sorted((begins_at + n * 7.5, agent) for agent, begins_at in enumerate(range(0, 40, 2)) for n in range(8))
    asked = [(parts.part(agent, at), at) for at, agent in steps]
    in_a_minute = Counter(part for part, at in asked if at < 60.0)
    assert max(in_a_minute.values()) <= 17
    assert 9 <= len(in_a_minute) <= 20
