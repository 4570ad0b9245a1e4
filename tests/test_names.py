"""Names that a reader can guess and grep: unique classes, no pronouns, a test file for each pure module, helpers in rigs."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# Parts of identifiers that are pronouns, participles or verbs of speech: they name nothing that a reader could search for.
DENIED = {
    "ask", "asked", "asks", "begun", "beside", "came", "else", "hear", "heard", "its", "keeper", "kept",
    "look", "looked", "looks", "met", "nobody", "said", "saw", "say", "says", "somebody", "tell", "tells",
    "those", "told", "who", "whoever", "whom", "whose",
}
# A test's name is a phrase, in which fewer of them hurt: the pronouns that hide the subject, and verbs of speech.
DENIED_IN_TESTS = DENIED - {"came", "else", "its", "look", "looked", "looks", "met", "saw", "those"}
# Names given by an interface, by the module's name: fields of the simulator's JSON, and of answers in the stores of users.
GIVEN: dict[str, frozenset[str]] = {
    "recording": frozenset({"asked_at"}), "provider": frozenset({"n_asked"}), "provider_state": frozenset({"n_asked"}),
    "base": frozenset({"kept_at"}),
}


def sources(folder: str) -> list[Path]:
    """The Python files of one tree; installed packages of test fixtures aside."""
    return [path for path in sorted((ROOT / folder).rglob("*.py")) if "node_modules" not in path.parts]


@cache
def tree_of(path: Path) -> ast.Module:
    """A parsed file."""
    return ast.parse(path.read_text(encoding="utf-8"))


def words_of(name: str) -> set[str]:
    """The parts of an identifier in lower case: `FirstToken_s` has first, token and s."""
    return {part.lower() for part in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)}


def names_made_by(tree: ast.Module) -> Iterator[str]:
    """Every identifier that a file defines: classes, functions, parameters, variables, attributes, aliases."""
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.arg(arg=name):
                yield name
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name
            case ast.alias(asname=str(name)) | ast.MatchAs(name=str(name)) | ast.ExceptHandler(name=str(name)):
                yield name


def test_public_class_names_of_src_are_unique() -> None:
    """One name means one class, so that a search for it ends at its definition."""
    homes = defaultdict(list)
    for path in sources("src"):
        for node in tree_of(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(str(path.relative_to(ROOT / "src/stayfast")))
    assert {name: paths for name, paths in homes.items() if len(paths) > 1} == {}


def test_identifiers_of_src_contain_no_denied_word() -> None:
    """No identifier has a pronoun, a participle or a verb of speech as a part."""
    found = {str(path.relative_to(ROOT)): denied for path in sources("src")
             if (denied := sorted(name for name in set(names_made_by(tree_of(path)))
                                  if words_of(name) & DENIED and name not in GIVEN.get(path.stem, ())))}
    assert found == {}


def test_module_names_of_src_contain_no_denied_word() -> None:
    """The same for files and folders."""
    assert [str(path) for path in sources("src") if words_of(path.stem) & DENIED] == []


@pytest.mark.parametrize("name", ["_told", "AsOne_whose", "n_kept", "look_up"])
def test_denied_word_inside_an_identifier_is_found(name: str) -> None:
    """The check sees parts of identifiers, in snake case and in camel case."""
    tree = ast.parse(f"def outer({name}=1): pass")
    assert any(words_of(made) & DENIED for made in names_made_by(tree))


def test_names_of_tests_contain_no_denied_word() -> None:
    """A test is named for its unit, the condition and the result."""
    found = {str(path.relative_to(ROOT)): denied for path in sources("tests")
             if (denied := sorted(node.name for node in ast.walk(tree_of(path))
                                  if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
                                  and node.name.startswith("test_") and words_of(node.name) & DENIED_IN_TESTS))}
    assert found == {}


@pytest.mark.parametrize("floor", ["policy", "wire"])
def test_each_pure_module_has_a_test_file(floor: str) -> None:
    """`policy/admission/queue.py` is tested by `test_queue.py`; a module of a dialect's folder by the folder's name, too."""
    here = {path.stem for path in sources("tests")}
    missing = [str(path.relative_to(ROOT / "src/stayfast")) for path in sources(f"src/stayfast/{floor}")
               if path.stem != "__init__" and not {f"test_{path.stem}", f"test_{path.parent.name}_{path.stem}"} & here]
    assert missing == []


def test_tests_import_nothing_from_test_modules() -> None:
    """What several tests share is in a rig, so that a test file can be read, moved and deleted alone."""
    found = [f"{path.relative_to(ROOT)}: {node.module}" for path in sources("tests") for node in ast.walk(tree_of(path))
             if isinstance(node, ast.ImportFrom) and node.module and node.module.rpartition(".")[2].startswith("test_")]
    assert found == []
