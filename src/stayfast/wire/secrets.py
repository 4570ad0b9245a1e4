"""Keeps the gateway's own keys out of what an upstream's error carries to clients and logs."""

from collections.abc import Iterable
from typing import Final

import msgspec

from stayfast.core.errors import UpstreamFailed

MIN_LENGTH: Final = 8  # a shorter header value is a word, no key: taking it out would garble honest messages
_REDACTED: Final = "[redacted]"
_ANY: Final = msgspec.json.Decoder()


class Secrets:
    """The keys and header values that go to one upstream. Immutable."""

    __slots__ = ("_texts",)

    def __init__(self, values: Iterable[str]) -> None:
        """A value such as `Bearer ...` hides its words as well, since an upstream may quote only the last."""
        words = {word for value in values for word in (value, *value.split()) if len(word) >= MIN_LENGTH}
        self._texts = sorted(words, key=len, reverse=True)  # the longest first: one may be a part of another

    def scrub(self, failed: UpstreamFailed) -> UpstreamFailed:
        """Take them out of everything that the failure says; returns it."""
        if self._texts:
            failed.message = self._without(failed.message)
            failed.code = self._without(failed.code)
            if failed.param is not None:
                failed.param = self._without(failed.param)
            if failed.body:
                failed.body = self._without_in_json(failed.body)
        return failed

    def _without(self, text: str) -> str:
        for secret in self._texts:
            text = text.replace(secret, _REDACTED)
        return text

    def _without_in_json(self, body: bytes) -> bytes:
        if b"\\" in body:  # escapes have many spellings: say it in the one that is looked for
            try:
                body = msgspec.json.encode(_ANY.decode(body))
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                return b""  # nobody could read the message in it either
        for secret in self._texts:
            body = body.replace(msgspec.json.encode(secret)[1:-1], _REDACTED.encode())
        return body
