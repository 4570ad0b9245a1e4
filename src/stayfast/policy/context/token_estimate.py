"""Estimates the input tokens of a request from its bytes, as the upstream's own usage has shown for earlier requests.

Problem: vocabularies are not public or not installed, and the usual four bytes a token are wrong by up to a factor of two:
code, JSON and other scripts have more tokens a byte than English, and each message adds tokens of a template. One ratio a
route is as wrong where its requests differ. Rule: count what tokenizers treat alike (words, long words, capitals, digits,
punctuation, line breaks, characters by script, messages) and learn the tokens of each by recursive least squares:

    estimate = w . x          x = counts of one request, w = tokens of each
    error    = 1 - w . x / tokens                relative, so that long prompts count like short ones
    k = P x' / (NOISE**2 + x' . P x')            x' = x / tokens
    w = w + k error,    P = P - k (P x')'        P of counts that occurred: / FORGET, at most SPREAD**2
                                                 error at most MOST_SIGMAS times its standard deviation

One set of weights for each pair of a route and a model. A new route begins with those of the same model elsewhere, the
first with _START, which is no vocabulary's. A body is measured only if usage came: each of the first N_WARM, then one in
EVERY (SOON after an error above WRONG). After N_WRONG such errors in a row, as of another vocabulary behind the same name,
the next N_AGAIN are learned as the first ones were.
Source: recursive least squares with exponential forgetting (Ljung, System Identification, 11.2), forgetting only what was
seen; errors are cut as Huber does, so that a wrong report moves little once a count is known.
When wrong: base64 other than images counts as text; requests with images or files, and those that continue a conversation
that the provider stores, are not learned; of a body longer than MAX_BYTES only SLICES parts are measured.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any, Final

from stayfast.core.constants import BYTES_A_TOKEN

Counts = Sequence[float]

N_WARM: Final = 256
EVERY: Final = 256
WRONG: Final = 0.1
N_WRONG: Final = 3
N_AGAIN: Final = 128
SOON: Final = 8
FORGET: Final = 0.998
NOISE: Final = 0.02
MOST_SIGMAS: Final = 3.0
MAX_WEIGHTS: Final = 1024  # pairs of a route and a model: clients may choose models
MAX_BYTES: Final = 32 * 1024
SLICES: Final = 32
IMAGE_TOKENS: Final = 1600  # Anthropic's figure for a 1.15 megapixel image
N_TEMPLATE: Final = 2  # the first counts: of the request, and of messages
_START: Final = (  # tokens of each count, before anything is learned
    2.0, 0.0,  # a request, a message
    0.6, 0.8, 0.25,  # a word after a blank, after a mark, four small letters in a row
    0.15, 0.5, -0.4,  # a capital, a digit, three digits in a row
    0.6, -0.6, 0.4,  # a mark, two marks in a row, a line break
    0.6, 0.4, 0.5, 0.6, 0.8, 0.8, 0.9, 0.9,  # characters by their first byte in UTF-8: Latin, Greek and Cyrillic, Hebrew and
    #   Arabic, Indic and Thai, signs, kana, Han, Hangul and others
    0.3,  # a word of those with blanks between words
)
N_COUNTS: Final = len(_START)
SPREAD: Final = (5.0, 5.0, *[0.55] * (N_COUNTS - N_TEMPLATE))  # standard deviations of the weights at the start
_FEW: Final = 11  # counts of a text in ASCII
_NO_OTHER: Final = (0,) * (N_COUNTS - _FEW)


def _class_of(byte: int) -> str:
    """One character for all bytes that count alike."""
    for first, name in ((0xEA, "g"), (0xE4, "h"), (0xE3, "j"), (0xE2, "i"), (0xE0, "v"), (0xD4, "q"), (0xC6, "k"),
                        (0xC0, "e"), (0x80, "c")):
        if byte >= first:
            return name
    char = chr(byte)
    return "a" if char.islower() else "A" if char.isupper() else "0" if char.isdigit() else " " if char in " \t" else (
        "n" if char in "\r\n" else ".")


_CLASSES: Final = bytes(ord(_class_of(byte)) for byte in range(256))
_MEDIA: Final = (b'"image', b'"input_image', b'"input_file', b'"input_audio', b'"document"', b'"file"', b"base64")
_ENCODED: Final = re.compile(rb"[A-Za-z0-9+/_-]{400,}={0,2}")


def has_media(body: bytes) -> bool:
    """Whether a body may hold images, audio or files, whose tokens do not follow from its bytes."""
    return any(word in body for word in _MEDIA)


def weigh_media(data: bytes) -> int:
    """The bytes of a part of a body, if an encoded image or file is as long as a text of as many tokens."""
    if not has_media(data):
        return len(data)
    text, n_media = _ENCODED.subn(b"", data)
    return len(text) + n_media * IMAGE_TOKENS * BYTES_A_TOKEN


def measure_text(text: bytes) -> Counts:
    """The counts of a JSON body or text, UTF-8; N_COUNTS figures of at least 0."""
    n_bytes, scale, n_messages = len(text), 1.0, text.count(b'"role"')
    if n_bytes > MAX_BYTES:
        step, size = n_bytes // SLICES, MAX_BYTES // SLICES
        text = b"".join([text[at * step:at * step + size] for at in range(SLICES)])
        scale = n_bytes / len(text)
    is_ascii = text.isascii()
    if is_ascii and b"\\u" in text:
        text = _unescape(text)
        is_ascii = text.isascii()
    n = text.translate(_CLASSES).count
    counts: tuple[int, ...] = (n(b" a"), n(b".a"), n(b"aaaa"), n(b"A"), n(b"0"), n(b"000"), n(b"."), n(b".."),
                               text.count(b"\\n"))
    counts += _NO_OTHER if is_ascii else (
        n(b"e"), n(b"k"), n(b"q"), n(b"v"), n(b"i"), n(b"j"), n(b"h"), n(b"g"), n(b" k") + n(b" q") + n(b" v") + n(b" g"))
    return (1.0, n_messages, *counts) if scale == 1.0 else (1.0, n_messages, *[count * scale for count in counts])


def _unescape(text: bytes) -> bytes:
    """The characters that JSON's escapes stand for; pairs of surrogates are one."""
    return text.decode("raw_unicode_escape", "replace").encode("utf-16-le", "surrogatepass").decode(
        "utf-16-le", "replace").encode()


