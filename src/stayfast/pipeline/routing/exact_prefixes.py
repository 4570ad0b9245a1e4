"""The seam for an index of what engines have in their caches, by their own events."""

from collections.abc import Sequence
from typing import Protocol

from stayfast.core.types import Request


class ExactPrefixes(Protocol):
    """What engines report to hold of a prompt. Where that is unknown, the selector uses what it sent itself."""

    def cached_tokens(self, request: Request, upstreams: Sequence[str], now: float) -> Sequence[float | None]:
        """The prompt tokens at the start of `request` that are in each upstream's cache, by upstream, in their order. None:
        unknown (no events, a gap in them, a prompt without known token ids); 0: certainly none.

        On the path of each request with prefix affinity: it neither awaits nor blocks, and takes some microseconds. A prompt
        that needs a tokenizer's answer first is unknown. Raises nothing.
        """
