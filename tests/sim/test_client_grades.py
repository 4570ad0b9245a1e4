"""Grades of clients that retry after a refusal."""

import pytest

from stayfast.lab.sim_server.recording import MAX_CLIENTS, MAX_REFUSED, ClientGrade, ClientGrades
from stayfast.lab.simulated import SimulatedHead

GOOD = SimulatedHead(200, (), b"")
LIMITED = SimulatedHead(429, (("retry-after", "10"),), b"")
FAILED = SimulatedHead(500, (), b"")


def graded(*asked: tuple[float, bytes, SimulatedHead]) -> ClientGrade:
    """The grade of one client that asked at these instants and got these answers."""
    grades = ClientGrades()
    for at, body, said in asked:
        grades.note_request(b"key", body, at)
        grades.note_answer(b"key", body, at, said)
    return next(iter(grades.report().values()), ClientGrade())


def test_grade_other_request_is_no_retry() -> None:
    assert graded((0.0, b"a", LIMITED), (0.1, b"b", GOOD), (0.2, b"c", GOOD)) == ClientGrade(n_refused=1)


def test_grade_retry_before_retry_after_is_counted() -> None:
    assert graded((0.0, b"a", LIMITED), (3.0, b"a", GOOD)) == ClientGrade(1, 1, retry_after_ignored=1)
    assert graded((0.0, b"a", LIMITED), (10.0, b"a", GOOD)) == ClientGrade(1, 1)


def test_grade_retry_without_backoff_is_counted() -> None:
    assert graded((0.0, b"a", FAILED), (0.01, b"a", GOOD)) == ClientGrade(1, 1, no_backoff=1)
    assert graded((0.0, b"a", FAILED), (0.5, b"a", GOOD)) == ClientGrade(1, 1)


def test_grade_fourth_retry_is_a_storm() -> None:
    assert graded(*((float(at), b"a", FAILED) for at in range(6))) == ClientGrade(6, 5, retry_storm=2)


def test_grade_success_resets_retries() -> None:
    assert graded((0.0, b"a", FAILED), (1.0, b"a", GOOD), (1.01, b"a", GOOD)) == ClientGrade(1, 1)


def test_grades_do_not_contain_keys() -> None:
    grades = ClientGrades()
    grades.note_answer(b"sk-secret", b"a", 0.0, FAILED)
    grades.note_answer(b"", b"a", 0.0, FAILED)
    assert [len(name) for name in grades.report()] == [12, 6]
    assert "secret" not in str(grades.report())


@pytest.mark.parametrize("is_one_client", [True, False])
def test_grades_memory_is_bounded(*, is_one_client: bool) -> None:
    grades = ClientGrades()
    for at in range(2 * max(MAX_REFUSED, MAX_CLIENTS)):
        name = b"%d" % at
        grades.note_answer(b"key" if is_one_client else name, name, 0.0, FAILED)
    assert len(grades.report()) == (1 if is_one_client else MAX_CLIENTS)
    assert grades.n_refused_in_memory <= MAX_REFUSED
