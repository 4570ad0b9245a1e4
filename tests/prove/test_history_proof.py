"""The claim about long chats holds in a short run, and falls short without summaries."""

from dataclasses import replace

from stayfast.core.context import Violation
from stayfast.lab.claims.history import EARLY, LATE, SUMMARIZE, WITHIN, run_chats
from stayfast.lab.context.extracts import make_long_conversation, write_extract
from stayfast.lab.harness.virtual import run_virtual
from stayfast.policy.context.history import HistoryConfig
from stayfast.policy.context.summary_checks import check_summary, find_pins
from stayfast.wire.context.summary import summary_prompt
from stayfast.wire.context.summary_answer import read_answer


def _times(history: HistoryConfig) -> float:
    """Turn 50 as a multiple of turn 5: the mean over chats."""
    run = run_virtual(run_chats, history, 3, 1)
    return sum(run.ttft_s[LATE]) / sum(run.ttft_s[EARLY])


def test_run_chats_with_summaries_keeps_the_first_token_early() -> None:
    """And four times later without."""
    assert _times(SUMMARIZE) <= WITHIN
    assert _times(HistoryConfig()) > 3
    assert _times(replace(SUMMARIZE, allowance_tokens=3000)) > WITHIN


def test_write_extract_is_honest_about_most_conversations() -> None:
    """The checks adopt it, after one re-try at most."""
    n_adopted = 0
    for seed in range(20):
        source = [text for texts in make_long_conversation(seed, 8) for text in texts]
        violations: tuple[Violation, ...] = ()
        for _ in range(2):
            answer = write_extract(summary_prompt(source, None, violations))
            summary = read_answer(answer, pinned=find_pins(source), covers=(1, 8), digest="", made_by="")
            assert summary is not None
            violations = check_summary(source, summary)
            if not violations:
                break
        n_adopted += not violations
    assert n_adopted >= 17
