"""Where two halves of a text meet, so that a reader sees one.

The second half is asked for with the first as its beginning, without the blanks that end it: providers refuse them there,
and most models' tokens hold the blank before a word. So of what comes back:

    blanks first    those that were said already are left out, the others stay
    no blanks       what follows the blanks that were said already

Everything else is given on as it comes: whoever is asked has said (`continues`) that it goes on exactly. A repeat is not
looked for, since code, tables and lists say the same lines again and again: any rule that leaves out what an upstream says
twice loses what a text says twice.
When wrong: an upstream that says the first half once more before it goes on is heard twice.
"""


class Seam:
    """The second half of one text. One task owns it."""

    __slots__ = ("_blanks", "_held", "_is_over", "prefix")

    def __init__(self, said: str) -> None:
        self.prefix = said.rstrip()  # what is asked to be continued
        self._blanks = said[len(self.prefix):]
        self._held = ""
        self._is_over = not self._blanks

    def take(self, text: str, *, is_last: bool = False) -> str:
        """More of the second half came; returns what the reader gets of it now. `is_last`: nothing may be held back."""
        if self._is_over:
            return text
        self._held += text
        body = self._held.lstrip()
        if not body and not is_last:
            return ""
        self._is_over = True
        blanks = self._held[: len(self._held) - len(body)]
        return (blanks[len(self._blanks):] if blanks.startswith(self._blanks) else "") + body

    def __repr__(self) -> str:
        return f"<Seam after {len(self.prefix)} characters, {'over' if self._is_over else 'open'}>"
