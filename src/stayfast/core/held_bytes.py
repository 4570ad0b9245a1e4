"""How many bytes of whole answers this process holds, and how many it may.

Problem: a streamed answer is bounded by its client, since reading stops where writing does. A whole one is not: it is read
to its end before its first byte is sent, and stays until a slow client has taken it, so that ten of 50 MB are 500 MB. Rule:
what goes beyond `FREE_BYTES` of an answer is counted from the moment it is read until its client has it; an answer that
would make the sum larger than the limit is refused, and those that are held already are not touched.

When wrong: while the parts of an answer are joined, it is there twice. An answer that is refused was paid for.
"""

from stayfast.core.errors import Shed

FREE_BYTES = 64 * 1024  # of each answer: small ones are never refused for large ones
RETRY_AFTER_S = 1.0


class HeldBytes:
    """The account of one process. Used on one loop."""

    __slots__ = ("limit", "n")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.n = 0

    def resize(self, limit: int) -> None:
        self.limit = limit

    def __repr__(self) -> str:
        return f"<HeldBytes: {self.n} of {self.limit}>"


class Holding:
    """What is held of one answer. `release` may be called again."""

    __slots__ = ("_account", "_n_charged")

    def __init__(self, account: HeldBytes) -> None:
        self._account = account
        self._n_charged = 0

    def grow_to(self, n_bytes: int, *, may_refuse: bool = True) -> None:
        """The answer has so many bytes now. Raises Shed above the limit, unless they are there in any case."""
        more = n_bytes - FREE_BYTES - self._n_charged
        if more <= 0:
            return
        account = self._account
        if may_refuse and account.n + more > account.limit:
            raise Shed("Whole answers on their way to slow clients fill what this gateway may hold of them "
                       f"({account.limit} bytes, server.max_held_bytes). Ask again later, or for a stream, which is not "
                       "held.", reason="held_bytes", code="too_many_bytes_held", retry_after_s=RETRY_AFTER_S)
        account.n += more
        self._n_charged += more

    def release(self) -> None:
        self._account.n -= self._n_charged
        self._n_charged = 0
