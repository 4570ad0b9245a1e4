"""The project's docs, split into passages, and the sentences to quote."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MAX_PASSAGE_CHARS = 900
MAX_QUOTE_CHARS = 320
STOP_WORDS = frozenset(re.findall(r"\w+", """
    a about after all an and any are as at be before by can could do does for from get has have how i if in is it its me my
    of on one or our should so some that the their them then there they this to was we what when where which who why will
    with would you your stayfast"""))
_HEADING = re.compile(r"^(#{1,6}) (.+)$")
_PICTURE = re.compile(r"!\[[^\]]*\]\([^)]*\)")
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z`*\"(])")
_WORD = re.compile(r"[a-z0-9]+")
_STEM_CHARS = 5  # "hedging", "hedged" and "hedges" are one word


@dataclass(frozen=True, slots=True)
class Passage:
    """A piece of a page. `heading`: with its parent headings; `text`: without links and pictures, code indented."""

    source: str  # "docs/concepts/hedging.md#when-it-is-sent"
    heading: str
    text: str

    def quote(self, question: str) -> str:
        """The sentence with most words of the question, and the next one if there is room."""
        wanted = stems(question)
        sentences = list(_sentences(self.text)) or [self.text]
        best = max(range(len(sentences)), key=lambda n: len(wanted & stems(sentences[n])))
        quote = sentences[best]
        for more in sentences[best + 1:best + 2]:
            if len(quote) + len(more) < MAX_QUOTE_CHARS:
                quote = f"{quote} {more}"
        return quote if len(quote) <= MAX_QUOTE_CHARS else f"{quote[:MAX_QUOTE_CHARS].rpartition(' ')[0]} ..."


def load_passages(root: Path) -> list[Passage]:
    """The passages of the README and of all pages in `docs`, in order."""
    pages = [root / "README.md", *sorted((root / "docs").rglob("*.md"))]
    return [passage for page in pages if page.exists() for passage in _split_page(page, str(page.relative_to(root)))]


def load_changes(root: Path) -> list[Passage]:
    """The entries of the change log."""
    page = root / "CHANGELOG.md"
    if not page.exists():
        return []
    entries = re.split(r"^- ", page.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    texts = [_LINK.sub(r"\1", " ".join(entry.partition("\n#")[0].split())) for entry in entries]
    return [Passage("CHANGELOG.md", "Changelog", text) for text in texts]


def stems(text: str) -> set[str]:
    """The words except stop words, cut to stems."""
    return {word[:_STEM_CHARS] for word in _WORD.findall(text.lower()) if word not in STOP_WORDS}


def _split_page(page: Path, name: str) -> Iterator[Passage]:
    heads: list[str] = []
    lines: list[str] = []
    in_code = False
    text = _PICTURE.sub("", page.read_text(encoding="utf-8"))
    for line in _LINK.sub(r"\1", text).splitlines():
        if line.startswith("```"):
            in_code = not in_code
        elif in_code:
            lines.append(f"    {line}")
        elif heading := _HEADING.match(line):
            yield from _split_section(name, heads, lines)
            heads, lines = [*heads[:len(heading[1]) - 1], heading[2]], []
        else:
            lines.append(line)
    yield from _split_section(name, heads, lines)


def _split_section(name: str, heads: list[str], lines: list[str]) -> Iterator[Passage]:
    """The lines of one section, in pieces of limited length."""
    anchor = re.sub(r"[^\w\- ]", "", heads[-1].lower()).replace(" ", "-") if len(heads) > 1 else ""
    source = f"{name}#{anchor}" if anchor else name
    piece = ""
    for line in lines:
        if piece and len(piece) + len(line) > MAX_PASSAGE_CHARS and (not line or line.startswith(("|", "- "))):
            yield Passage(source, " > ".join(heads), piece.strip("\n"))
            piece = ""
        piece += f"{line}\n"
    if piece.strip():
        yield Passage(source, " > ".join(heads), piece.strip("\n"))


def _sentences(text: str) -> Iterator[str]:
    """The sentences of its prose and the rows of its tables; no code."""
    prose = ""
    for line in [*text.splitlines(), ""]:
        if line.startswith("|"):
            cells = [cell.strip() for cell in line.strip("| ").split(" | ")]
            if not set(line) <= set("|-: "):
                yield ": ".join(cell for cell in cells if cell)
        elif line.strip() and not line.startswith(("    ", "- ")):
            prose += f" {line.strip()}"
            continue
        if prose:
            yield from _SENTENCE.split(prose.strip())
        prose = line[2:] if line.startswith("- ") else ""
