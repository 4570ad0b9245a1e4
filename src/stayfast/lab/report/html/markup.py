"""HTML and SVG with all text escaped, except `Markup`, which only this module makes.

Names of targets, models, errors and stages are untrusted text, and a report is opened in a browser.
"""

import json
import re
from collections.abc import Iterable
from html import escape
from typing import Final, TypeAlias

Child: TypeAlias = str | Iterable[str] | None
_VOID: Final = frozenset({"meta", "br", "hr", "rect", "line", "path", "circle"})
# Not allowed in HTML (controls, lone surrogates, non-characters), or a change of the text's direction.
_UNFIT: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff\u202a-\u202e\u2066-\u2069]")


class Markup(str):
    """Text that is not escaped again."""

    __slots__ = ()


def tag(name: str, /, *children: Child, **attributes: str | float | None) -> Markup:
    """One element. `cls` is class, `text_anchor` text-anchor. Floats are rounded to one decimal; None is left out."""
    given = "".join(f' {"class" if key == "cls" else key.replace("_", "-")}="{_render_value(value)}"'
                    for key, value in attributes.items() if value is not None)
    if name in _VOID and not children:
        return Markup(f"<{name}{given}/>")
    return Markup(f"<{name}{given}>{join(*children)}</{name}>")


def join(*children: Child) -> Markup:
    return Markup("".join(_render(child) for child in children))


def json_data(value: object) -> Markup:
    """JSON for the page's script, in an element that browsers do not run; ASCII only. Raises ValueError on NaN."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    safe = text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
    return Markup(f'<script type="application/json">{safe}</script>')


def replace_unfit(text: str) -> str:
    """Replace characters that a page may not hold."""
    return _UNFIT.sub("\ufffd", text)


def format_number(value: float) -> str:
    """A coordinate with at most one decimal."""
    return f"{value:.1f}".removesuffix(".0")


def _render(child: Child) -> str:
    if child is None:
        return ""
    if isinstance(child, Markup):
        return child
    if isinstance(child, str):
        return escape(replace_unfit(child), quote=True)
    return "".join(_render(inner) for inner in child)


def _render_value(value: str | float) -> str:
    return escape(replace_unfit(value), quote=True) if isinstance(value, str) else format_number(value)
