"""One summary of two that follow each other, and a summary of at most so many tokens.

Problem: a model that summarizes its own summaries loses a little each time. Rule: each turn is summarized once. The summary
of new turns is joined to the one before by rule, without a model:

    pinned, ids   both, each once. Pinned clauses are never dropped
    facts         both; a fact replaces an earlier one with the same key (the text before " = ")
    status        both; a step replaces an earlier one with the same text
    narrative     both, one after the other

A summary that is too long loses its oldest lines: of the narrative, then steps that are done, facts, other steps, ids.
Source: own rule.
When wrong: two facts with the same key may be about two things; two texts for the same thing are both carried on.
"""

from collections.abc import Callable, Iterator, Sequence

from msgspec.structs import replace

from stayfast.core.context import Summary, SummaryItem


def merge_summaries(older: Summary, newer: Summary, digest: str) -> Summary:
    """The summary of all turns of both. digest: of these turns."""
    return Summary(
        pinned=_unite(older.pinned, newer.pinned), facts=_replace_items(older.facts, newer.facts, _key_of),
        ids=_unite(older.ids, newer.ids), status=_replace_items(older.status, newer.status, _text_of),
        narrative="\n".join(text for text in (older.narrative, newer.narrative) if text),
        covers=(older.covers[0], newer.covers[1]), digest=digest, made_by=newer.made_by)


def limit_summary(summary: Summary, most: int, count: Callable[[Summary], int]) -> Summary | None:
    """The summary without its oldest lines, so that `count` is at most `most`; None if its pinned clauses are longer."""
    if count(summary) <= most:
        return summary
    shorter = list(_shorten(summary))
    low, high = 0, len(shorter)  # the first that fits, as each is shorter than the one before
    while low < high:
        middle = (low + high) // 2
        if count(shorter[middle]) <= most:
            high = middle
        else:
            low = middle + 1
    return shorter[low] if low < len(shorter) else None


def _shorten(summary: Summary) -> Iterator[Summary]:
    """The summary with one line less each time."""
    lines = summary.narrative.split("\n") if summary.narrative else []
    for n in range(1, len(lines) + 1):
        yield replace(summary, narrative="\n".join(lines[n:]))
    bare = replace(summary, narrative="")
    while any(item.state == "done" for item in bare.status):
        oldest = next(n for n, item in enumerate(bare.status) if item.state == "done")
        bare = replace(bare, status=(*bare.status[:oldest], *bare.status[oldest + 1:]))
        yield bare
    for n in range(1, len(bare.facts) + 1):
        yield replace(bare, facts=bare.facts[n:])
    bare = replace(bare, facts=())
    for n in range(1, len(bare.status) + 1):
        yield replace(bare, status=bare.status[n:])
    bare = replace(bare, status=())
    for n in range(1, len(bare.ids) + 1):
        yield replace(bare, ids=bare.ids[n:])


def _unite(older: Sequence[str], newer: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*older, *newer)))


def _replace_items(older: Sequence[SummaryItem], newer: Sequence[SummaryItem], key_of: Callable[[SummaryItem], str]
                   ) -> tuple[SummaryItem, ...]:
    again = {key_of(item) for item in newer}
    return (*(item for item in older if key_of(item) not in again), *newer)


def _key_of(fact: SummaryItem) -> str:
    """The text before " = "; the whole text without one."""
    return fact.text.partition(" = ")[0].strip().lower()


def _text_of(step: SummaryItem) -> str:
    return step.text.strip().lower()
