"""Lines of a batch file: split, checked, read."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.core.types import Api
from stayfast.wire.jobs.lines import MAX_PROBLEMS, LineChecker, LineSplitter, api_of, count_inputs, read_line

CHAT = "/v1/chat/completions"


def line(custom_id: object = "a", **changes: Any) -> bytes:
    """A good line, with changes; `...` removes a member."""
    members = {"custom_id": custom_id, "method": "POST", "url": CHAT,
               "body": {"model": "m", "messages": [{"role": "user", "content": "hi"}]}, **changes}
    return json.dumps({name: value for name, value in members.items() if value is not ...}).encode()


def check(*lines: bytes, max_lines: int = 100, max_line_bytes: int = 1000) -> LineChecker:
    """A checker after these lines."""
    checker = LineChecker(CHAT, {"m", "n"}.__contains__, max_lines=max_lines, max_line_bytes=max_line_bytes)
    for n, each in enumerate(lines, 1):
        checker.check(n, each)
    checker.close()
    return checker


def split(data: bytes, step: int, max_bytes: int = 10_000) -> list[tuple[int, bytes]]:
    """The lines of a file that arrives in parts."""
    splitter = LineSplitter(max_bytes)
    parts = [data[at:at + step] for at in range(0, len(data), step)]
    return [*(found for part in parts for found in splitter.feed(part)), *splitter.close()]


@given(st.lists(st.sampled_from([b"a", b"bc", b"", b" ", b"\t", b"{}"]), max_size=12), st.integers(1, 9),
       st.sampled_from([b"\n", b"\r\n"]), st.booleans())
def test_split_cut_anywhere_numbers_the_lines(lines: list[bytes], step: int, end: bytes, has_end: bool) -> None:
    data = end.join(lines) + (end if has_end else b"")
    assert split(data, step) == [(n, each.strip()) for n, each in enumerate(lines, 1) if each.strip()]


def test_split_drops_the_mark_of_utf_8() -> None:
    assert split(b"\xef\xbb\xbf{}\n{}", 2) == [(1, b"{}"), (2, b"{}")]


def test_split_long_line_has_bounded_memory() -> None:
    splitter = LineSplitter(100)
    for _ in range(1000):
        assert list(splitter.feed(b"x" * 64)) == []
    ((n, whole),) = splitter.feed(b"\n")
    assert n == 1
    assert 100 < len(whole) <= 100 + 1 + 64


def test_check_good_lines_have_no_problems() -> None:
    checker = check(line("a"), line("b", body={"model": "n", "stream": False}))
    assert (checker.problems, checker.n_lines, checker.model) == ([], 2, "m")


@pytest.mark.parametrize(("bad", "code", "param"), [
    (b"{", "invalid_json_line", None), (b"[]", "invalid_json_line", None), (b'{"a":"\xff"}', "invalid_json_line", None),
    (b"[" * 100_000, "line_too_large", None), (b"null", "invalid_json_line", None),
    (line("b", more=1), "unknown_parameter", "more"),
    (line(...), "missing_required_parameter", "custom_id"), (line("b", method=...), "missing_required_parameter", "method"),
    (line("b", url=...), "missing_required_parameter", "url"), (line("b", body=...), "missing_required_parameter", "body"),
    (line(""), "invalid_custom_id", "custom_id"), (line(7), "invalid_custom_id", "custom_id"),
    (line("x" * 513), "invalid_custom_id", "custom_id"), (line("a"), "duplicate_custom_id", "custom_id"),
    (line("b", method="GET"), "invalid_method", "method"), (line("b", method=1), "invalid_method", "method"),
    (line("b", url="/v1/videos"), "invalid_url", "url"), (line("b", url=None), "invalid_url", "url"),
    (line("b", url="/v1/responses"), "url_mismatch", "url"),
    (line("b", body=[]), "invalid_body", "body"), (line("b", body={}), "missing_required_parameter", "body.model"),
    (line("b", body={"model": 1}), "missing_required_parameter", "body.model"),
    (line("b", body={"model": "gone"}), "model_not_found", "body.model"),
    (line("b", body={"model": "m", "stream": True}), "streaming_unsupported", "body.stream"),
    (line("b", body={"model": "m", "background": True}), "background_unsupported", "body.background"),
    (line("b", body={"model": "m", "a": "x" * 1000}), "line_too_large", None),
])
def test_check_bad_line_is_named(bad: bytes, code: str, param: str | None) -> None:
    (problem,) = check(line("a"), bad).problems
    assert (problem.line, problem.code, problem.param) == (2, code, param)


def test_check_line_that_continues_our_own_response_is_named() -> None:
    """An upstream does not know the id. One of the upstream's own goes on as it is."""
    checker = LineChecker("/v1/responses", {"m"}.__contains__, max_lines=5, max_line_bytes=1000)
    for n, before_id in enumerate((None, "resp_68af", "resp_sf68af", 7), 1):
        checker.check(n, line(f"c{n}", url="/v1/responses", body={"model": "m", "input": "x",
                                                                   "previous_response_id": before_id}))
    assert [(problem.line, problem.code, problem.param) for problem in checker.problems] == [
        (3, "previous_response_unsupported", "body.previous_response_id")]


