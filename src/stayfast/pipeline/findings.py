"""Why a provider's prefix cache is of no use to some prompts: which block moves, at which byte, and what that costs.

Of prompts are kept the newest instructions of each kind, to compare the next ones with; none of it is ever told but lengths
and places.
"""

from math import inf
from typing import TYPE_CHECKING, Final

from stayfast.core.clock import Clock
from stayfast.core.events import PrefixFinding, Sink
from stayfast.policy.prefix import Shape
from stayfast.policy.price import TOKENS_PER_PRICE
from stayfast.wire.layout import Laid
from stayfast.wire.stable import difference

if TYPE_CHECKING:
    from stayfast.pipeline.prefixing import Kind, Marker

MAX_KEPT_BYTES: Final = 256 * 1024  # of one kind's instructions
MAX_FINDINGS, MAX_KEPT = 256, 64
DAY_S: Final = 86_400.0
FOUND_S: Final = 600.0  # a finding is one for so long after it was seen the last time


class Findings:
    """One route's. `all`: by upstream, model and block, with when each was seen last."""

    __slots__ = ("_clock", "_kept", "_route", "_sink", "all")

    def __init__(self, route: str, clock: Clock, sink: Sink) -> None:
        self.all: dict[tuple[str, str, str], tuple[float, PrefixFinding]] = {}
        self._route = route
        self._clock = clock
        self._sink = sink
        self._kept: dict[Kind, list[bytes]] = {}

    def look(self, kind: "Kind", laid: Laid, shape: Shape, marker: "Marker", *, is_moving: bool) -> None:
        """Keep the instructions; where they move, say how they differ from the last ones."""
        statics = [block.data for block in laid.blocks[:laid.n_static]]
        before = self._kept.pop(kind, None)
        if sum(map(len, statics)) <= MAX_KEPT_BYTES:
            self._kept[kind] = statics
            if len(self._kept) > MAX_KEPT:
                del self._kept[next(iter(self._kept))]
        if not is_moving or before is None:
            return
        n_same, most = 0, min(len(before), len(statics))
        while n_same < most and before[n_same] == statics[n_same]:
            n_same += 1
        if n_same < most:
            at, word = difference(before[n_same], statics[n_same])
            n_tokens = shape.tokens[laid.n_static - 1] - (shape.tokens[n_same - 1] if n_same else 0.0)
            self._found(marker, "moves", n_tokens, laid.where(n_same), at=at, word=word)

    def unread(self, marker: "Marker") -> None:
        """What is marked is written and never read."""
        self._found(marker, "unread", marker.n_marked)

    def moving_tokens(self, now: float) -> dict[str, float]:
        """Tokens a request that a moving block keeps from the cache, by upstream; 0 where that is over."""
        rows = dict.fromkeys({upstream for upstream, _, _ in self.all}, 0.0)
        for (upstream, _, _), (seen_at, found) in self.all.items():
            if now - seen_at <= FOUND_S:
                rows[upstream] = max(rows[upstream], found.n_tokens)
        return rows

    def _found(self, marker: "Marker", what: str, n_tokens: float, where: str = "", *, at: int = 0, word: str = "") -> None:
        """Tell it, once as long as it goes on."""
        now, name = self._clock.now(), (marker.upstream, marker.model, where)
        seen_at, _ = self.all.pop(name, (-inf, None))
        found = PrefixFinding(self._route, marker.upstream, marker.model, what, where, at, word, round(n_tokens),
                              _usd_a_day(marker, n_tokens, now))
        self.all[name] = (now, found)
        if len(self.all) > MAX_FINDINGS:
            del self.all[next(iter(self.all))]
        if now - seen_at > FOUND_S:
            self._sink.emit(found)


def _usd_a_day(marker: "Marker", n_tokens: float, now: float) -> float | None:
    """What it costs that so many tokens of each request are computed anew."""
    price, history, rules = marker.price, marker.history, marker.rules
    if price is None or history is None or rules is None or now <= history.began_at:
        return None
    read = price.cached_read_per_mtok
    less = price.input_per_mtok - (price.input_per_mtok * rules.read_factor if read is None else read)
    return round(less * n_tokens / TOKENS_PER_PRICE * history.n_seen / (now - history.began_at) * DAY_S, 2)
