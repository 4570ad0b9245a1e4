"""`stayfast cache eval`: files, passes, text, page and command."""

import json
import sys
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.cli import cache_eval, main
from stayfast.cli.cache_eval import format_text, render_page
from stayfast.lab.report.table import TerminalStyle
from stayfast.lab.semantic_eval.evaluate import (
    Evaluation,
    EvaluationRow,
    Questions,
    Unreadable,
    evaluate,
    in_hindsight,
    of_classes,
    of_pairs,
    one_pass,
)
from stayfast.policy.cache.calibration import CalibrateConfig
from stayfast.policy.cache.eligibility import EligibleConfig
from stayfast.policy.cache.similarity import FixedThreshold
from tests.bench.phrased import Words, as_csv, phrased

PLAIN = TerminalStyle(is_on=False)


def written(folder: Path, text: str, name: str = "file.csv") -> Path:
    path = folder / name
    path.write_text(text, "utf-8")
    return path


def test_questions_of_classes_are_read(tmp_path: Path) -> None:
    """Each text once; columns by any of their names, in any order, with a byte order mark."""
    path = written(tmp_path, '\ufeffintent,question\na,"one, two"\nb,three\na,four\nb,"one, two"\n')
    assert of_classes(path) == Questions(["one, two", "three", "four"], [0, 1, 0])


def test_questions_of_pairs_are_read(tmp_path: Path) -> None:
    """A label 1 joins two texts, also through others; a contradicting 0 is counted."""
    path = written(tmp_path, "sentence1,sentence2,label\na,b,1\nc,d,0\nb,e,1\na,e,0\n")
    texts, answers, n_torn = of_pairs(path)
    by_text = dict(zip(texts, answers, strict=True))
    assert by_text["a"] == by_text["b"] == by_text["e"]
    assert len({by_text["a"], by_text["c"], by_text["d"]}) == 3
    assert n_torn == 1


def test_questions_of_json_pairs_share_their_answers(tmp_path: Path) -> None:
    path = written(tmp_path, '[{"origin": "a", "similar": "b"}, {"origin": "c", "similar": "d"}]', "file.json")
    texts, answers, _ = of_pairs(path)
    assert (texts, len(set(answers))) == (["a", "b", "c", "d"], 2)


@pytest.mark.parametrize(("text", "name", "expected"), [
    ("", "f.csv", "has no rows"),
    ("a,b\n1,2\n", "f.csv", "no column 'sentence1'"),
    ("sentence1,sentence2\na,b\n", "f.csv", "no column 'label'"),
    ("sentence1,sentence2,label\na,b,maybe\n", "f.csv", "row 1: label must be 0 or 1"),
    ("sentence1,sentence2,label\na,b,1\n,b,1\n", "f.csv", "row 2: sentence1 is empty"),
    ("[1, 2]", "f.json", "no JSON list"),
    ('[{"origin": {}, "similar": "b"}]', "f.json", "row 1: origin is empty"),
])
def test_questions_malformed_file_is_refused(tmp_path: Path, text: str, name: str, expected: str) -> None:
    with pytest.raises(Unreadable, match=expected):
        of_pairs(written(tmp_path, text, name))


def test_questions_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Unreadable, match="No such file"):
        of_classes(tmp_path / "nothing.csv")
    (tmp_path / "bytes.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(Unreadable, match="CSV in UTF-8"):
        of_classes(tmp_path / "bytes.csv")


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.booleans()), min_size=1, max_size=30))
def test_questions_of_pairs_become_classes(tmp_path_factory: pytest.TempPathFactory,
                                           pairs: list[tuple[int, int, bool]]) -> None:
    """Both texts of an equal pair have one answer, in any order of rows."""
    rows = "".join(f"t{one},t{other},{int(is_same)}\n" for one, other, is_same in pairs)
    texts, answers, _ = of_pairs(written(tmp_path_factory.mktemp("pairs"), "sentence1,sentence2,label\n" + rows))
    by_text = dict(zip(texts, answers, strict=True))
    assert all(by_text[f"t{one}"] == by_text[f"t{other}"] for one, other, is_same in pairs if is_same)


@pytest.fixture(scope="module")
def questions() -> Questions:
    numbers: dict[str, int] = {}
    answers = [numbers.setdefault(answer, len(numbers)) for _, answer in phrased()]
    return Questions([text for text, _ in phrased()], answers)


@pytest.fixture(scope="module")
def evaluation(questions: Questions) -> Evaluation:
    return evaluate(questions, Words().embed_all(questions.texts), EligibleConfig(), name="<b>file", embedder="words",
                    seed=1, max_errors=(0.05, 0.2))


