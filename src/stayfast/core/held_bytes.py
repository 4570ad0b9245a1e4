"""How many bytes of whole (not streamed) answers this process holds in memory, and the limit.

Problem: a stream is read only as fast as its client takes it, but a whole answer is read completely before its first byte
is sent, and stays until the client has it: ten answers of 50 MB are 500 MB. Rule: the bytes of an answer beyond `FREE_BYTES`
are counted from their arrival until the client has them. An answer that would exceed the limit is refused; the ones already
held are not affected.

When wrong: an answer exists twice while its parts are joined. A refused answer has been paid for.
"""

import msgspec

from stayfast.core.errors import Shed

FREE_BYTES = 64 * 1024  # of each answer, so that small answers are never refused
RETRY_AFTER_S = 1.0


class HeldBytes:
    """The bytes held by one process. Used on one event loop."""

    __slots__ = ("limit", "n")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.n = 0

    def resize(self, limit: int) -> None:
        self.limit = limit

    def __repr__(self) -> str:
        return f"<HeldBytes: {self.n} of {self.limit}>"


class Holding(msgspec.Struct, eq=False):
    """The part of one answer. `release` may be called more than once."""

    _account: HeldBytes
    _n_charged: int = 0

    def grow_to(self, n_bytes: int, *, may_refuse: bool = True) -> None:
        """Set the answer's size to `n_bytes`. Raises Shed above the limit if `may_refuse`."""
        more = n_bytes - FREE_BYTES - self._n_charged
        if more <= 0:
            return
        account = self._account
        if may_refuse and account.n + more > account.limit:
            raise Shed(f"Whole answers waiting for slow clients fill the memory for them ({account.limit} bytes, "
                       "server.max_buffered_bytes). Try again later, or request a stream, which needs no such memory.",
                       reason="held_bytes", code="too_many_bytes_held", retry_after_s=RETRY_AFTER_S)
        account.n += more
        self._n_charged += more

    def release(self) -> None:
        self._account.n -= self._n_charged
        self._n_charged = 0