class TokenWeights:
    """What each count is worth in tokens, on one route at one model. Pure state; changed only by its owner."""

    __slots__ = ("_covariance", "_n_due", "_n_wrong", "_spread", "_weights", "n_learned", "n_until_due")

    def __init__(self, start: Sequence[float] = _START, spread: Sequence[float] = SPREAD) -> None:
        """The weights at the start, and their standard deviations."""
        self._weights = list(start)
        self._spread = spread
        self._covariance = _know_nothing(spread)
        self.n_learned = 0
        self.n_until_due = 0  # requests that need not be measured
        self._n_wrong = 0  # errors above WRONG, in a row
        self._n_due = N_WARM  # requests that are to be measured one after another

    def copy(self) -> "TokenWeights":
        """The same weights, which learn anew."""
        return TokenWeights(self._weights)

    def estimate(self, counts: Counts) -> float:
        """Tokens of a request with these counts; may be below 0 for counts unlike any before."""
        return sum([weight * count for weight, count in zip(self._weights, counts, strict=True)])

    def estimate_text(self, counts: Counts) -> float:
        """The same without what a template adds."""
        return sum([weight * count for weight, count in zip(self._weights[N_TEMPLATE:], counts[N_TEMPLATE:], strict=True)])

    def learn(self, counts: Counts, n_tokens: int) -> None:
        """Learn from one request with at least one token."""
        x = [count / n_tokens for count in counts]
        seen = [at for at, count in enumerate(x) if count]
        error = 1.0 - sum([self._weights[at] * x[at] for at in seen])
        px = [sum([row[at] * x[at] for at in seen]) for row in self._covariance]
        variance = NOISE * NOISE + sum([x[at] * px[at] for at in seen])
        gain, most = 1.0 / variance, MOST_SIGMAS * variance ** 0.5
        step = gain * max(-most, min(most, error))
        self._weights = [weight + step * change for weight, change in zip(self._weights, px, strict=True)]
        self._widen(px, gain, seen)
        self.n_learned += 1
        self._plan_next(abs(error))

    def _widen(self, px: list[float], gain: float, seen: list[int]) -> None:
        """The covariance after a sample, with some forgotten of what occurred in it."""
        rows = [[value - gain * change * other for value, other in zip(row, px, strict=True)]
                for row, change in zip(self._covariance, px, strict=True)]
        factors = [1.0] * len(rows)
        for at in seen:
            factors[at] = min(FORGET ** -0.5, self._spread[at] / max(rows[at][at], 1e-12) ** 0.5)
        self._covariance = [[value * factor * other for value, other in zip(row, factors, strict=True)]
                            for row, factor in zip(rows, factors, strict=True)]

    def _plan_next(self, error: float) -> None:
        self._n_wrong = self._n_wrong + 1 if error > WRONG else 0
        if self._n_due:
            self._n_due -= 1
        elif self._n_wrong >= N_WRONG:
            self._n_due, self._covariance = N_AGAIN, _know_nothing(self._spread)
        self.n_until_due = 0 if self._n_due else EVERY - 1 if not self._n_wrong else SOON - 1


