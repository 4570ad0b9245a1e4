"""From an answer as it came to a row of the report."""

import re
from collections.abc import Iterable
from typing import Final

from stayfast.bench.amounts import printable
from stayfast.bench.exchange import Exchange
from stayfast.bench.samples import Sample
from stayfast.bench.target import Asking

EXCERPT_CHARS: Final = 200
MIN_SECRET: Final = 8  # a shorter word is no key: taking it out would garble an honest message
_ESCAPED: Final = re.compile(r"\\(?:u00([2-7][0-9a-fA-F])|(/))")
_LIKE_A_KEY: Final = re.compile(r"(?i)\b(?:sk|pk|rk|gsk|xai|aiza)[-_*.\w]{9,}|\bbearer\s+[^\s\"',;]+")


class Tally:
    """Makes one target's samples, and knows how their output tokens were counted. `secrets` never get into an excerpt."""

    __slots__ = ("_has_excerpt", "_n_by_chunks", "_n_by_usage", "_secrets")

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        words = {word for value in secrets for word in (value, *value.split()) if len(word) >= MIN_SECRET}
        self._secrets = sorted(words, key=len, reverse=True)  # one may be a part of another
        self._has_excerpt = False
        self._n_by_usage = 0
        self._n_by_chunks = 0

    @property
    def counted_by(self) -> str:
        """usage, chunks, or both."""
        if self._n_by_usage and self._n_by_chunks:
            return "both"
        return "chunks" if self._n_by_chunks else "usage"

    def sample(self, asking: Asking, exchange: Exchange, sent_at: float, connect_s: float) -> Sample:
        """The row. `sent_at` is the clock's; NaN for what did not happen."""
        zero_at, shot, reader = asking.zero_at, asking.shot, exchange.reader
        usage = reader.usage
        is_by_usage = usage is not None and usage.output > 0
        self._n_by_usage += is_by_usage
        self._n_by_chunks += exchange.n_chunks > 0 and not is_by_usage
        return Sample(
            shot.number, shot.at_s, sent_s=sent_at - zero_at, headers_s=exchange.head_at - zero_at,
            first_s=exchange.first_at - zero_at, last_s=exchange.last_at - zero_at, ended_s=exchange.ended_at - zero_at,
            n_input=usage.input_total if usage and usage.input_total else shot.n_input,
            n_output=usage.output if usage and is_by_usage else exchange.n_chunks, n_chunks=exchange.n_chunks,
            gap_max_s=exchange.gap_max_s, connect_s=connect_s, shown_s=exchange.shown_at - zero_at, status=exchange.status,
            error=exchange.error, n_upstream_attempts=exchange.n_attempts, server_timing=exchange.server_timing,
            excerpt=self._excerpt(exchange))

    def _excerpt(self, exchange: Exchange) -> str:
        """The beginning of the first failed body, on one line and without anything that looks like a key."""
        if self._has_excerpt or not (body := exchange.excerpt):
            return ""
        self._has_excerpt = True
        text = _ESCAPED.sub(lambda found: chr(int(found[1], 16)) if found[1] else "/", body.decode("utf-8", "replace"))
        for secret in self._secrets:
            text = text.replace(secret, "[key]")
        text = printable(" ".join(_LIKE_A_KEY.sub("[key]", text).split()))
        return text if len(text) <= EXCERPT_CHARS else text[:EXCERPT_CHARS] + "..."
