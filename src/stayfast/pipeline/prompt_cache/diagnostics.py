"""Findings about prompts that a provider's prefix cache cannot serve: which block changes, at which byte, at what cost.

The last few instructions of each kind of prompt are stored, if possible one of each application. A new prompt is compared
with the stored one that has the most bytes in common with it, at the beginning and the end. Findings contain lengths and
positions, never text. The cost per day is given after LEAST_S of samples: earlier the rate is a guess.
"""

from collections.abc import Iterator
from math import inf
from typing import Final

from stayfast.core.clock import Clock
from stayfast.core.events import PrefixFinding, Sink
from stayfast.policy.admission.price import TOKENS_PER_PRICE, Price
from stayfast.policy.prompt_cache.breakpoints import PromptHistory, PromptSizes
from stayfast.policy.prompt_cache.rules import PrefixRules
from stayfast.wire.prompt import PromptLayout, find_first_difference, n_common_bytes

MAX_STATIC_BYTES: Final = 512 * 1024  # of the stored instructions of one kind, together
MAX_APPLICATIONS: Final = 4  # stored instructions of one kind
SAME_SHARE: Final = 0.5  # of the shorter one's bytes: with so many in common at both ends, both are of one application
MAX_FINDINGS, MAX_STATIC_KINDS = 256, 32
DAY_S: Final = 86_400.0
FOUND_S: Final = 600.0  # after this time without another occurrence, a finding is over
LEAST_S: Final = 300.0  # shortest span from which a cost per day is computed
Kind = tuple[str, str, tuple[str, ...]]  # of prompts: upstream, model, set of tools


class MarkedPrompt:
    """One attempt's prompt as its provider's cache sees it: the upstream and model, the cache's rules, and the marked
    tokens.
    """

    __slots__ = ("history", "model", "n_marked", "price", "rules", "upstream")

    def __init__(self, upstream: str, model: str, price: Price | None) -> None:
        self.upstream = upstream
        self.model = model
        self.price = price
        self.history: PromptHistory | None = None
        self.rules: PrefixRules | None = None
        self.n_marked = 0.0  # tokens, estimated


class PrefixDiagnostics:
    """The findings of one route. `all`: by upstream, model and block, each with the instant of its last occurrence."""

    __slots__ = ("_clock", "_route", "_runs", "_sink", "_static_parts", "all")

    def __init__(self, route: str, clock: Clock, sink: Sink) -> None:
        self.all: dict[tuple[str, str, str], tuple[float, PrefixFinding]] = {}
        self._route = route
        self._clock = clock
        self._sink = sink
        self._runs: dict[tuple[str, str, str], tuple[float, int]] = {}  # start, and number of occurrences
        self._static_parts: dict[Kind, list[bytes]] = {}  # by application, least recently seen first

    def inspect(self, kind: Kind, laid: PromptLayout, shape: PromptSizes, marker: MarkedPrompt, *, is_moving: bool,
             seems_moving: bool) -> None:
        """Store the instructions; if they change, report how they differ from the last ones of the same application."""
        statics = [block.data for block in laid.blocks[:laid.n_static]]
        static_text, seen_texts = b"".join(statics), self._static_parts.pop(kind, [])
        self._static_parts[kind] = seen_texts
        if len(self._static_parts) > MAX_STATIC_KINDS:
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
        while len(seen_texts) > MAX_APPLICATIONS or sum(map(len, seen_texts)) > MAX_STATIC_BYTES:
            del seen_texts[0]

    def _compare(self, marker: MarkedPrompt, shape: PromptSizes, laid: PromptLayout, static_text: bytes,
                 before: bytes) -> None:
        at, word = find_first_difference(before, static_text)
        n_same = 0
        while n_same < laid.n_static and at >= (n_bytes := len(laid.blocks[n_same].data)):
            at -= n_bytes
            n_same += 1
        if n_same < laid.n_static:  # otherwise it is a prefix of the one before
            n_tokens = shape.tokens[laid.n_static - 1] - (shape.tokens[n_same - 1] if n_same else 0.0)
            self._record_finding(marker, "moves", n_tokens, laid.format_path(n_same), at=at, word=word)

    def note_unread(self, marker: MarkedPrompt) -> None:
        """The marked prefix is written to the cache, and never read from it."""
        self._record_finding(marker, "unread", marker.n_marked)

    def note_refused(self, marker: MarkedPrompt, member: str) -> None:
        """The upstream rejects a field that was added to a request."""
        self._record_finding(marker, "refused", 0.0, member)

    def current(self, now: float) -> Iterator[tuple[float, PrefixFinding]]:
        """Findings that are not over, each with the instant of its first occurrence."""
        return ((self._runs[name][0], found) for name, (seen_at, found) in self.all.items() if now - seen_at <= FOUND_S)

    def moving_tokens(self, now: float) -> dict[str, float]:
        """Tokens per request that a changing block makes uncacheable, by upstream; 0 after the finding is over."""
        moving = [(upstream, seen_at, found.n_tokens) for (upstream, _, _), (seen_at, found) in self.all.items()
                  if found.what == "moves"]
        rows = dict.fromkeys((upstream for upstream, _, _ in moving), 0.0)
        for upstream, seen_at, n_tokens in moving:
            if now - seen_at <= FOUND_S:
                rows[upstream] = max(rows[upstream], n_tokens)
        return rows

    def _record_finding(self, marker: MarkedPrompt, what: str, n_tokens: float, where: str = "", *, at: int = 0,
               word: str = "") -> None:
        """Emit a finding when it begins, and once more when its cost is known."""
        now, name = self._clock.now(), (marker.upstream, marker.model, where)
        seen_at, reported = self.all.pop(name, (-inf, None))
        is_new = reported is None or now - seen_at > FOUND_S
        began_at, n_before = (now, 0) if is_new else self._runs[name]
        self._runs[name] = began_at, n_before + 1
        if what == "unread" and marker.history is not None:  # detected now and then, but all requests pay for it
            began_at, n_before = marker.history.began_at, marker.history.n_seen
        found = PrefixFinding(self._route, marker.upstream, marker.model, what, where, at, word, round(n_tokens),
                              _estimate_usd_a_day(marker, n_tokens, n_before, now - began_at))
        self.all[name] = (now, found)
        if len(self.all) > MAX_FINDINGS:
            oldest = next(iter(self.all))
            del self.all[oldest], self._runs[oldest]
        if is_new or (reported is not None and reported.usd_a_day is None and found.usd_a_day is not None):
            self._sink.emit(found)


def _estimate_usd_a_day(marker: MarkedPrompt, n_tokens: float, n: int, in_s: float) -> float | None:
    """The cost per day of computing `n_tokens` anew in each request, with `n` requests in `in_s` seconds; None: unknown."""
    price, rules = marker.price, marker.rules
    if price is None or rules is None or in_s < LEAST_S or not n_tokens:
        return None
    read = price.cached_read_per_mtok
    less = price.input_per_mtok - (price.input_per_mtok * rules.read_factor if read is None else read)
    return round(less * n_tokens / TOKENS_PER_PRICE * n / in_s * DAY_S, 2)
