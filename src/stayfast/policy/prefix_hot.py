"""Which beginnings of prompts are asked for again before their provider forgets them.

Problem: an entry lives five minutes from its last use, and the first one who comes after six pays for all of it, and waits.
Rule: what was used at least MIN_USES times, and lately, is asked for again MARGIN_S before its end, as long as there is
budget: so many tokens an hour. What ends first goes first; one that failed is asked for again after AGAIN_S, and counts as
used only when an answer came. It is given up after MOST times without a real use: each costs a tenth of the prompt, so by
then as much has been spent as one new write costs, and never more than twice the least that could have been.
Source: the ski-rental rule; Anthropic's prices (a write 1.25, a read 0.1), its requests with max_tokens 0.
When wrong: who comes once a day pays MOST reads for nothing.
"""

from collections.abc import Hashable
from typing import Final, NamedTuple

MIN_USES: Final = 3
MOST: Final = 11
MARGIN_S: Final = 45.0
AGAIN_S: Final = 20.0  # nobody waits for an answer longer than that
MAX_KEPT: Final = 256
HOUR_S: Final = 3600.0


class Opening(NamedTuple):
    """A request that asks for a beginning, where, and for how long it is then kept."""

    upstream: str
    model: str
    body: bytes
    n_tokens: float
    keeps_s: float


class _Kept:
    __slots__ = ("asked_at", "at", "n_asked", "n_used", "opening")

    def __init__(self, opening: Opening, at: float) -> None:
        self.opening = opening
        self.at = at  # of its last use, ours included
        self.n_used = 1
        self.n_asked = 0  # by us, since somebody else used it
        self.asked_at = float("-inf")  # by us

    @property
    def ends_at(self) -> float:
        return self.at + self.opening.keeps_s


class Hot:
    """One route's. Pure state; instants never go backwards."""

    __slots__ = ("_kept", "_per_hour", "_tokens", "_tokens_at")

    def __init__(self, tokens_per_hour: float) -> None:
        self._per_hour = tokens_per_hour
        self._tokens = float(tokens_per_hour)
        self._tokens_at = 0.0
        self._kept: dict[Hashable, _Kept] = {}  # the least lately used first

    def used(self, key: Hashable, now: float) -> bool:
        """A request begins with it; False where it must be added first."""
        kept = self._kept.pop(key, None)
        if kept is None:
            return False
        kept.at, kept.n_asked = now, 0
        kept.n_used += 1
        self._kept[key] = kept
        return True

    def add(self, opening: Opening, key: Hashable, now: float) -> None:
        """One that was not known."""
        self._kept[key] = _Kept(opening, now)
        if len(self._kept) > MAX_KEPT:
            del self._kept[next(iter(self._kept))]

    def take(self, now: float) -> tuple[Hashable, Opening] | None:
        """Of what is to be asked for now, that which ends first; it counts as asked, and its tokens as spent. What is gone
        already stays so.
        """
        self._tokens = min(self._per_hour, self._tokens + (now - self._tokens_at) / HOUR_S * self._per_hour)
        self._tokens_at = now
        found: tuple[Hashable, _Kept] | None = None
        for key, kept in list(self._kept.items()):
            left_s = kept.ends_at - now
            if left_s <= 0:
                del self._kept[key]
            elif left_s <= MARGIN_S and self._may_ask(kept, now) and (found is None or left_s < found[1].ends_at - now):
                found = key, kept
        if found is None:
            return None
        key, kept = found
        self._tokens -= kept.opening.n_tokens
        kept.asked_at, kept.n_asked = now, kept.n_asked + 1
        return key, kept.opening

    def _may_ask(self, kept: _Kept, now: float) -> bool:
        return (kept.n_used >= MIN_USES and kept.n_asked < MOST and now - kept.asked_at >= AGAIN_S
                and kept.opening.n_tokens <= self._tokens)

    def answered(self, key: Hashable) -> None:
        """An answer came to what was taken: it is kept from when it was asked for."""
        kept = self._kept.get(key)
        if kept is not None:
            kept.at = max(kept.at, kept.asked_at)
