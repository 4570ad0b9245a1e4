"""The three lists, as text."""

import re
from collections.abc import Iterator

from stayfast.settings.litellm_import.ledger import ImportVerdict, Mark, SourceValue, ValueLedger

_NEEDED = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")  # without a default
_TITLES = {ImportVerdict.TAKEN: "taken", ImportVerdict.DIFFERENT: "taken differently", ImportVerdict.NOT_TAKEN: "not taken"}


def count_verdicts(ledger: ValueLedger) -> dict[ImportVerdict, int]:
    """How many values are in each list."""
    counts = dict.fromkeys(ImportVerdict, 0)
    for value in ledger.values:
        counts[ledger.mark_of(value).verdict] += 1
    return counts


def format_lists(ledger: ValueLedger) -> str:
    """A line for each setting, or section, of the source: its line, and what became of it. Values are never shown."""
    lines: dict[ImportVerdict, list[str]] = {verdict: [] for verdict in ImportVerdict}
    for group in ledger.groups():
        n = len(group.values)
        many = f" ({n} values)" if n > 1 else ""
        lines[group.mark.verdict].append(_line(group.root, group.mark, many))
    counts = count_verdicts(ledger)
    return "\n".join(line for verdict in ImportVerdict for line in _list(verdict, counts[verdict], lines[verdict])) + "\n"


def format_values(ledger: ValueLedger) -> str:
    """The same with a line for every single value."""
    lines: dict[ImportVerdict, list[str]] = {verdict: [] for verdict in ImportVerdict}
    for value in ledger.values:
        mark = ledger.mark_of(value)
        lines[mark.verdict].append(_line(value, mark, ""))
    return "\n".join(line for verdict, listed in lines.items() for line in _list(verdict, len(listed), listed)) + "\n"


def format_variables(text: str) -> str:
    """The variables that a settings file needs; empty if there are none."""
    names = sorted({name for line in text.splitlines() if not line.lstrip().startswith("#")
                    for name in _NEEDED.findall(line.partition("  # ")[0].replace("$${", ""))})
    return f"set before the start: {', '.join(names)}\n" if names else ""


def _list(verdict: ImportVerdict, n: int, lines: list[str]) -> Iterator[str]:
    yield f"{_TITLES[verdict]}: {n} {'value' if n == 1 else 'values'}"
    yield from lines


def _line(value: SourceValue, mark: Mark, many: str) -> str:
    text = "; ".join(part for part in (f"becomes {mark.becomes}" if mark.becomes else "", mark.why) if part)
    name = value.name or "the file"
    return f"  {value.location.source}:{value.location.line}: {name}{many}: {text}"
