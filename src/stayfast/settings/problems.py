"""What is wrong with a settings file, said so that it can be mended without reading any code: where, what, what instead."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from re import fullmatch

Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class SourceLocation:
    """Where a value was written. `source` is a file, an environment variable or a flag; lines and columns count from 1."""

    source: str
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        return self.source if self.line is None else f"{self.source}:{self.line}:{self.column}"


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing to mend. `path` leads to the setting (empty: the file as a whole)."""

    place: SourceLocation
    path: Path
    message: str

    def __str__(self) -> str:
        where = dotted(self.path)
        return f"{self.place}: {where}: {self.message}" if where else f"{self.place}: {self.message}"


class SettingsError(ValueError):
    """Settings cannot be used. Holds every problem found, in the order of the file; `str()` is one line each."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = tuple(problems)


def dotted(path: Path) -> str:
    """A path as people write it: routes."gpt-4.1".upstreams[0]."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            text += ("." if text else "") + (step if fullmatch(r"[A-Za-z0-9_*-]+", step) else quoted(step))
    return text


def quoted(text: str) -> str:
    """A text in quotes, on one line whatever it holds."""
    return json.dumps(text, ensure_ascii=not text.isprintable())


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`, did you mean port?`, or nothing when no known word is near."""
    near = get_close_matches(word.lower().replace("-", "_"), list(known), n=1, cutoff=0.6)
    return f", did you mean {near[0]}?" if near else ""
