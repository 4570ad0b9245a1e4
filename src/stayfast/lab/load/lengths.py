"""Lengths of prompts and answers in tokens, and text of a given length.

Lengths are constant, uniform, normal, lognormal, or a preset fitted to real traffic. Real lengths are lognormal with a
coefficient of variation near 1; a constant length hides the queueing of short prompts behind long ones. `conv` and `code`
are lognormal fits to Azure's public traces of 2023. Input and output are drawn independently, because their log correlation
there is 0.00 to 0.09. Wrong in the far tail: the traces stop at 14,050 and 7,437 input tokens, so the presets are cut there.

The text depends on numbers only and is the same on every machine. Its words are short and frequent: with the blank before
it, each is one token of common tokenizers, so a prompt of n words is n tokens within a few per cent, without the chat
template.
"""

from dataclasses import dataclass
from math import exp, inf, log
from random import Random
from typing import Final, Protocol

MAX_TOKENS = 10_000_000


class Length(Protocol):
    def draw(self, rng: Random) -> int:
        """A number of tokens, at least 1."""

    def __str__(self) -> str: ...


@dataclass(frozen=True, slots=True)
class ConstantLength:
    n_tokens: int

    def __post_init__(self) -> None:
        _check_range("a length", self.n_tokens, 1)

    def draw(self, rng: Random) -> int:
        return self.n_tokens

    def __str__(self) -> str:
        return f"{self.n_tokens} tokens"


@dataclass(frozen=True, slots=True)
class Uniform:
    """Uniform from `low` to `high`, both included."""

    low: int
    high: int

    def __post_init__(self) -> None:
        _check_range("uniform's low end", self.low, 1)
        _check_range("uniform's high end", self.high, self.low)

    def draw(self, rng: Random) -> int:
        return rng.randint(self.low, self.high)

    def __str__(self) -> str:
        return f"uniform {self.low} to {self.high} tokens"


@dataclass(frozen=True, slots=True)
class NormalLength:
    """Normal, and at least 1."""

    mean: float
    deviation: float

    def __post_init__(self) -> None:
        _check_range("normal's mean", self.mean, 1)
        _check_range("normal's deviation", self.deviation, 0)

    def draw(self, rng: Random) -> int:
        return max(1, round(rng.gauss(self.mean, self.deviation)))

    def __str__(self) -> str:
        return f"normal, mean {self.mean:g}, deviation {self.deviation:g} tokens"


@dataclass(frozen=True, slots=True)
class Lognormal:
    """exp(N(mu, sigma)), at most `most`."""

    mu: float
    sigma: float
    most: float = inf
    name: str = ""

    def __post_init__(self) -> None:
        if not (-1 <= self.mu <= 16 and 0 <= self.sigma <= 4):
            raise ValueError("a lognormal length needs mu -1 to 16 and sigma 0 to 4")

    def draw(self, rng: Random) -> int:
        return max(1, round(min(self.most, MAX_TOKENS, exp(rng.gauss(self.mu, self.sigma)))))

    def __str__(self) -> str:
        return f"{self.name or 'lognormal'}: median {exp(self.mu):.0f}, sigma {self.sigma:g} tokens"


CONV_INPUT: Final = Lognormal(6.63, 0.99, 14_050, "conv")
CONV_OUTPUT: Final = Lognormal(5.02, 0.86, 1_000, "conv")
CODE_INPUT: Final = Lognormal(7.00, 1.36, 7_437, "code")
CODE_OUTPUT: Final = Lognormal(2.79, 0.85, 1_899, "code")
_PRESETS: Final = {("conv", "input"): CONV_INPUT, ("conv", "output"): CONV_OUTPUT,
                   ("code", "input"): CODE_INPUT, ("code", "output"): CODE_OUTPUT}
_EXPECTED = "write N, uniform:LOW-HIGH, normal:MEAN,DEVIATION, lognormal:MEDIAN,SIGMA, conv or code"


def parse_length(text: str, side: str) -> Length:
    """Read a length. `side`: input or output; presets differ by it. Raises ValueError with the expected form."""
    preset = _PRESETS.get((text, side))
    if preset is not None:
        return preset
    kind, _, rest = text.partition(":")
    try:
        match kind:
            case "uniform":
                low, high = rest.split("-")
                return Uniform(int(low), int(high))
            case "normal":
                mean, deviation = rest.split(",")
                return NormalLength(float(mean), float(deviation))
            case "lognormal":
                median, sigma = map(float, rest.split(","))
                _check_range("lognormal's median", median, 1)
                return Lognormal(log(median), sigma)
        return ConstantLength(int(text))
    except ValueError as why:
        reason = str(why) if "must" in str(why) or "needs" in str(why) else _EXPECTED
        raise ValueError(f"--{side}-tokens {text}: {reason}") from None


def _check_range(what: str, value: float, least: float) -> None:
    if not least <= value <= MAX_TOKENS:
        raise ValueError(f"{what} must be {least:g} to {MAX_TOKENS:g}, not {value:g}")


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

# Wordings of one question; four words fill the blanks.
WORDINGS: Final = (
    "How do I {} the {} of a {} {}?",
    "What is the best way to {} the {} of a {} {}?",
    "Please tell me how to {} the {} of a {} {}.",
    "I would like to {} the {} of a {} {}; how is that done?",
    "Can you explain how one can {} the {} of a {} {}?",
)
_N_WORDED: Final = 16  # words of the longest wording


class FillerText:
    """A long text to cut prompts from, built once for a run; a cut is one copy."""

    def __init__(self, seed: int) -> None:
        rng = Random(seed)
        words = [WORDS[rng.randrange(_N)] for _ in range(_N_BOOK)]
        self._text = " ".join(words)
        self._starts = [0]
        for word in words:
            self._starts.append(self._starts[-1] + len(word) + 1)
        self._offset = rng.randrange(_N**4)

    def make_prompt(self, number: int, n_tokens: int, wording: int = 0) -> str:
        """A prompt of about `n_tokens` tokens. Prompts of different numbers differ in their first four words; the
        wordings of one number ask the same question."""
        rest = (number * 2_654_435_761 + self._offset) % _N**4  # the factor is coprime to _N: the first _N**4 numbers differ
        subject = []
        for _ in range(4):
            rest, digit = divmod(rest, _N)
            subject.append(WORDS[digit])
        question = WORDINGS[wording % len(WORDINGS)].format(*subject) if n_tokens >= _N_WORDED else " ".join(
            subject[:n_tokens])
        n_left = n_tokens - question.count(" ") - 1
        return f"{question} {self.make_passage(number, n_left)}" if n_left > 0 else question

    def make_passage(self, number: int, n_words: int) -> str:
        """`n_words` words. Passages of one number have the same start."""
        first = (number * 7919) % _N_BOOK
        parts = []
        while n_words > 0:
            last = min(_N_BOOK, first + n_words)
            parts.append(self._text[self._starts[first] : self._starts[last] - 1])
            n_words -= last - first
            first = 0
        return " ".join(parts)
