"""What may be left out of a prompt without a model noticing: equal paragraphs of instructions, and white space in JSON.

Problem: a paragraph that stands twice is paid for twice on every call, and pretty-printed JSON is a third white space.
Rule, only where a route's settings ask for it:

    drop_repeats   an instruction paragraph of at least `repeats.MIN_WORDS` words that equals an earlier one, white space
                   aside, is left out. A fenced block is one paragraph: nothing inside of it is touched
    minify_json    the result of a tool that is one JSON object or array loses its white space

Both are functions of the blocks up to the changed one only: a longer conversation begins with the same bytes as before, so
prefix caches stay warm. Words of users and of the model are never changed.
Source: what prompts repeat by copying is ours. When wrong: a model may weigh a rule more that stands twice; a tool may
return JSON whose white space means something.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import msgspec

from stayfast.core.setting import SettingDoc, check_bounds
from stayfast.policy.context.repeats import is_long_enough, normalise, split_paragraphs


@dataclass(frozen=True, slots=True)
class DietConfig:
    """What is left out of one route's prompts."""

    drop_repeats: Annotated[bool, SettingDoc(
        "Leave out paragraphs of instructions that equal an earlier one, white space aside.")] = False
    minify_json: Annotated[bool, SettingDoc("Leave out white space of tools' results that are JSON.")] = False

    def __post_init__(self) -> None:
        check_bounds(self)


@dataclass(frozen=True, slots=True)
class PromptsConfig:
    """System prompts by version (docs/prompts.md)."""

    track: Annotated[bool, SettingDoc(
        "Distinguish versions of system prompts, with the requests, tokens and cost of each.")] = True
    content: Annotated[bool, SettingDoc(
        "Show the text of system prompts, and of their changes, to admins. Otherwise sizes, positions and kinds.")] = False

    def __post_init__(self) -> None:
        check_bounds(self)


def make_repeat_dropper() -> Callable[[str], str]:
    """A function for the instruction texts of one prompt, in their order."""
    seen: set[str] = set()

    def drop(text: str) -> str:
        """The text without paragraphs that it, or an earlier text, has before; the same object if there are none."""
        pieces, at, is_changed = [], 0, False
        for part in split_paragraphs(text):
            key = normalise(part.text)
            if key in seen and is_long_enough(key):
                pieces.append(text[at:part.start])
                at, is_changed = part.end, True
            seen.add(key)
        if not is_changed:
            return text
        return _join([*pieces, text[at:]])

    return drop


def _join(pieces: list[str]) -> str:
    """The pieces without the blank lines that stood around what was left out."""
    whole = pieces[0]
    for piece in pieces[1:]:
        after = piece.lstrip("\n") if piece.strip() else ""
        before = whole.rstrip()
        whole = f"{before}\n\n{after}" if before and after else f"{before}{after or piece}"
    return whole


def minify_json(text: str) -> str:
    """One JSON object or array without white space between its tokens, whose spelling stays; other texts unchanged."""
    begin = text.lstrip()[:1]
    if begin not in ("{", "["):
        return text
    try:
        small = msgspec.json.format(text.encode(), indent=-1).decode()
    except (msgspec.DecodeError, ValueError, RecursionError):
        return text
    return small if len(small) < len(text) else text
