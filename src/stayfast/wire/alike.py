"""The keys of requests that differ from an earlier one in nothing but their question.

Problem: what an application asks is mostly the same but for its last words, and to read all of it again takes longer than
everything else that a look-up does, the more so the longer its system prompt is. Rule: a body is cut in three,

    before + question + after        the question: what stands between the quotes behind the last `"role":"user","content":`

and where `before` and `after` are those of a body that was read the long way, so is the key: the digest of all but the
question has been begun already, and goes on with it. A question with a backslash in it is not cut out, so that nothing in
one can end it, and one place stands for one member of the body, whatever is written there. That this member is the question
and nothing else is not guessed: before a body is remembered, it is read once more with other words in that place, and must
ask those, where it asked something else before.

Only what comes a second time is remembered; conversations grow, and nobody begins again like one of their turns.
When wrong: bodies that put the content before the role, or white space elsewhere, are read the long way each time.
"""

from hashlib import blake2b
from typing import Final

from msgspec.structs import replace

from stayfast.core.types import Request
from stayfast.wire.canonical import Asked, asked, begun_with, text_of

Frame = tuple[bytes, bytes, bytes]  # before, after, who asks

MAX_FRAMES: Final = 256
MAX_BYTES: Final = 4 * 1024 * 1024  # of all that are remembered
MAX_BODY_BYTES: Final = 128 * 1024
MAX_SEEN: Final = 4096
_PLACE: Final = b'"role":"user","content":"'
_SPACED: Final = b'"role": "user", "content": "'
_N_PLACE: Final = len(_PLACE)
_OTHER_WORDS: Final = b"stayfast: other words"
_QUOTE: Final = 34  # as numbers: looking for a number in bytes is five times as fast as looking for bytes
_BACKSLASH: Final = 92


def framed(body: bytes, who: bytes) -> tuple[Frame, bytes] | None:
    """What stands around the last words of a user, and those words. None: they are not found, or not plain.

    who: as `terms_of` has it.
    """
    if len(body) > MAX_BODY_BYTES:
        return None
    at = body.rfind(_PLACE) + _N_PLACE
    if at < _N_PLACE:
        at = body.rfind(_SPACED) + len(_SPACED)
        if at < len(_SPACED):
            return None
    ends = body.find(b'"', at)
    words = body[at:ends]
    return ((body[:at], body[ends:], who), words) if _BACKSLASH not in words else None


class Alike:
    """The frames of one route, each of which came at least twice. Changed on one loop."""

    __slots__ = ("_frames", "_last", "_n_bytes", "_seen")

    def __init__(self) -> None:
        self._frames: dict[Frame, blake2b | None] = {}  # None: what stands there is not the question
        self._last: tuple[bytes, int, bytes, int, bytes, blake2b] = (b"-", 1, b"", 0, b"", blake2b())  # no body's
        self._n_bytes = 0
        self._seen: set[int] = set()  # the hashes of frames that came once

    def __len__(self) -> int:
        return sum(found is not None for found in self._frames.values())

    def key(self, body: bytes, who: bytes) -> bytes | None:
        """What `key_of` would say of a body like one that was learned; None where it must be read.

        The next one is mostly like the last one: then nothing needs to be looked for in it.
        """
        before, n_before, after, n_after, whose, begun = self._last
        words = body[n_before:-n_after]
        if (body[:n_before] != before or body[-n_after:] != after or whose != who
                or _QUOTE in words or _BACKSLASH in words or len(body) > MAX_BODY_BYTES):
            alike = framed(body, who)
            found = self._frames.get(alike[0]) if alike is not None else None
            if alike is None or found is None:
                return None
            (before, after, _), words = alike
            begun = found
            self._last = (before, len(before), after, len(after), who, begun)
        words = words.strip() if words.isascii() else text_of(words.decode()).encode()
        if not words:
            return None
        digest = begun.copy()
        digest.update(words)
        return digest.digest()

    def learn(self, request: Request, who: bytes, terms: bytes, what: Asked) -> None:
        """A request was read the long way, and the cache may have a part in it. What is remembered is bounded, and nobody's
        question; the oldest goes first.
        """
        alike = framed(request.body, who)
        if alike is None or alike[0] in self._frames:
            return
        frame, _ = alike
        seen, mark = self._seen, hash(frame)
        if mark not in seen:
            if len(seen) >= MAX_SEEN:
                seen.clear()
            seen.add(mark)
            return
        before, after, _ = frame
        other = asked(replace(request, body=before + _OTHER_WORDS + after))
        is_question = what.question != _OTHER_WORDS and other.question == _OTHER_WORDS and other.scope == what.scope
        n_bytes = len(before) + len(after) + len(who)
        while self._frames and (len(self._frames) >= MAX_FRAMES or self._n_bytes + n_bytes > MAX_BYTES):
            oldest = next(iter(self._frames))
            del self._frames[oldest]
            self._n_bytes -= sum(map(len, oldest))
            seen.discard(hash(oldest))
        self._frames[frame] = begun_with(terms) if is_question else None
        self._n_bytes += n_bytes
