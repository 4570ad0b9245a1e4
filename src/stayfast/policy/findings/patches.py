"""A change of settings as YAML, to merge into a settings file."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from stayfast.core.findings import Confidence, SettingsChange

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_WORDS = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n"})  # of YAML 1.1, in lower case
PatchTree = Mapping[str, Any]  # of such mappings, texts, numbers, booleans, None, and lists of texts


def change_settings(effect: str, tree: PatchTree, confidence: Confidence = "estimated", *,
                    saves_s: float | None = None) -> SettingsChange:
    """A change with its patch. saves_s: predicted reduction of the p99, where one is known."""
    return SettingsChange(effect, write_patch(tree), confidence, saves_s)


def write_patch(tree: PatchTree) -> str:
    """The YAML of a nested mapping, two spaces a level. Names and texts are quoted where YAML needs it."""
    return "\n".join(_write_lines(tree, ""))


def _write_lines(tree: PatchTree, indent: str) -> Iterator[str]:
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield f"{indent}{_scalar(name)}:"
            yield from _write_lines(value, indent + "  ")
        else:
            yield f"{indent}{_scalar(name)}: {_scalar(value)}"


def _scalar(value: object) -> str:
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    if isinstance(value, float):
        return str(round(value)) if abs(value) >= 1000 else f"{value:.4g}"  # YAML 1.1 reads 2e+05 as a text
    return msgspec.json.encode(value).decode()
