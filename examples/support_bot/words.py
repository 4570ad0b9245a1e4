"""Search by words: SQLite's full text index, in memory. It takes a millisecond, and blocks: a turn gives it a thread."""

import sqlite3
from collections.abc import Sequence

from examples.support_bot.passages import STOP_WORDS, Passage, stems

_MAKE = "CREATE VIRTUAL TABLE passages USING fts5 (heading, text, tokenize = 'porter unicode61')"
_FIND = "SELECT rowid FROM passages WHERE passages MATCH ? ORDER BY bm25(passages, 4.0, 1.0) LIMIT ?"
_N_LOOKED_AT = 50
LEAST_SHARE = 0.5  # of the question's words: a passage that has one of four by chance does not speak of it


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
        """How many pages the passages are of."""
        return len({one.source.partition("#")[0] for one in self.passages})

    def find(self, question: str, at_most: int = 8, least_share: float = LEAST_SHARE) -> list[Passage]:
        """Passages with so many of the question's words, the best first; none where it is about other things."""
        asked = "".join(letter if letter.isalnum() else " " for letter in question).lower().split()
        words = [f'"{word}"' for word in asked if word not in STOP_WORDS]
        if not words:
            return []
        near = (self.passages[n] for n, in self._database.execute(_FIND, (" OR ".join(words), _N_LOOKED_AT)))
        wanted = stems(question)
        least = least_share * len(wanted)
        return [one for one in near if len(wanted & stems(f"{one.heading} {one.text}")) >= least][:at_most]
