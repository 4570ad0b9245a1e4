"""Full text search with SQLite, in memory. It takes a millisecond and blocks: a turn runs it in a thread."""

import sqlite3
from collections.abc import Sequence

from examples.support_bot.passages import STOP_WORDS, Passage, stems

_MAKE = "CREATE VIRTUAL TABLE passages USING fts5 (heading, text, tokenize = 'porter unicode61')"
_FIND = "SELECT rowid FROM passages WHERE passages MATCH ? ORDER BY bm25(passages, 4.0, 1.0) LIMIT ?"
_MAX_CANDIDATES = 50
MIN_SHARE = 0.5  # of the question's words; fewer may match by chance


class Words:
    """An index of passages. Any thread may search."""

    def __init__(self, passages: Sequence[Passage]) -> None:
        self.passages = passages
        self._database = sqlite3.connect(":memory:", check_same_thread=False)
        self._database.execute(_MAKE)
        self._database.executemany("INSERT INTO passages (rowid, heading, text) VALUES (?, ?, ?)",
                                   [(n, one.heading, one.text) for n, one in enumerate(passages)])

    @property
    def n_pages(self) -> int:
        """The number of pages."""
        return len({one.source.partition("#")[0] for one in self.passages})

    def find(self, question: str, at_most: int = 8, min_share: float = MIN_SHARE) -> list[Passage]:
        """Passages with at least this share of the question's words, the best first."""
        terms = "".join(letter if letter.isalnum() else " " for letter in question).lower().split()
        words = [f'"{word}"' for word in terms if word not in STOP_WORDS]
        if not words:
            return []
        near = (self.passages[n] for n, in self._database.execute(_FIND, (" OR ".join(words), _MAX_CANDIDATES)))
        question_stems = stems(question)
        min_common = min_share * len(question_stems)
        return [passage for passage in near
                if len(question_stems & stems(f"{passage.heading} {passage.text}")) >= min_common][:at_most]
