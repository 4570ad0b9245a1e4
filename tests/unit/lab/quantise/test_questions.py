"""Files of questions, and the comparison of answers."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.lab.quantise.questions import (
    UnreadableQuestions,
    UserQuestion,
    compare_answers,
    count_needed,
    mcnemar_p,
    read_questions,
)


def test_read_questions_yaml_and_json_lines_are_equal(tmp_path: Path) -> None:
    (tmp_path / "q.yaml").write_text("- {question: '2 + 2?', expected: '4'}\n"
                                     "- {question: 'Capital?', contains: [paris, france]}\n")
    (tmp_path / "q.jsonl").write_text('{"question": "2 + 2?", "expected": "4"}\n\n'
                                      '{"question": "Capital?", "contains": ["paris", "france"]}\n')
    assert read_questions(tmp_path / "q.yaml") == read_questions(tmp_path / "q.jsonl")


@pytest.mark.parametrize(("name", "text", "message"), [
    ("q.yaml", "- {question: a}", r"entry 1: one of expected, contains and regex"),
    ("q.yaml", "- {question: a, expect: b}", r"entry 1: .*unknown field `expect`"),
    ("q.yaml", "- {question: a, regex: '('}", r"entry 1: "),
    ("q.yaml", "- {question: a, expected: b, max_tokens: 0}", r"max_tokens must be"),
    ("q.yaml", "- {expected: b}", r"entry 1: .*question"),
    ("q.yaml", "a: b", "no questions"), ("q.yaml", "", "no questions"), ("q.yaml", "- [", "neither YAML"),
    ("q.jsonl", '{"question": "a", "expected": "b"}\n{', "neither YAML")])
def test_read_questions_bad_entry_is_named(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(UnreadableQuestions, match=message):
        read_questions(tmp_path / name)


@pytest.mark.parametrize(("question", "answer", "is_right"), [
    (UserQuestion("q", expected="Four, exactly."), " Four,\n exactly. ", True),
    (UserQuestion("q", expected="4"), "44", False),
    (UserQuestion("q", contains="Paris"), "It is PARIS.", True), (UserQuestion("q", contains=["a", "z"]), "only a", False),
    (UserQuestion("q", regex=r"\b4\b"), "is 4.", True), (UserQuestion("q", regex=r"^4$", contains="4"), "44", False)])
def test_is_right_all_that_is_expected_counts(question: UserQuestion, answer: str, *, is_right: bool) -> None:
    assert question.is_right(answer) is is_right


def test_compare_answers_lost_and_gained_are_listed() -> None:
    questions = [UserQuestion(str(n), expected="yes") for n in range(4)]
    found = compare_answers("q.yaml", questions, ["yes", "yes", "no", "no"], ["yes", "no", "yes", "nope"])
    assert (found.n_right_before, found.n_right_after, found.n_lost, found.n_gained, found.n_reworded) == (2, 2, 1, 1, 3)
    assert [(one.question, one.is_lost) for one in found.changed] == [("1", True), ("2", False)]
    assert found.loss.value == 0
    assert found.loss.low < 0 < found.loss.high


def test_compare_answers_few_questions_show_nothing() -> None:
    questions = [UserQuestion(str(n), expected="yes") for n in range(20)]
    found = compare_answers("q.yaml", questions, ["yes"] * 20, ["yes"] * 20)
    assert found.loss.value == 0
    assert found.loss.high > 0.1


@pytest.mark.parametrize("bound", [0.01, 0.02, 0.1])
def test_count_needed_is_the_fewest_that_exclude_the_bound(bound: float) -> None:
    n = count_needed(bound)
    for n_questions, is_enough in ((n, True), (n - 1, False)):
        answers = ["yes"] * n_questions
        found = compare_answers("q", [UserQuestion("q", expected="yes")] * n_questions, answers, answers)
        assert (found.loss.high <= bound) is is_enough


def test_mcnemar_p_is_the_exact_binomial_one() -> None:
    assert mcnemar_p(0, 0) == 1.0
    assert mcnemar_p(5, 0) == pytest.approx(2 / 32)
    assert mcnemar_p(8, 2) == mcnemar_p(2, 8) == pytest.approx(2 * (1 + 10 + 45) / 1024)


@given(st.integers(0, 30), st.integers(0, 30), st.integers(0, 60))
def test_compare_answers_interval_contains_the_loss(n_lost: int, n_gained: int, n_same: int) -> None:
    rows = [("yes", "no")] * n_lost + [("no", "yes")] * n_gained + [("yes", "yes")] * n_same
    if not rows:
        return
    found = compare_answers("q", [UserQuestion("q", expected="yes")] * len(rows), *map(list, zip(*rows, strict=True)))
    assert found.loss.low <= found.loss.value <= found.loss.high
    assert found.loss.value == pytest.approx((found.n_right_before - found.n_right_after) / len(rows))
