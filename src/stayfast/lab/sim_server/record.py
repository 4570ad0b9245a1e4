"""What was asked of late, for whoever wants to know why a figure is what it is. No prompts, no keys."""

from collections import deque
from collections.abc import Iterable
from itertools import islice

import msgspec

WHOLE, LEFT = "whole", "left"


class Record(msgspec.Struct):
    """One request. Changed by its Task until `ended` is set: whole, left (the client went), or how we broke it off."""

    n: int  # counts from 1
    provider: str
    api: str
    model: str
    stream: bool
    asked_at: float  # seconds since the epoch
    n_prompt_tokens: int
    status: int | None = None  # None: no head was sent
    ended: str | None = None  # None: under way
    first_byte_s: float | None = None  # to the head
    first_chunk_s: float | None = None  # to the first bytes of a streamed body
    seconds: float | None = None
    n_chunks: int = 0
    n_tokens_unread: int = 0  # generated for a client that had left before the end


class Records:
    """The last requests. One loop's."""

    __slots__ = ("_kept", "_n")

    def __init__(self, n_kept: int) -> None:
        self._kept: deque[Record] = deque(maxlen=n_kept)
        self._n = 0

    def next_number(self) -> int:
        """A new request's number."""
        self._n += 1
        return self._n

    def keep(self, record: Record) -> None:
        """Remember it, and forget the oldest."""
        self._kept.append(record)

    def last(self, n: int) -> Iterable[Record]:
        """The last `n`, the newest first."""
        return islice(reversed(self._kept), n)

    def clear(self) -> None:
        """Forget all; numbers begin again."""
        self._kept.clear()
        self._n = 0

    def __len__(self) -> int:
        return len(self._kept)

    def __repr__(self) -> str:
        return f"<Records: {len(self._kept)} of {self._n}>"
