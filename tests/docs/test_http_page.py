"""docs/reference/http.md names every error code, status and path that clients can meet, and none that they cannot."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from stayfast.core.errors import Fault
from stayfast.server.http_request import _FORWARDED, _SDK_TIMEOUTS
from stayfast.server.openapi import document
from stayfast.server.paths import _OTHER_PATHS, LLM_PATHS
from stayfast.wire.client_headers import TIMEOUT_HEADERS
from stayfast.wire.errors import NEVER_RETRY

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reference" / "http.md").read_text(encoding="utf-8")
CODE_ROW = re.compile(r"^\| `([a-z_]+)` \| ", re.MULTILINE)
STATUS_ROW = re.compile(r"^\| (\d{3}) \|", re.MULTILINE)
WORD = re.compile(r"[a-z]+(_[a-z]+)*")


def words_in(value: ast.expr) -> Iterator[str]:
    """The texts that an expression may come to, as far as they are written out; parts of f-strings and keys are none."""
    is_look_up = isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr == "get"
    if is_look_up or isinstance(value, ast.JoinedStr | ast.Compare | ast.Subscript):
        return
    if isinstance(value, ast.Constant) and isinstance(value.value, str) and WORD.fullmatch(value.value):
        yield value.value
    for child in ast.iter_child_nodes(value):
        if isinstance(child, ast.expr):
            yield from words_in(child)


def codes_in(tree: ast.Module) -> Iterator[str]:
    """What is given as `code=...`, or assigned to a `code`; limits of deadlines, whose codes are made of their names."""
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword | ast.Assign) and "code" in names_set_by(node):
            yield from words_in(node.value)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "arm":
            yield from (f"{limit}_exceeded" for limit in words_in(node.args[0]))
        elif (isinstance(node, ast.Assign) and not isinstance(node.value, ast.Call)
              and any(name and name.endswith("_limit") for name in names_set_by(node))):
            yield from (f"{limit}_exceeded" for limit in words_in(node.value))


def names_set_by(node: ast.keyword | ast.Assign) -> list[str | None]:
    """What gets a value: an argument, variables, attributes."""
    if isinstance(node, ast.keyword):
        return [node.arg]
    return [target.id if isinstance(target, ast.Name) else getattr(target, "attr", None) for target in node.targets]


def test_every_code_has_a_row() -> None:
    """A new `code=` in the source fails here until the page explains it, and so does a row without a code."""
    real = {f"upstream_{fault.value}" for fault in Fault} | NEVER_RETRY | {"client_left"}
    source = ROOT / "src" / "stayfast"
    for path in source.rglob("*.py"):
        if path.is_relative_to(source / "lab" / "sim_server"):  # not the gateway's endpoints: docs/simulator.md
            continue
        real |= set(codes_in(ast.parse(path.read_text(encoding="utf-8"))))
    rows = CODE_ROW.findall(PAGE.split("### Codes")[1].split("## ")[0])
    assert len(rows) == len(set(rows))
    assert set(rows) == real


def test_codes_are_found() -> None:
    """The search sees keywords, class attributes, alternatives and limits, and no part of a text."""
    source = """
x(code="a_b")
class E:
    code = "c_d"
e.code = w or next(s, "e_f")
watch.arm("g_s", 1)
self._bound_limit = "k_s"
x(code=f"h_{i}")
code = fields.get("j")
"""
    assert set(codes_in(ast.parse(source))) == {"a_b", "c_d", "e_f", "g_s_exceeded", "k_s_exceeded"}


def test_every_described_status_has_a_row() -> None:
    """The statuses of /openapi.json, but 422, which stands for any other of an upstream's."""
    described = {status for methods in document("0")["paths"].values() for method, told in methods.items()
                 if method != "parameters" for status in told["responses"]}
    assert described - {"200", "422"} <= set(STATUS_ROW.findall(PAGE))


def test_every_path_and_header_is_named() -> None:
    """Endpoints, the headers that mean something and those that go on."""
    headers = [name.decode() for name in (*_FORWARDED, *TIMEOUT_HEADERS, *_SDK_TIMEOUTS)]
    shown = [path for path in (*LLM_PATHS, *_OTHER_PATHS) if not path.startswith(("/openai/", "/anthropic/"))]
    assert [name for name in (*shown, *headers) if f"`{name}`" not in PAGE] == []