def test_check_deep_line_is_a_problem() -> None:
    (problem,) = check(b"[" * 5000, max_line_bytes=10_000).problems
    assert problem.code == "invalid_json_line"


def test_check_empty_file_is_a_problem() -> None:
    (problem,) = check().problems
    assert (problem.code, problem.line) == ("empty_file", None)


def test_check_too_many_lines_is_one_problem() -> None:
    checker = check(line("a"), line("b"), line("c"), max_lines=2)
    (problem,) = checker.problems
    assert (problem.code, problem.line, checker.is_hopeless) == ("too_many_tasks", None, True)


def test_check_reports_are_bounded() -> None:
    checker = check(*[b"{"] * (MAX_PROBLEMS * 2), max_lines=1000)
    assert (len(checker.problems), checker.is_hopeless) == (MAX_PROBLEMS, True)


@given(st.binary(max_size=100))
def test_check_any_bytes_is_a_problem_or_none(data: bytes) -> None:
    assert all(problem.line == 1 for problem in check(data).problems if problem.code != "empty_file")


@pytest.mark.parametrize(("raw", "n"), [(b'"a"', 1), (b"[1,2,3]", 1), (b'["a","b"]', 2), (b"[[1],[2],[3]]", 3), (b"[]", 1),
                                        (b"null", 1)])
def test_count_inputs(raw: bytes, n: int) -> None:
    assert count_inputs(raw) == n


def test_check_too_many_inputs_of_embeddings_is_one_problem() -> None:
    checker = LineChecker("/v1/embeddings", {"m"}.__contains__, max_lines=100, max_line_bytes=1_000_000)
    for n in range(4):
        checker.check(n + 1, line(f"c{n}", url="/v1/embeddings", body={"model": "m", "input": ["a"] * 20_000}))
    (problem,) = checker.problems
    assert (problem.code, problem.line, checker.is_hopeless) == ("too_many_inputs", None, True)


def test_read_line_keeps_the_bytes_of_its_body() -> None:
    raw = b'{"model": "m","max_tokens":  100, "x": 1.50, "messages": []}'
    read = read_line(7, b'{"body":' + raw + b', "custom_id":"\\u00fc","method":"POST","url":"/v1/chat/completions"}')
    assert (read.n, read.custom_id, read.model, read.body) == (7, "ü", "m", raw)
    assert read.n_tokens == len(raw) // 4 + 100


@pytest.mark.parametrize(("endpoint", "api"), [(CHAT, Api.CHAT), ("/v1/embeddings", Api.EMBEDDINGS),
                                               ("/v1/messages", Api.MESSAGES), ("/v1/responses", Api.RESPONSES)])
def test_api_of_endpoint(endpoint: str, api: Api) -> None:
    assert api_of(endpoint) is api
