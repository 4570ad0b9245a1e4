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
MAX_STORY_LINES = 80
MAX_SLOTS, MAX_COMPLEX = 16, 10
# What there is. A change may lower a figure, never raise one.
MAX_PER_FILE_IGNORES = 4
MAX_IGNORES = {"src": 11, "tests": 13}
# Range checks that a SettingDoc cannot express: a hole in the range.
RANGE_CHECKS = ["config.py: 0 < self.port < 1024"]
# Attributes of the classes that still have more than MAX_SLOTS.
WIDE: dict[str, int] = {
    "http/server/connection.py: ServerConnection": 19,
    "http/server/parser.py: RequestParser": 20,
    "lab/load/reader.py: MeasuredAnswer": 21,
    "lab/simulated/provider.py: SimulatedCall": 18,
    "lab/simulated/provider_state.py: ProviderState": 17,
    "observe/metrics/collector.py: MetricsSink": 17,
    "pipeline/stages/call/midstream_failover.py: StreamGuard": 26,
    "policy/resilience/breaker.py: Breaker": 19,
    "turns/served.py: RunningTurn": 18,
    "turns/step_run.py: BudgetState": 17,
    "turns/step_run.py: StepRun": 18,
    "upstreams/state/upstream_state.py: UpstreamState": 25,
}


def sources(folder: str) -> list[Path]:
    """The Python files of one tree; installed packages of test fixtures aside."""
    return [path for path in sorted((ROOT / folder).rglob("*.py")) if "node_modules" not in path.parts]


def n_lines(path: Path) -> int:
    """Lines of a file."""
    return len(path.read_text(encoding="utf-8").splitlines())


def n_attributes(cls: ast.ClassDef) -> int:
    """Attributes of a class: its `__slots__`, else what its methods assign. The fields of a record are a table."""
    for part in cls.body:
        if isinstance(part, ast.Assign) and ast.unparse(part.targets[0]) == "__slots__":
            assert isinstance(part.value, ast.Tuple)
            return len(part.value.elts)
    return len({node.attr for node in ast.walk(cls) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
                and isinstance(node.value, ast.Name) and node.value.id == "self"})


def classes(path: Path) -> Iterator[tuple[str, int]]:
    """Each class of a file and how many attributes it has."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ClassDef):
            yield f"{path.relative_to(ROOT / 'src/stayfast')}: {node.name}", n_attributes(node)


def test_files_hold_one_noun_and_end(capsys: pytest.CaptureFixture[str]) -> None:
    """No file has more than 500 lines; those over 350 are listed: which of them holds two nouns?"""
    sizes = {str(path.relative_to(ROOT)): n_lines(path) for path in [*sources("src"), *sources("tests")]}
    with capsys.disabled():
        for name, size in sizes.items():
            if size > LONG_LINES:
                sys.stdout.write(f"\nlong: {name} has {size} lines")
    assert {name: size for name, size in sizes.items() if size > MAX_LINES} == {}


def test_classes_hold_few_attributes() -> None:
    """A class with more than 16 attributes is several; those that are still to be divided are listed, and only fewer."""
    wide = {name: n for path in sources("src") for name, n in classes(path) if n > MAX_SLOTS}
    assert {name: n for name, n in wide.items() if n > WIDE.get(name, 0)} == {}
    assert {name: n for name, n in WIDE.items() if wide.get(name, 0) < n} == {}, "lower the figures in WIDE"


def test_complex_functions_only_become_fewer() -> None:
    """Complexity is at most 10 (ruff); a parser or a table that reads better in one piece says so, and is counted."""
    n = sum(len(re.findall(r"#\s*noqa:[^\n]*C901", path.read_text(encoding="utf-8"))) for path in sources("src"))
    assert n <= MAX_COMPLEX


def exchange_writes(source: str) -> Iterator[int]:
    """The lines that assign or delete an attribute of an Exchange, or of anything that an Exchange holds."""
    tree = ast.parse(source)
    arguments = [node for node in ast.walk(tree) if isinstance(node, ast.arg) and node.annotation is not None]
    names = {"ex", "exchange"} | {node.arg for node in arguments
                                  if ast.unparse(node.annotation or node).strip("'\"") in ("Exchange", "OutcomeRecord")}

    def is_of_exchange(node: ast.expr) -> bool:
        while isinstance(node, ast.Attribute):
            if node.attr in ("ex", "_ex", "record"):  # as in self._ex.record.upstream
                return True
            node = node.value
        return isinstance(node, ast.Name) and node.id in names

    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            is_write = not isinstance(node.ctx, ast.Load) and is_of_exchange(node.value)
        else:
            is_write = (isinstance(node, ast.Call) and is_of_exchange((*node.args, node.func)[0])
                        and ast.unparse(node.func) in ("setattr", "delattr", "object.__setattr__"))
        if is_write and isinstance(node, ast.expr):
            yield node.lineno


@pytest.mark.parametrize(("line", "is_write"), [
    ("ex.route = 1", True), ("ex.record.degraded = 'template'", True), ("ex.total_s += 1", True), ("del ex.route", True),
    ("a, ex.route = 1, 2", True), ("self._ex.record.upstream = name", True), ("setattr(ex, 'route', 1)", True),
    ("for ex.route in names: pass", True), ("def f(asked: Exchange) -> None: asked.route = 1", True),
    ("ex.record.degrade('template')", False), ("self._ex = ex", False), ("route = ex.route", False),
])
def test_exchange_writes_are_found(line: str, *, is_write: bool) -> None:
    """Assignments in any form count; calls of methods do not."""
    assert bool(list(exchange_writes(line))) is is_write


def test_no_stage_writes_into_an_exchange() -> None:
    """Stages return their results, and call the methods of the record. Only exchange.py assigns."""
    found = [f"{path.relative_to(ROOT)}:{line}" for path in sources("src/stayfast") if path.name != "exchange.py"
             and "lab" not in path.parts for line in exchange_writes(path.read_text(encoding="utf-8"))]
    assert found == []


def test_the_story_fits_a_screen() -> None:
    """pipeline/gateway.py tells a request's life on one page."""
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


