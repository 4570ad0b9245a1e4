"""Text of about so many tokens, from numbers alone: the same on every machine, for ever, and no download.

The words are short and frequent, so that with the blank before it each is one token for the tokenizers in use: a prompt of
n words is n tokens to within a few per cent, beside what the chat template adds.
"""

from random import Random
from typing import Final

_TEXT: Final = """
able about above across action after again age agree air allow almost alone along also always among animal answer appear
area army arrive art ask baby back bad balance ball bank base bear beat beauty become before begin behind believe best
better between big bird black blood blue board boat body book born both bottom box boy branch break bridge bright bring
brother brown build burn business busy call camp car care carry case cat catch cause center certain chair chance change
check child choose church circle city claim class clean clear climb clock close cloud coast coat cold color come common
company complete contain control cook cool copy corn corner correct cost cotton count country couple course cover cross
crowd cry current cut dance dark day dead deal dear death decide deep degree depend desert design desk detail develop
differ direct discuss distant divide doctor dog dollar door double down draw dream dress drink drive drop dry duck during
each early earth ease east eat edge effect egg eight either else end enemy energy engine enough enter equal even evening
event ever every exact example except excite exercise expect experience experiment eye face fact fair fall family famous
farm fast father favor fear feed feel feet field fight figure fill final find fine finger finish fire first fish fit five
flat floor flow flower fly follow food foot force forest form
"""
WORDS: Final = tuple(_TEXT.split())
_N: Final = len(WORDS)
_N_BOOK: Final = 40_000

# One question in several wordings; the four words stand for its subject.
WORDINGS: Final = (
    "How do I {} the {} of a {} {}?",
    "What is the best way to {} the {} of a {} {}?",
    "Please tell me how to {} the {} of a {} {}.",
    "I would like to {} the {} of a {} {}; how is that done?",
    "Can you explain how one can {} the {} of a {} {}?",
)
_N_WORDED: Final = 16  # words of the longest


class Book:
    """A long text to cut prompts from. Built once a run: cutting is a copy, whatever the length."""

    def __init__(self, seed: int) -> None:
        rng = Random(seed)
        words = [WORDS[rng.randrange(_N)] for _ in range(_N_BOOK)]
        self._text = " ".join(words)
        self._starts = [0]
        for word in words:
            self._starts.append(self._starts[-1] + len(word) + 1)
        self._mix = rng.randrange(_N**4)

    def prompt(self, number: int, n_tokens: int, wording: int = 0) -> str:
        """A prompt of about `n_tokens` tokens. Different numbers differ from their first words on, whatever the length
        from four words; different wordings of one number ask for the same."""
        subject = self._subject(number)
        question = WORDINGS[wording % len(WORDINGS)].format(*subject) if n_tokens >= _N_WORDED else " ".join(
            subject[:n_tokens])
        n_left = n_tokens - question.count(" ") - 1
        return f"{question} {self.passage(number, n_left)}" if n_left > 0 else question

    def passage(self, number: int, n_words: int) -> str:
        """So many words; a number's passages begin alike."""
        first = (number * 7919) % _N_BOOK
        parts = []
        while n_words > 0:
            last = min(_N_BOOK, first + n_words)
            parts.append(self._text[self._starts[first] : self._starts[last] - 1])
            n_words -= last - first
            first = 0
        return " ".join(parts)

    def _subject(self, number: int) -> tuple[str, ...]:
        """Four words, different for the first `len(WORDS)**4` (billions of) numbers: the factor is coprime to that."""
        rest = (number * 2_654_435_761 + self._mix) % _N**4
        found = []
        for _ in range(4):
            rest, digit = divmod(rest, _N)
            found.append(WORDS[digit])
        return tuple(found)
