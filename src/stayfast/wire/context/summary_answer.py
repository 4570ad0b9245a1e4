"""The sections of a summary as a small model writes them.

Models use code fences, other bullets, bold titles, "(turn 3)" for "[t3]", words of their own for a state, text before the
first section, or no sections at all. What stands in no section is narrative. A section PINNED of the model is dropped, as is
its reasoning in <think>. When wrong: a fact in two lines becomes two facts, which the checks then reject or accept.
"""

import re
from collections.abc import Sequence
from typing import Final

from stayfast.core.context import Summary, SummaryItem
from stayfast.wire.context.summary import FACTS, IDS, NARRATIVE, PINNED, STATES, STATUS

_THOUGHT: Final = re.compile(r"<think(?:ing)?>.*?(?:</think(?:ing)?>|\Z)", re.DOTALL | re.IGNORECASE)
_FENCE: Final = re.compile(r"^\s*(?:```\w*|~~~\w*|</?summary[^>]*>)\s*$", re.IGNORECASE)
_TITLE: Final = re.compile(
    r"^[\s#*_>\d.)]*(?P<name>PINNED(?:\s*\([^)]*\))?|FACTS|IDS|IDENTIFIERS|STATUS|NARRATIVE|SUMMARY)\s*[*_]*\s*(?P<colon>[:\uff1a]?)"
    r"[\s*_]*(?P<rest>.*)$", re.IGNORECASE)
_BULLET: Final = re.compile(r"^\s*(?:[-*\u2022\u2013+]|\d{1,2}[.)])\s+")
_LOOSE_TAG: Final = re.compile(r"\s*[\[(]\s*(?:from\s+)?(?:t|turn)s?\s*(\d{1,6})(?:\s*(?:[,;&\u2013-]|and|to)\s*(?:t|turn)?"
                               r"\s*\d{1,6})*\s*[\])][\s.]*\Z", re.IGNORECASE)
_STATE: Final = re.compile(
    r"^(?:\[[ x]\])?[\s*_`\[(]*(?:(?P<done>done|completed?|finished|fixed|resolved|succeeded|success(?:ful)?|✓|✔|✅)"
    r"|(?P<failed>failed|failure|error|✗|✘|❌)|(?P<open>open|pending|to ?-?do|in progress|waiting|blocked|ongoing|next))"
    r"[\s*_`\])]*[:\u2013\u2014=-]+[\s*_]*", re.IGNORECASE)
_NAMES: Final = {"FACTS": FACTS, "IDS": IDS, "IDENTIFIERS": IDS, "STATUS": STATUS, "NARRATIVE": NARRATIVE,
                 "SUMMARY": NARRATIVE}
_NOTHING: Final = frozenset(("none", "none.", "n/a", "-", "(none)", "nothing"))


def read_answer(answer: str, *, pinned: Sequence[str], covers: tuple[int, int], digest: str, made_by: str) -> Summary | None:
    """The summary that a model's answer makes with our own parts; None if the answer has no text."""
    sections: dict[str, list[str]] = {PINNED: [], FACTS: [], IDS: [], STATUS: [], NARRATIVE: []}
    current = NARRATIVE
    for line in _THOUGHT.sub("", answer).split("\n"):
        if not line.strip() or _FENCE.match(line):
            continue
        title, text = _TITLE.match(line), line
        if title is not None and (title["colon"] or not title["rest"]):
            current, text = _NAMES.get(title["name"].upper(), PINNED), title["rest"]
        if text.strip():
            sections[current].append(_BULLET.sub("", text).strip())
    items = {name: [item for item in found if item.lower() not in _NOTHING] for name, found in sections.items()}
    if not any(items[name] for name in (FACTS, IDS, STATUS, NARRATIVE)):
        return None
    return Summary(
        pinned=tuple(pinned), facts=tuple(_read_item(item) for item in items[FACTS]),
        ids=tuple(dict.fromkeys(_read_item(item).text for item in items[IDS])),
        status=tuple(_read_status(item) for item in items[STATUS]),
        narrative="\n".join(item for item in items[NARRATIVE] if item), covers=covers, digest=digest, made_by=made_by)


def _read_item(item: str) -> SummaryItem:
    found = _LOOSE_TAG.search(item)
    return SummaryItem(item[:found.start()].rstrip() if found else item, int(found[1]) if found else None)


def _read_status(item: str) -> SummaryItem:
    """A step with its state; open if the model names none."""
    read = _read_item(item)
    found = _STATE.match(read.text)
    if found is None:
        return SummaryItem(read.text, read.turn, "open")
    return SummaryItem(read.text[found.end():], read.turn, next(state for state in STATES if found[state]))
