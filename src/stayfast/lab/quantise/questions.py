"""The user's own questions, answered by both models: which answers were right before and are wrong after.

Problem: a mean over a text does not show whether the model still does its work.
Rule: the same questions go to both models at temperature 0. The loss is the share that was right before only, less the
share that is right after only. Its interval has the ends of the Clopper-Pearson intervals of both shares that are
furthest apart, so that it covers at least 90 %. The p-value is McNemar's exact one: of the answers that
changed, are as many lost as gained?
When it is wrong: a right answer in words that the file does not expect counts as wrong, before and after. Few questions
show large losses only: without any change, 183 are needed to exclude a loss of 2 %.
"""

import re
from collections.abc import Callable, Sequence
from math import comb, log
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml

from stayfast.lab.harness.intervals import TAIL, share_interval
from stayfast.lab.quantise.accuracy import Estimate95
from stayfast.lab.quantise.loaded_model import LoadedModel, ModelFailed

MAX_TOKENS: Final = 256
_SHOWN: Final = 200  # characters of an answer in the report


class UnreadableQuestions(ValueError):
    """The file of questions cannot be used; the message names the entry."""


class UserQuestion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """expected: the whole answer, spaces apart. contains: each must occur, in upper or lower case. regex: must occur."""

    question: str
    expected: str | None = None
    contains: str | list[str] | None = None
    regex: str | None = None
    system: str | None = None
    max_tokens: int = MAX_TOKENS

    def is_right(self, answer: str) -> bool:
        """Whether an answer fulfils all that is expected of it."""
        wanted = [self.contains] if isinstance(self.contains, str) else self.contains or []
        return (self.expected is None or " ".join(answer.split()) == " ".join(self.expected.split())) and all(
            part.casefold() in answer.casefold() for part in wanted) and (
            self.regex is None or re.search(self.regex, answer) is not None)


class ChangedAnswer(msgspec.Struct, frozen=True):
    """A question whose answer was right with one of the models only."""

    question: str
    is_lost: bool
    before: str
    after: str


class QuestionFigures(msgspec.Struct, frozen=True):
    """loss: share of the questions, lost less gained. p: McNemar's. n_reworded: answers whose text differs."""

    file: str
    n: int
    n_right_before: int
    n_right_after: int
    n_lost: int
    n_gained: int
    n_reworded: int
    loss: Estimate95
    p: float
    changed: list[ChangedAnswer]


def read_questions(path: Path) -> list[UserQuestion]:
    """Read a YAML list, or JSON Lines (by the suffix .jsonl). Raises UnreadableQuestions, OSError."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        rows = [(f"line {number}", msgspec.json.decode(line)) for number, line in enumerate(text.splitlines(), 1)
                if line.strip()] if path.suffix == ".jsonl" else _number(yaml.safe_load(text))
    except (UnicodeDecodeError, msgspec.DecodeError, yaml.YAMLError) as error:
        raise UnreadableQuestions(f"{path} is neither YAML nor JSON Lines: {' '.join(str(error).split())}") from error
    if not rows:
        raise UnreadableQuestions(f"{path} has no questions")
    return [_read(path, place, row) for place, row in rows]


def _number(found: Any) -> list[tuple[str, Any]]:
    return [(f"entry {number}", row) for number, row in enumerate(found, 1)] if isinstance(found, list) else []


def _read(path: Path, place: str, row: Any) -> UserQuestion:
    try:
        question = msgspec.convert(row, UserQuestion)
        re.compile(question.regex or "")
    except (msgspec.ValidationError, re.error) as error:
        raise UnreadableQuestions(f"{path}, {place}: {error}") from error
    if question.expected is None and not question.contains and question.regex is None:
        raise UnreadableQuestions(f"{path}, {place}: one of expected, contains and regex is needed")
    if not 1 <= question.max_tokens <= 1 << 20:
        raise UnreadableQuestions(f"{path}, {place}: max_tokens must be from 1 to 1048576, not {question.max_tokens}")
    return question


class _Message(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    message: _Message


class _Completion(msgspec.Struct):
    choices: list[_Choice]


async def answer_questions(model: LoadedModel, questions: Sequence[UserQuestion],
                           report: Callable[[float], None]) -> list[str]:
    """The answers, at temperature 0. Raises ModelFailed."""
    answers = []
    for number, one in enumerate(questions):
        messages = [] if one.system is None else [{"role": "system", "content": one.system}]
        body = await model.post("/v1/chat/completions", {
            "messages": [*messages, {"role": "user", "content": one.question}], "temperature": 0, "seed": 1,
            "max_tokens": one.max_tokens})
        try:
            answers.append(msgspec.json.decode(body, type=_Completion).choices[0].message.content or "")
        except (msgspec.DecodeError, IndexError) as error:
            raise ModelFailed(f"the engine's answer cannot be read: {error}") from error
        report((number + 1) / len(questions))
    return answers


def compare_answers(file: str, questions: Sequence[UserQuestion], before: Sequence[str],
                    after: Sequence[str]) -> QuestionFigures:
    """file: the name of the file of questions."""
    rows = list(zip(questions, before, after, strict=True))
    right = [(one.is_right(old), one.is_right(new)) for one, old, new in rows]
    changed = [ChangedAnswer(one.question, was_right, old[:_SHOWN], new[:_SHOWN])
               for (one, old, new), (was_right, is_right) in zip(rows, right, strict=True) if was_right != is_right]
    n, n_lost = len(rows), sum(one.is_lost for one in changed)
    n_gained = len(changed) - n_lost
    lost, gained = share_interval(n_lost, n), share_interval(n_gained, n)
    return QuestionFigures(
        file, n, sum(old for old, _ in right), sum(new for _, new in right), n_lost, n_gained,
        sum(old != new for _, old, new in rows),
        Estimate95((n_lost - n_gained) / n, lost[0] - gained[1], lost[1] - gained[0]), mcnemar_p(n_lost, n_gained), changed)


def mcnemar_p(n_lost: int, n_gained: int) -> float:
    """The exact two-sided p-value of as many or more of one kind, if both are equally probable."""
    n = n_lost + n_gained
    return min(1.0, 2 * sum(comb(n, k) for k in range(min(n_lost, n_gained) + 1)) / float(2**n))


def count_needed(bound: float) -> int:
    """The fewest questions that, without any lost one, exclude a loss above `bound` (0 to 1)."""
    return int(log(TAIL) / log(1 - bound)) + 1
