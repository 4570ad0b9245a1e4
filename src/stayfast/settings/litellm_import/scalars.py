"""Values of a LiteLLM file: numbers, switches, references and secrets.

`os.environ/NAME` is a reference to a variable and becomes `${NAME}`. A secret that is written out becomes a reference to a
variable with a new name, and the secret itself is never part of a result.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import chain, count
from math import isfinite

from stayfast.settings.litellm_import.ledger import SourceNode

_REFERENCE = re.compile(r"os\.environ/([A-Za-z_][A-Za-z0-9_]*)")
_TRUE, _FALSE = frozenset({"true", "yes", "on"}), frozenset({"false", "no", "off"})
_NUMBER = re.compile(r"[-+]?(\d[\d_]*(\.[\d_]*)?|\.\d+)([eE][-+]?\d+)?")


def variable_of(text: str) -> str | None:
    """NAME of os.environ/NAME."""
    found = _REFERENCE.fullmatch(text.strip())
    return found.group(1) if found is not None else None


def escape_references(text: str) -> str:
    """A text that a settings file takes literally, although it has `${`."""
    return text.replace("${", "$${")


def as_reference(text: str) -> str:
    """The text for a settings file: a reference, or the text itself, escaped."""
    name = variable_of(text)
    return f"${{{name}}}" if name is not None else escape_references(text)


def number_of(node: SourceNode | None) -> float | None:
    """A finite number that is written out; None for anything else."""
    text = node.text if node is not None else None
    if text is None or not _NUMBER.fullmatch(text.strip()):
        return None
    value = float(text.replace("_", ""))
    return value if isfinite(value) else None


def switch_of(node: SourceNode | None) -> bool | None:
    """True or False; None for anything else."""
    word = (node.text or "").strip().lower() if node is not None else ""
    return True if word in _TRUE else False if word in _FALSE else None


def read_switch(node: SourceNode | None) -> bool | None:
    """True or False; None for no node, and for anything else, which is marked as not taken."""
    value = switch_of(node)
    if node is not None and value is None and not node.is_null:
        node.refuse("no true or false that is written out")
    return value


def is_off(node: SourceNode) -> bool:
    """Whether the value enables nothing: null, false, or empty."""
    if node.is_null or switch_of(node) is False or node.text == "":
        return True
    return (node.is_mapping and not node.entries()) or (node.is_list and not node.items())


def names_of(node: SourceNode) -> list[SourceNode]:
    """The items of a list of words; a single word is a list of one."""
    return node.items() if node.is_list else [node] if node.text is not None else []


def tidy(value: float) -> float:
    """The number with at most 12 digits, whole if it is."""
    rounded = float(f"{value:.12g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 1e15 else rounded


@dataclass(slots=True)
class SecretNames:
    """The variables that replace secrets: one name for one secret, none that the file uses itself. `used`: names in use."""

    used: set[str] = field(default_factory=set)
    _names: dict[str, str] = field(default_factory=dict, repr=False)

    def name_for(self, secret: str, wanted: str) -> str:
        """A variable's name for a secret that is written out in the source."""
        known = self._names.get(secret)
        if known is not None:
            return known
        base = re.sub(r"[^A-Z0-9]+", "_", wanted.upper()).strip("_") or "SECRET"
        base = f"_{base}" if base[0].isdigit() else base
        name = unused_name(base, "_", self.used)
        self.used.add(name)
        self._names[secret] = name
        return name

    def take_secret(self, node: SourceNode, wanted: str, becomes: str) -> str:
        """The reference for a secret; marks the node. `wanted`: the name of the variable if there is none yet."""
        text = node.text or ""
        name = variable_of(text)
        if name is not None:
            node.take(becomes)
            return f"${{{name}}}"
        name = self.name_for(text, wanted)
        node.differ(becomes, f"a secret in clear text: set the variable {name} to it")
        return f"${{{name}}}"


def unused_name(base: str, joint: str, used: Collection[str]) -> str:
    """The name, with a number from 2 if it is in use."""
    return next(name for name in chain([base], (f"{base}{joint}{n}" for n in count(2))) if name not in used)


def names_in(text: str) -> set[str]:
    """All variables that a source refers to."""
    return set(_REFERENCE.findall(text))


def bounded(node: SourceNode | None, low: float, high: float, *, factor: float = 1.0, more: float = 0.0) -> float | None:
    """A number of the source times `factor` plus `more`, if that is from low to high. Else the node is marked as not taken.
    """
    if node is None or node.is_null:
        return None
    value = number_of(node)
    if value is None:
        node.refuse("no number that is written out, which the conversion needs")
        return None
    made = tidy(value * factor + more)
    if not low <= made <= high:
        node.refuse(f"becomes {made:g}, which is not from {low:g} to {high:g}")
        return None
    return made