def test_calibrated_pass_stays_within_its_bound(questions: Questions) -> None:
    """It learns, answers, stays within its bound, and counts all outcomes."""
    vectors = Words().embed_all(questions.texts)
    passed = one_pass(questions, vectors, CalibrateConfig(max_error=0.1), EligibleConfig(), seed=1)
    whole, second = passed.whole, passed.second
    assert whole.n == len(questions.texts) == sum(passed.why.values())
    assert whole.n_hits == passed.why["hit"] > 300
    assert whole.error <= 0.1
    assert second.hit_rate > whole.hit_rate
    assert whole.n - whole.n_hits <= passed.n_stored + sum(passed.why[why] for why in ("short", "volatile", "personal"))
    again = one_pass(questions, vectors, CalibrateConfig(max_error=0.1), EligibleConfig(), seed=1)
    assert again.whole == whole


def test_fixed_threshold_always_holds(questions: Questions) -> None:
    """A low threshold answers nearly all questions, many of them wrongly."""
    passed = one_pass(questions, Words().embed_all(questions.texts), FixedThreshold(0.5), EligibleConfig(), seed=1)
    assert passed.whole.hit_rate > 0.8
    assert passed.whole.error > 0.2


def test_hindsight_curve_of_scores() -> None:
    """The best score first."""
    seen = [(0.9, True), (0.8, True), (0.7, False), (0.6, True)]
    assert in_hindsight(seen, 8) == [(0.0, 1 / 8), (0.0, 2 / 8), (1 / 3, 3 / 8), (1 / 4, 4 / 8)]
    rng = Random(1)
    assert len(in_hindsight([(rng.random(), True) for _ in range(5000)], 5000)) <= 210
    assert in_hindsight([], 10) == []


def test_cache_eval_text_shows_passes_and_reasons(evaluation: Evaluation) -> None:
    """One line a pass; an exceeded bound is red."""
    text = format_text(evaluation, PLAIN)
    assert "1,620 questions, 45 answers" in text
    assert all(f"{name:>16}" in text for name in ("5 %", "20 %", "0.92"))
    broken = EvaluationRow(0.01, None, 0.5, 0.02, 0.5, 0.02, 10, 1, 5, {"hit": 10})
    assert not broken.holds
    text = format_text(Evaluation("f", "e", 1, 10, 2, 3, [broken], [], [], []), TerminalStyle(is_on=True))
    assert "\x1b[1;31m             1 %" in text
    assert "3 pairs are labelled different" in text


def test_cache_eval_page_makes_no_network_requests(evaluation: Evaluation) -> None:
    """No script, no network address, and an escaped file name."""
    html = render_page(evaluation)
    assert "<b>file" not in html
    assert "&lt;b&gt;file" in html
    assert "<script" not in html
    assert "http" not in html.replace("http-equiv", "")
    assert html.count("<circle") >= 3


def test_cache_eval_writes_json_and_html(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                         capsys: pytest.CaptureFixture[str]) -> None:
    """It prints JSON and writes the page."""
    monkeypatch.setattr(cache_eval, "load_encoder", lambda config, cache_dir: Words())
    path, report = written(tmp_path, as_csv()), tmp_path / "report.html"
    assert main(["cache", "eval", "--classes", str(path), "--max-error", "10%", "--json", "--html", str(report)]) == 0
    expected = json.loads(capsys.readouterr().out)
    assert expected["calibrated"][0]["error"] <= 0.1
    assert expected["calibrated"][0]["hit_rate"] > 0.1
    assert "stayfast cache eval" in report.read_text("utf-8")
    assert expected["min_labels"] == 300


def test_cache_eval_min_labels_delays_the_first_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                             capsys: pytest.CaptureFixture[str]) -> None:
    """With as many labels as the file has questions, no question is answered."""
    monkeypatch.setattr(cache_eval, "load_encoder", lambda config, cache_dir: Words())
    command = ["cache", "eval", "--classes", str(written(tmp_path, as_csv())), "--max-error", "10%", "--json"]
    n_hits = []
    for least in ("50", "4096"):
        assert main([*command, "--min-labels", least]) == 0
        expected = json.loads(capsys.readouterr().out)
        assert expected["min_labels"] == int(least)
        n_hits.append(expected["calibrated"][0]["n_hits"])
    assert n_hits[0] > n_hits[1] == 0


def test_cache_eval_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The message says how to install it."""
    monkeypatch.setitem(sys.modules, "stayfast.cli.cache_eval", None)
    assert main(["cache", "eval", "--classes", "f.csv"]) == 1
    assert "pip install '.[semantic]'" in capsys.readouterr().err


@pytest.mark.parametrize(("options", "status", "expected"), [
    (["--max-error", "much"], 2, "--max-error takes shares"),
    (["--max-error", "60%"], 2, "from 0.01% to 50%"),
    (["--words", "0"], 2, "min_content_words"),
    (["--min-labels", "49"], 2, "--min-labels must be from 50 to 4096, not 49"),
    (["--min-labels", "5000"], 2, "from 50 to 4096"),
    ([], 1, "at least 50 are needed"),
])
def test_cache_eval_wrong_options_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str],
                                              status: int, expected: str) -> None:
    """Nothing is embedded."""
    path = written(tmp_path, "text,category\nwhat is this,a\n")
    assert main(["cache", "eval", "--classes", str(path), *options]) == status
    assert expected in capsys.readouterr().err
