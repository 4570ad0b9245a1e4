"""The shape of the code: sizes, and exceptions to the rules, which may only become fewer."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LONG_LINES, MAX_LINES = 350, 500
MAX_FUNCTION_LINES = 50
MAX_STORY_LINES = 60
# What there is. A change may lower a figure, never raise one.
MAX_PER_FILE_IGNORES = 4
MAX_IGNORES = {"src": 12, "tests": 14}


def sources(folder: str) -> list[Path]:
    """The Python files of one tree; installed packages of test fixtures aside."""
    return [path for path in sorted((ROOT / folder).rglob("*.py")) if "node_modules" not in path.parts]


def n_lines(path: Path) -> int:
    """Lines of a file."""
    return len(path.read_text(encoding="utf-8").splitlines())


def functions(path: Path) -> Iterator[tuple[str, int]]:
    """Each function of a file and its lines, decorators aside."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            yield f"{path.relative_to(ROOT)}:{node.lineno} {node.name}", node.end_lineno - node.lineno + 1


def test_files_are_short(capsys: pytest.CaptureFixture[str]) -> None:
    """No file has more than 500 lines; those over 350 are listed, to be split before they get there."""
    sizes = {str(path.relative_to(ROOT)): n_lines(path) for path in [*sources("src"), *sources("tests")]}
    with capsys.disabled():
        for name, size in sizes.items():
            if size > LONG_LINES:
                sys.stdout.write(f"\nlong: {name} has {size} lines")
    assert {name: size for name, size in sizes.items() if size > MAX_LINES} == {}


def test_functions_are_short() -> None:
    """No function has more than 50 lines."""
    found = {name: size for path in [*sources("src"), *sources("tests")] for name, size in functions(path)}
    assert {name: size for name, size in found.items() if size > MAX_FUNCTION_LINES} == {}


def test_the_story_fits_a_screen() -> None:
    """pipeline/gateway.py tells a request's life in at most 60 lines."""
    assert n_lines(ROOT / "src/stayfast/pipeline/gateway.py") <= MAX_STORY_LINES


@pytest.mark.parametrize("folder", ["src", "tests"])
def test_exceptions_to_rules_only_become_fewer(folder: str) -> None:
    """Each noqa and type: ignore names its rule, and there are no more of them than there were."""
    marks = [(path, mark) for path in sources(folder)
             for mark in re.findall(r"#\s*(noqa|type:\s*ignore)(?=[:\[\s]|$)(:?\s*\w+|\[[\w, -]+\])?", path.read_text())]
    assert [str(path) for path, (_, rule) in marks if not rule] == []
    assert len(marks) <= MAX_IGNORES[folder], f"lower MAX_IGNORES[{folder!r}] when you remove one, never raise it"


def test_per_file_ignores_only_become_fewer() -> None:
    """Every entry names files that exist, and there are no more entries than there were."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    ignores = settings["tool"]["ruff"]["lint"]["per-file-ignores"]
    assert len(ignores) <= MAX_PER_FILE_IGNORES
    assert [pattern for pattern in ignores if not any(ROOT.glob(pattern))] == []
