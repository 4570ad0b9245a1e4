"""HTML and SVG that cannot be broken out of: every string is escaped unless it is `Markup`, which only `tag` makes.

Target names, model names, errors and stage names are another's text, and a report is opened in a browser.
"""

import json
import re
from collections.abc import Iterable
from html import escape
from typing import Final, TypeAlias

Child: TypeAlias = str | Iterable[str] | None
_VOID: Final = frozenset({"meta", "br", "hr", "rect", "line", "path", "circle"})
# What HTML may not hold (controls, lone surrogates, non-characters), and what would turn the direction of the page's text.
_UNFIT: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff\u202a-\u202e\u2066-\u2069]")


class Markup(str):
    """Text that is markup already."""

    __slots__ = ()


def tag(name: str, /, *children: Child, **attributes: str | float | None) -> Markup:
    """One element. `cls` is class, `text_anchor` text-anchor; a float has at most one decimal; None is left out."""
    given = "".join(f' {"class" if key == "cls" else key.replace("_", "-")}="{_value(value)}"'
                    for key, value in attributes.items() if value is not None)
    if name in _VOID and not children:
        return Markup(f"<{name}{given}/>")
    return Markup(f"<{name}{given}>{join(*children)}</{name}>")


def join(*children: Child) -> Markup:
    return Markup("".join(_inner(child) for child in children))


def data(value: object) -> Markup:
    """JSON for the page's own script, in an element that a browser does not run; ASCII only. Raises ValueError on NaN."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    safe = text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
    return Markup(f'<script type="application/json">{safe}</script>')


def clean(text: str) -> str:
    """Without what a page may not hold."""
    return _UNFIT.sub("\ufffd", text)


def number(value: float) -> str:
    """A coordinate: one decimal, and none where it is 0."""
    return f"{value:.1f}".removesuffix(".0")


def _inner(child: Child) -> str:
    if child is None:
        return ""
    if isinstance(child, Markup):
        return child
    if isinstance(child, str):
        return escape(clean(child), quote=True)
    return "".join(_inner(inner) for inner in child)


def _value(value: str | float) -> str:
    return escape(clean(value), quote=True) if isinstance(value, str) else number(value)
