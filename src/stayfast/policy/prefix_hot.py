"""Which beginnings of prompts are asked for again before their provider forgets them.

Problem: an entry lives five minutes from its last use, and the first one who comes after six pays for all of it, and waits.
Rule: what was used at least MIN_USES times, and lately, is asked for again MARGIN_S before its end, as long as there is
budget: so many tokens an hour. It is given up after MOST times without a real use: each costs a tenth of the prompt, so by
then as much has been spent as one new write costs, and never more than twice the least that could have been.
Source: the ski-rental rule; Anthropic's prices (a write 1.25, a read 0.1), its requests with max_tokens 0.
When wrong: who comes once a day pays MOST reads for nothing.
"""

from collections.abc import Hashable
from typing import Final, NamedTuple

MIN_USES: Final = 3
MOST: Final = 11
MARGIN_S: Final = 45.0
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
    __slots__ = ("at", "n_asked", "n_used", "opening")

    def __init__(self, opening: Opening, at: float) -> None:
        self.opening = opening
        self.at = at  # of its last use, ours included
        self.n_used = 1
        self.n_asked = 0  # by us, since somebody else used it


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

    def due(self, now: float) -> list[Opening]:
        """What is to be asked for now; it counts as asked, and its tokens as spent. What is gone already stays so."""
        self._tokens = min(self._per_hour, self._tokens + (now - self._tokens_at) / HOUR_S * self._per_hour)
        self._tokens_at = now
        found = []
        for key, kept in list(self._kept.items()):
            left_s = kept.at + kept.opening.keeps_s - now
            if left_s <= 0:
                del self._kept[key]
            elif (left_s <= MARGIN_S and kept.n_used >= MIN_USES and kept.n_asked < MOST
                  and kept.opening.n_tokens <= self._tokens):
                self._tokens -= kept.opening.n_tokens
                kept.at, kept.n_asked = now, kept.n_asked + 1
                found.append(kept.opening)
        return found
