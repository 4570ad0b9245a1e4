"""Files of questions, and which of them have the same answer.

    classes   CSV with the columns `text` and `category` (or class, label, intent, answer): same category, same answer
    pairs     CSV with the columns `sentence1`, `sentence2` (or question1, question2) and `label`, 1 where the second may
              have the first one's answer; or JSON, a list of {"origin": ..., "similar": ...}, which all may

Pairs become classes: what a 1 joins has one answer, all else has another. A text that comes again is asked once; the exact
cache would have it.
"""

import csv
import io
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

TEXTS = ("text", "question", "query")
CLASSES = ("category", "class", "label", "intent", "answer")
FIRSTS = ("sentence1", "question1", "text1", "origin")
SECONDS = ("sentence2", "question2", "text2", "similar")
LABELS = ("label", "is_duplicate", "same")
_YES_NO = {"1": True, "0": False, "true": True, "false": False}


class Unreadable(Exception):
    """A file is not what it should be. The message says where and what to do, and quotes no question."""


class Questions(NamedTuple):
    """Texts, each once, and the number of each one's answer. n_torn: pairs that a file calls different and the same."""

    texts: list[str]
    answers: list[int]
    n_torn: int = 0


def of_classes(path: Path) -> Questions:
    """Read a file of classes. Raises Unreadable."""
    rows = _rows(path)
    text, answer = _column(path, rows[0], TEXTS), _column(path, rows[0], CLASSES)
    numbers: dict[str, int] = {}
    found: dict[str, int] = {}
    for place, row in enumerate(rows):
        asked, said = _said(path, row, text, place), _said(path, row, answer, place)
        found.setdefault(asked, numbers.setdefault(said, len(numbers)))
    return Questions(list(found), list(found.values()))


def of_pairs(path: Path) -> Questions:
    """Read a file of pairs. Raises Unreadable."""
    pairs = list(_pairs(path))
    parents: dict[str, str] = {}
    for one, other, is_same in pairs:
        one_root, other_root = _root(parents, one), _root(parents, other)
        if is_same and one_root != other_root:
            parents[other_root] = one_root
    roots: dict[str, int] = {}
    answers = [roots.setdefault(_root(parents, text), len(roots)) for text in parents]
    n_torn = sum(not is_same and _root(parents, one) == _root(parents, other) for one, other, is_same in pairs)
    return Questions(list(parents), answers, n_torn)


def _pairs(path: Path) -> Iterable[tuple[str, str, bool]]:
    rows = _rows(path)
    first, second = _column(path, rows[0], FIRSTS), _column(path, rows[0], SECONDS)
    label = None if first == "origin" else _column(path, rows[0], LABELS)
    for place, row in enumerate(rows):
        is_same = True if label is None else _YES_NO.get(_said(path, row, label, place).lower())
        if is_same is None:
            raise Unreadable(f"{path}: row {place + 1}: {label} must be 0 or 1")
        yield _said(path, row, first, place), _said(path, row, second, place), is_same


def _rows(path: Path) -> list[Mapping[str, object]]:
    try:
        text = path.read_text("utf-8-sig")
        rows: list[Mapping[str, object]] = (msgspec.json.decode(text, type=list[dict[str, object]]) if path.suffix == ".json"
                                            else list(csv.DictReader(io.StringIO(text, newline=""), restval="")))
    except OSError as error:
        raise Unreadable(f"{path} cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error, msgspec.MsgspecError) as error:
        raise Unreadable(f"{path} is no {'JSON list of objects' if path.suffix == '.json' else 'CSV in UTF-8'}: "
                         f"{type(error).__name__}") from None
    if not rows:
        raise Unreadable(f"{path} has no rows")
    return rows


def _column(path: Path, row: Mapping[str, object], names: tuple[str, ...]) -> str:
    found = next((name for name in names if name in row), None)
    if found is None:
        raise Unreadable(f"{path} has no column {names[0]!r} (nor {', '.join(names[1:])})")
    return found


def _said(path: Path, row: Mapping[str, object], column: str, place: int) -> str:
    value = row.get(column)
    said = value.strip() if isinstance(value, str) else str(value) if isinstance(value, int) else ""
    if not said:
        raise Unreadable(f"{path}: row {place + 1}: {column} is empty")
    return said


def _root(parents: dict[str, str], text: str) -> str:
    """The text that stands for all that have its answer."""
    root = parents.setdefault(text, text)
    while parents[root] != root:
        parents[root] = root = parents[parents[root]]
    return root
