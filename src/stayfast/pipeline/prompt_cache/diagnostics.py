"""Why a provider's prefix cache is of no use to some prompts: which block moves, at which byte, and what that costs.

Of prompts are kept the last few instructions of each kind, of each application one as far as can be told, to compare the
next ones with: those that are alike at their beginning and end for the longest. Only lengths and places are ever told.
What it costs a day is said after some minutes of it: before that a rate is a guess.
"""

from math import inf
from typing import Final

from stayfast.core.clock import Clock
from stayfast.core.events import PrefixFinding, Sink
from stayfast.policy.admission.price import TOKENS_PER_PRICE, Price
from stayfast.policy.prompt_cache.breakpoints import PromptHistory, PromptShape
from stayfast.policy.prompt_cache.rules import PrefixRules
from stayfast.wire.prompt import PromptLayout, find_first_difference, n_common_bytes

MAX_KEPT_BYTES: Final = 512 * 1024  # of one kind's instructions, all together
MAX_APPLICATIONS: Final = 4  # whose instructions are kept, of one kind
SAME_SHARE: Final = 0.5  # of the shorter one's bytes: so much in common at both ends makes them one application's
MAX_FINDINGS, MAX_KEPT = 256, 32
DAY_S: Final = 86_400.0
FOUND_S: Final = 600.0  # a finding is one for so long after it was seen the last time
LEAST_S: Final = 300.0  # of a rate that a sum is made of
Kind = tuple[str, str, tuple[str, ...]]  # of prompts: upstream, model, set of tools


class MarkedPrompt:
    """What one attempt's prompt is to its provider's cache: where it goes, by which rules, and how much of it is marked."""

    __slots__ = ("history", "model", "n_marked", "price", "rules", "upstream")

    def __init__(self, upstream: str, model: str, price: Price | None) -> None:
        self.upstream = upstream
        self.model = model
        self.price = price
        self.history: PromptHistory | None = None
        self.rules: PrefixRules | None = None
        self.n_marked = 0.0  # tokens of it, about


class PrefixDiagnostics:
    """One route's. `all`: by upstream, model and block, with when each was seen last."""

    __slots__ = ("_clock", "_route", "_runs", "_sink", "_static_parts", "all")

    def __init__(self, route: str, clock: Clock, sink: Sink) -> None:
        self.all: dict[tuple[str, str, str], tuple[float, PrefixFinding]] = {}
        self._route = route
        self._clock = clock
        self._sink = sink
        self._runs: dict[tuple[str, str, str], tuple[float, int]] = {}  # since when it goes on, and how many times before
        self._static_parts: dict[Kind, list[bytes]] = {}  # by application, the least lately seen first

    def inspect(self, kind: Kind, laid: PromptLayout, shape: PromptShape, marker: MarkedPrompt, *, is_moving: bool,
             seems_moving: bool) -> None:
        """Keep the instructions; where they move, say how they differ from the last ones of the same application."""
        statics = [block.data for block in laid.blocks[:laid.n_static]]
        static_text, seen_texts = b"".join(statics), self._static_parts.pop(kind, [])
        self._static_parts[kind] = seen_texts
        if len(self._static_parts) > MAX_KEPT:
            del self._static_parts[next(iter(self._static_parts))]
        if static_text in seen_texts:
            seen_texts.remove(static_text)
        elif seen_texts:
            n, before = max((n_common_bytes(static_text, other), other) for other in seen_texts)
            is_same = n >= SAME_SHARE * min(len(static_text), len(before))
            if is_same:
                seen_texts.remove(before)
            if is_moving or (is_same and seems_moving):
                self._compare(marker, shape, laid, static_text, before)
        seen_texts.append(static_text)
        while len(seen_texts) > MAX_APPLICATIONS or sum(map(len, seen_texts)) > MAX_KEPT_BYTES:
            del seen_texts[0]

    def _compare(self, marker: MarkedPrompt, shape: PromptShape, laid: PromptLayout, static_text: bytes,
                 before: bytes) -> None:
        at, word = find_first_difference(before, static_text)
        n_same = 0
        while n_same < laid.n_static and at >= (n_bytes := len(laid.blocks[n_same].data)):
            at -= n_bytes
            n_same += 1
        if n_same < laid.n_static:  # else it is as the one before begins
            n_tokens = shape.tokens[laid.n_static - 1] - (shape.tokens[n_same - 1] if n_same else 0.0)
            self._found(marker, "moves", n_tokens, laid.format_path(n_same), at=at, word=word)

    def note_unread(self, marker: MarkedPrompt) -> None:
        """What is marked is written and never read."""
        self._found(marker, "unread", marker.n_marked)

    def note_refused(self, marker: MarkedPrompt, member: str) -> None:
        """The upstream does not take what was added to a request."""
        self._found(marker, "refused", 0.0, member)

    def moving_tokens(self, now: float) -> dict[str, float]:
        """Tokens a request that a moving block keeps from the cache, by upstream; 0 where that is over."""
        moving = [(upstream, seen_at, found.n_tokens) for (upstream, _, _), (seen_at, found) in self.all.items()
                  if found.what == "moves"]
        rows = dict.fromkeys((upstream for upstream, _, _ in moving), 0.0)
        for upstream, seen_at, n_tokens in moving:
            if now - seen_at <= FOUND_S:
                rows[upstream] = max(rows[upstream], n_tokens)
        return rows

    def _found(self, marker: MarkedPrompt, what: str, n_tokens: float, where: str = "", *, at: int = 0,
               word: str = "") -> None:
        """Tell it, once as long as it goes on; and once more when it is known what it costs."""
        now, name = self._clock.now(), (marker.upstream, marker.model, where)
        seen_at, reported = self.all.pop(name, (-inf, None))
        is_new = reported is None or now - seen_at > FOUND_S
        began_at, n_before = (now, 0) if is_new else self._runs[name]
        self._runs[name] = began_at, n_before + 1
        if what == "unread" and marker.history is not None:  # it is found once in a while, and all requests pay for it
            began_at, n_before = marker.history.began_at, marker.history.n_seen
        found = PrefixFinding(self._route, marker.upstream, marker.model, what, where, at, word, round(n_tokens),
                              _usd_a_day(marker, n_tokens, n_before, now - began_at))
        self.all[name] = (now, found)
        if len(self.all) > MAX_FINDINGS:
            oldest = next(iter(self.all))
            del self.all[oldest], self._runs[oldest]
        if is_new or (reported is not None and reported.usd_a_day is None and found.usd_a_day is not None):
            self._sink.emit(found)


def _usd_a_day(marker: MarkedPrompt, n_tokens: float, n: int, in_s: float) -> float | None:
    """What it costs that so many tokens of each request are computed anew, of which there were `n` in that time."""
    price, rules = marker.price, marker.rules
    if price is None or rules is None or in_s < LEAST_S or not n_tokens:
        return None
    read = price.cached_read_per_mtok
    less = price.input_per_mtok - (price.input_per_mtok * rules.read_factor if read is None else read)
    return round(less * n_tokens / TOKENS_PER_PRICE * n / in_s * DAY_S, 2)
