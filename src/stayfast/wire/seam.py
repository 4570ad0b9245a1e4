"""Where two halves of a text meet, so that a reader sees one.

The second half is asked for with the first as its beginning, without the blanks that end it: providers refuse them there,
and most models' tokens hold the blank before a word. So of what comes back:

    exact        the rest of the text, blanks first: those that were said already are left out, the others stay
    no blanks    what follows the blanks that were said already
    a repeat     the last characters of the first half once more, or all of it: left out

A repeat is at least MIN_REPEAT characters that are the end of the first half, and not a pattern (a rule of dashes, rows of
a table, a laugh): shorter ones and patterns are how texts go on. As long as what came may still become a repeat it is held
back, which in running text is a word or two.
When wrong: a text that says a line of MIN_REPEAT characters twice in a row, cut off exactly between the two, loses one.
"""

MIN_REPEAT = 32


class Seam:
    """The second half of one text. One task owns it."""

    __slots__ = ("_blanks", "_held", "_is_over", "_may_repeat", "prefix")

    def __init__(self, said: str) -> None:
        self.prefix = said.rstrip()  # what is asked to be continued
        self._blanks = said[len(self.prefix):]
        self._held = ""
        self._may_repeat = len(self.prefix) >= MIN_REPEAT
        self._is_over = False

    def take(self, text: str, *, is_last: bool = False) -> str:
        """More of the second half came; returns what the reader gets of it now. `is_last`: nothing may be held back."""
        if self._is_over:
            return text
        self._held += text
        body = self._held.lstrip()
        if not is_last and (not body or self._is_repeating(body)):
            return ""
        if self._may_repeat:
            self._may_repeat = False
            n_repeated = repeated(self.prefix, body)
            if n_repeated:
                self._held = body[n_repeated:]
                return self.take("", is_last=is_last)
        self._is_over = True
        blanks = self._held[: len(self._held) - len(body)]
        if self._blanks:
            blanks = blanks[len(self._blanks):] if blanks.startswith(self._blanks) else ""
        return blanks + body

    def _is_repeating(self, body: str) -> bool:
        """Whether it may still become a repeat: it stands in the first half, and not at its end."""
        if not self._may_repeat:
            return False
        at = self.prefix.find(body)  # the first place has the most left behind it
        return at >= 0 and at + len(body) < len(self.prefix) and len(self.prefix) - at >= MIN_REPEAT

    def __repr__(self) -> str:
        return f"<Seam after {len(self.prefix)} characters, {'over' if self._is_over else 'open'}>"


def repeated(prefix: str, body: str) -> int:
    """How many characters at the start of `body` repeat the end of `prefix`; 0 where they are too few or a pattern."""
    for n in range(min(len(prefix), len(body)), MIN_REPEAT - 1, -1):
        if prefix.endswith(body[:n]):
            return 0 if _is_pattern(body[:n]) else n
    return 0


def _is_pattern(text: str) -> bool:
    """Whether it says the same at least twice over."""
    return any(text.startswith(text[period:]) for period in range(1, len(text) // 2 + 1))
