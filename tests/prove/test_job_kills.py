"""The proof of jobs under kills tells a store that loses or doubles something from one that does not."""

from random import Random
from typing import Any, cast

import pytest
from msgspec.structs import replace

from stayfast.lab.claims.job_kills import BatchOutcome, KillTrial, encode_lines, n_different
from stayfast.lab.harness.answer_upstream import N_CHUNKS, USAGE, AnswerCall
from stayfast.lab.harness.claim import Verdict
from stayfast.lab.harness.job_fleet import JobFleet

LINES = 10
CALLS = [AnswerCall("a", N_CHUNKS, is_complete=True), AnswerCall("a", N_CHUNKS, is_complete=True), AnswerCall("b", 3),
         AnswerCall("b", N_CHUNKS, is_complete=True), AnswerCall("c", N_CHUNKS, is_complete=True)]
CLAIMS = {"a": 2, "b": 2, "c": 2}


def outcome(**changes: Any) -> BatchOutcome:
    """A batch whose lines all completed."""
    batch = {"request_counts": {"total": LINES, "completed": LINES, "failed": 0}, "status": "completed",
             "usage": {"total_tokens": LINES * USAGE["total_tokens"]}, **changes}
    return BatchOutcome(batch, b"output", b"")


def trial() -> KillTrial:
    """A trial in which every kind of kill was met, and nothing was lost."""
    done = KillTrial("store", cast("JobFleet", None), Random(1), 5)
    done.claims.update(CLAIMS)
    return done


def test_job_kills_without_a_loss_hold() -> None:
    assert trial().make_finding(outcome(), outcome(), CALLS).verdict is Verdict.HOLDS


@pytest.mark.parametrize("problem", ["accepted jobs without an answer", "wrong answers", "submissions that became two jobs"])
def test_job_kills_with_one_problem_fall_short(problem: str) -> None:
    one = trial()
    one.problems[problem] += 1
    assert one.make_finding(outcome(), outcome(), CALLS).verdict is Verdict.FALLS_SHORT


@pytest.mark.parametrize("killed", [
    replace(outcome(), output=b"outpux"), replace(outcome(), errors=b"{}"),
    outcome(request_counts={"total": LINES, "completed": LINES - 1, "failed": 1}),
    outcome(usage={"total_tokens": LINES * USAGE["total_tokens"] + 28}), outcome(usage=None)])
def test_job_kills_with_another_batch_fall_short(killed: BatchOutcome) -> None:
    assert trial().make_finding(outcome(), killed, CALLS).verdict is Verdict.FALLS_SHORT


@pytest.mark.parametrize("calls", [CALLS[1:], [CALLS[0], CALLS[1], CALLS[3], CALLS[4]]])
def test_job_kills_that_missed_a_point_fall_short(calls: list[AnswerCall]) -> None:
    """A run whose kills never came in mid-stream, or before the storage, proves less than the sentence states."""
    assert trial().make_finding(outcome(), outcome(), calls).verdict is Verdict.FALLS_SHORT


def test_n_different_counts_bytes_and_lengths() -> None:
    assert [n_different(b"abc", other) for other in (b"abc", b"abd", b"ab", b"abcd", b"")] == [0, 1, 1, 1, 3]


def test_encode_lines_has_unique_custom_ids() -> None:
    lines = encode_lines(LINES).splitlines()
    assert len(set(lines)) == LINES