class PromptTokens:
    """The weights of one upstream. Pure state; changed only by its owner."""

    __slots__ = ("_also", "_of", "_of_model")

    def __init__(self) -> None:
        self._of: dict[tuple[str, str], TokenWeights] = {}
        self._also: dict[str, Callable[[bytes, int], None]] = {}  # by route
        self._of_model: dict[str, TokenWeights] = {}  # the last that was made

    def learn(self, route: str, model: str, body: bytes, n_tokens: int) -> None:
        """Note the upstream's count of a request. Most are not measured once enough are known."""
        weights = self._of.get((route, model))
        if weights is None:
            weights = self._add(route, model)
        elif weights.n_until_due:
            weights.n_until_due -= 1
            return
        if n_tokens > 0 and not has_media(body):
            weights.learn(measure_text(body), n_tokens)
            if (also := self._also.get(route)) is not None:
                also(body, n_tokens)

    def pass_on(self, route: str, learn: Callable[[bytes, int], None] | None) -> None:
        """Whatever is learned of a route is passed on to `learn`, with the body and its tokens. None: no more."""
        if learn is None:
            self._also.pop(route, None)
        else:
            self._also[route] = learn

    def estimate(self, route: str, model: str, body: bytes) -> int:
        """The input tokens of a request with this JSON body, at least 1."""
        n_images = 0
        if has_media(body):
            body, n_images = _ENCODED.subn(b"", body)
        n_tokens = self._weights_of(route, model).estimate(measure_text(body))
        return n_images * IMAGE_TOKENS + _bound(n_tokens, len(body))

    def estimate_text(self, route: str, model: str, text: bytes) -> int:
        """The tokens of a text alone, as it stands in a JSON body; 0 for none."""
        if not text:
            return 0
        return _bound(self._weights_of(route, model).estimate_text(measure_text(text)), len(text))

    def n_learned(self, route: str, model: str) -> int:
        """Requests that were measured."""
        weights = self._of.get((route, model))
        return weights.n_learned if weights is not None else 0

    def _weights_of(self, route: str, model: str) -> TokenWeights:
        return self._of.get((route, model)) or self._of_model.get(model) or _UNLEARNED

    def _add(self, route: str, model: str) -> TokenWeights:
        before = self._of_model.get(model)
        weights = before.copy() if before is not None else TokenWeights()
        _drop_oldest(self._of)
        _drop_oldest(self._of_model)
        self._of[route, model] = self._of_model[model] = weights
        return weights


def _know_nothing(spread: Sequence[float]) -> list[list[float]]:
    return [[deviation ** 2 if row == column else 0.0 for column in range(len(spread))]
            for row, deviation in enumerate(spread)]


def _drop_oldest(known: dict[Any, TokenWeights]) -> None:
    if len(known) >= MAX_WEIGHTS:
        del known[next(iter(known))]


def _bound(n_tokens: float, n_bytes: int) -> int:
    """At least one token, at most one a byte."""
    return max(1, min(round(n_tokens), n_bytes))


_UNLEARNED: Final = TokenWeights()