def test_bounds_of_settings_stand_once() -> None:
    """A field with a SettingDoc has its bounds there: `__post_init__` compares it with other fields, never with a number."""
    found = []
    for path in sources("src"):
        for cls in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(cls, ast.ClassDef):
                continue
            documented = {part.target.id for part in cls.body if isinstance(part, ast.AnnAssign)
                          and isinstance(part.target, ast.Name) and "SettingDoc(" in ast.unparse(part.annotation)}
            for method in cls.body:
                if isinstance(method, ast.FunctionDef) and method.name == "__post_init__":
                    found += [f"{path.name}: {ast.unparse(test)}" for test in ast.walk(method)
                              if isinstance(test, ast.Compare) and is_range_check(test, documented)]
    assert found == RANGE_CHECKS


def is_range_check(test: ast.Compare, documented: set[str]) -> bool:
    """Whether a documented field alone is compared with numbers."""
    parts = [test.left, *test.comparators]
    fields = [part.attr for part in parts if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name)
              and part.value.id == "self"]
    numbers = [part for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, int | float)
               and not isinstance(part.value, bool)]
    return len(fields) == 1 and fields[0] in documented and len(numbers) == len(parts) - 1


def test_features_have_the_same_folder_on_each_floor() -> None:
    """A feature of `policy` is a folder of the same name in the pipeline, where resilience is `attempts`. Jobs, the fleet,
    findings, credentials, the embedded engine and what limits engines have no part in the path of one request, and the
    scopes of keys are checked before it begins. What is passed through has no policy of its own. Speculation is
    chosen inside an upstream."""
    folders = {floor: {path.name for path in (ROOT / "src/stayfast" / floor).iterdir() if (path / "__init__.py").exists()}
               for floor in ("policy", "pipeline")}
    features = {"admission", "routing", "cache", "prompt_cache", "context", "tiers", "classify", "warm",
                "batching"}
    others = {"jobs", "fleet", "findings", "credentials", "keys", "engines", "speculation"}
    assert folders["policy"] - others == features | {"resilience"}
    assert folders["pipeline"] == features | {"attempts", "stages", "timing", "passthrough", "hooks"}
