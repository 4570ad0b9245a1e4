"""Problems of a settings file: location, setting, and what to write instead."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from re import fullmatch

Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class SourceLocation:
    """Location of a value. `source`: a file, an environment variable or a flag. Lines and columns count from 1. `set_by`:
    what set the value because of the setting at this location, such as `provider groq`.
    """

    source: str
    line: int | None = None
    column: int | None = None
    set_by: str = ""

    def __str__(self) -> str:
        return self.source if self.line is None else f"{self.source}:{self.line}:{self.column}"


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem. `path`: of the setting; empty for the whole file."""

    location: SourceLocation
    path: Path
    message: str

    def __str__(self) -> str:
        where = format_path(self.path)
        return f"{self.location}: {where}: {self.message}" if where else f"{self.location}: {self.message}"


class SettingsError(ValueError):
    """Invalid settings. `problems`: all of them, in the order of the file; `str()` has one line per problem."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = tuple(problems)


def format_path(path: Path) -> str:
    """For example routes."gpt-4.1".upstreams[0]."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            text += ("." if text else "") + (step if fullmatch(r"[A-Za-z0-9_*-]+", step) else quote(step))
    return text


def quote(text: str) -> str:
    """The text in quotes, on one line."""
    return json.dumps(text, ensure_ascii=not text.isprintable())


def suggest(word: str, known: Iterable[str]) -> str:
    """`, did you mean port?`; empty if no known word is similar."""
    near = get_close_matches(word.lower().replace("-", "_"), list(known), n=1, cutoff=0.6)
    return f", did you mean {near[0]}?" if near else ""
