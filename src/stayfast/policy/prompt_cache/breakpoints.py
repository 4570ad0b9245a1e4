"""Cache breakpoints: where a prompt's static part ends, and which blocks are marked for the provider's cache.

Problem: a provider stores a marked prefix for a price, and reads it for requests that begin with exactly the same blocks. A
mark after a block that changes is paid for each time and never read. Rule, over the chains of block digests that were sent
to one model with one key and the same tools:

    static part   tools and instructions, if such prefixes recur; if not, the blocks before the first one that differs from
                  request to request. Few-shot examples belong to it once two requests share them and then differ
    marked        the end of the static part; in a conversation, the end of the previous request (its mark, so that it is
                  read) and the end of this one
    not marked    prefixes of fewer than 1.1 times the model's minimum of tokens, and prefixes that recur too rarely:
                  p(read) * (1 - read) < write - 1, with read and write prices relative to plain input

A prefix that does not recur within JUDGED_S counts as lost until it does. A diagnosis that instructions *seem* to change
comes earlier, once enough prefixes did not recur in the JUDGED_N requests after them. Marks wait for the minute, since many
applications that start together look the same until each sends its second request.
When wrong: requests of other workers and replicas are not seen, so a prefix may recur more often than counted here.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Annotated, Final, Literal, NamedTuple

from stayfast.core.setting import SettingDoc, check_bounds
from stayfast.policy.prompt_cache.rules import HOUR_S, MINUTES_S, ModelRules, PrefixRules

JUDGED_S: Final = 60.0
JUDGED_N: Final = 32  # requests
LEAST_SHARE: Final = 0.1  # of prefixes that recur: below it the instructions change, even if writes are free
N_JUDGED: Final = 5  # lost prefixes before instructions are said to change
MAX_INSPECTED: Final = 32
MANY: Final = 256  # judged prefixes, after which older ones count half
MAX_EXAMPLES: Final = 64  # blocks after the instructions that may become static
MAX_NODES: Final = 4000  # some megabytes
FLOOR_MARGIN: Final = 1.1
N_UNREAD: Final = 5  # answers in a row that wrote instead of reading, before marks are given up
N_GAPS: Final = 4


@dataclass(frozen=True, slots=True)
class PrefixConfig:
    """The providers' prompt caches on one route. `models`: rules that replace the built-in ones, by shell pattern."""

    mode: Annotated[Literal["off", "auto"], SettingDoc(
        "auto: reorder prompts for the provider's cache and mark them, unless the client did. off: unchanged.")] = "off"
    ttl: Annotated[Literal["auto", "5m", "1h"], SettingDoc(
        "Anthropic's lifetime of the static part; 1h costs twice as much to write. auto: 1h if it mostly returns after 5 "
        "minutes.")] = "5m"
    sort_tools: Annotated[bool, SettingDoc("Sort tools by name, so that the same tools are the same prompt.")] = True
    move_volatile: Annotated[bool, SettingDoc(
        "Move instruction blocks with a date, UUID or timestamp behind the others.")] = False
    leader_wait_s: Annotated[float, SettingDoc(
        "Longest wait for a request with the same prefix to fill the cache, at most a quarter of the remaining time. 0: "
        "none.", minimum=0, maximum=60)] = 2.0
    refresh_tokens_per_hour: Annotated[int, SettingDoc(
        "Input tokens per hour, per worker, for keeping recently used static parts in Anthropic's cache. 0: none.",
        minimum=0, maximum=1_000_000_000)] = 0
    models: Annotated[Mapping[str, ModelRules], SettingDoc(
        "Rules for models, by shell pattern on the upstream's name for it, like claude-next-*; the first match applies."
    )] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_bounds(self)


class PromptSizes(NamedTuple):
    """The shape of a prompt: `chain[n]` is the digest of its first n + 1 blocks, `tokens[n]` their estimated tokens. The
    counts of blocks and `markable` are those of `wire.prompt.PromptLayout`.
    """

    chain: Sequence[int]
    tokens: Sequence[float]
    n_static: int
    n_before: int
    n_end: int
    markable: Callable[[int], int]


class MarkDecision(NamedTuple):
    """The decision for one prompt. `at`: after how many blocks the marks stand. `n_static`: static blocks, as far as known.
    `is_known`: the static part was sent before, with a mark. `is_moving`: the instructions change between requests.
    """

    at: tuple[int, ...]
    n_static: int
    is_known: bool
    is_moving: bool
    is_long: bool  # the static part is stored for an hour


class PrefixReuse:
    """How often prefixes of one kind recur. Instants never go back."""

    __slots__ = ("_at", "_lost", "_n", "_open", "n_lost", "n_recurred", "n_within_hour", "n_within_minutes")

    def __init__(self) -> None:
        self._n = 0
        self._at: dict[int, float] = {}  # last use, oldest first
        self._open: dict[int, tuple[float, int]] = {}  # not recurred so far, oldest first: instant and request number
        self._lost: set[int] = set()
        self.n_recurred = 0.0
        self.n_lost = 0.0
        self.n_within_minutes = 0  # recurred within five minutes
        self.n_within_hour = 0  # recurred within an hour

    @property
    def share(self) -> float:
        """The share of prefixes that recur; optimistic while little is known."""
        return (self.n_recurred + 2) / (self.n_recurred + self.n_lost + 2)

    def seems_lost(self, least_share: float) -> bool:
        """Whether too few recur, if those that did not within JUDGED_N requests count as lost."""
        n_open = sum(n <= self._n - JUDGED_N for _, n in islice(self._open.values(), MAX_INSPECTED))
        n_lost = self.n_lost + n_open
        return n_lost >= N_JUDGED and (self.n_recurred + 2) / (self.n_recurred + n_lost + 2) < least_share

    def is_known(self, link: int, now: float, keeps_s: float) -> bool:
        at = self._at.get(link)
        return at is not None and now - at <= keeps_s

    def record_use(self, link: int, now: float) -> None:
        at = self._at.pop(link, None)
        self._at[link] = now
        self._n += 1
        if at is None:
            self._open[link] = now, self._n
        else:
            self._count_gap(now - at)
            if link in self._lost:
                self._lost.remove(link)
                self.n_lost = max(0.0, self.n_lost - 1)
                self.n_recurred += 1
            elif self._open.pop(link, None) is not None:
                self.n_recurred += 1
        self._expire_open(now)
        if len(self._at) > MAX_NODES:
            oldest = next(iter(self._at))
            del self._at[oldest]
            self._lost.discard(oldest)

    def _count_gap(self, gap_s: float) -> None:
        if gap_s <= MINUTES_S:
            self.n_within_minutes += 1
        elif gap_s <= HOUR_S:
            self.n_within_hour += 1
        if self.n_within_minutes + self.n_within_hour > MANY:
            self.n_within_minutes //= 2
            self.n_within_hour //= 2

    def _expire_open(self, now: float) -> None:
        while self._open:
            link, (at, _) = next(iter(self._open.items()))
            if now - at < JUDGED_S:
                break
            del self._open[link]
            self._lost.add(link)
            self.n_lost += 1
        if self.n_recurred + self.n_lost > MANY:
            self.n_recurred /= 2
            self.n_lost /= 2


class PromptHistory:
    """The prompts sent to one model with one key and one set of tools. Pure state; instants never go back."""

    __slots__ = ("_bare", "_ends", "_kids", "_n_unread", "_off_until", "_statics", "began_at", "n_seen", "seems_moving")

    def __init__(self, now: float) -> None:
        self._kids: dict[int, dict[int, float]] = {}  # blocks that followed a prefix, with their instants; oldest first
        self._statics = PrefixReuse()
        self._ends = PrefixReuse()
        self._bare: dict[int, bool] = {}  # static parts last sent without a mark, since they seemed to change
        self._n_unread = 0
        self._off_until = now
        self.began_at = now
        self.seems_moving = False  # the last prompt's instructions: an earlier, less certain `MarkDecision.is_moving`
        self.n_seen = 0

    def place_marks(self, shape: PromptSizes, rules: PrefixRules, min_tokens: float, config: PrefixConfig,
                    now: float) -> MarkDecision:
        """Decide the marks of a prompt. Call it once for each prompt sent."""
        self.n_seen += 1
        statics, ends, chain = self._statics, self._ends, shape.chain
        is_long = config.ttl == "1h" or (config.ttl == "auto" and statics.n_within_hour > max(N_GAPS,
                                                                                              statics.n_within_minutes))
        keeps_s = HOUR_S if is_long and rules.marks == "anthropic" else rules.keeps_s
        n_branch = self._find_branch(chain[:shape.n_static + MAX_EXAMPLES], now, keeps_s)
        n_static, is_known, was_marked = shape.n_static, False, False
        worth = (rules.write_factor - 1) / (1 - rules.read_factor)
        if n_static:
            link = chain[n_static - 1]
            is_known = statics.is_known(link, now, keeps_s)
            was_marked = is_known and self._bare.pop(link, True) is True
            statics.record_use(link, now)
        least_share = max(worth, LEAST_SHARE)
        is_moving = not is_known and statics.n_lost >= N_JUDGED and statics.share < least_share
        self.seems_moving = is_moving or (not is_known and statics.seems_lost(least_share))
        if is_moving:
            self._bare[chain[n_static - 1]] = False
            if len(self._bare) > MAX_NODES:
                del self._bare[next(iter(self._bare))]
            n_static = min(n_branch, n_static)
        wanted = [n_static, n_branch]
        goes_on = shape.n_before > 0 and ends.is_known(chain[shape.n_before - 1], now, HOUR_S)
        if goes_on:
            ends.record_use(chain[shape.n_before - 1], now)
        ends.record_use(chain[shape.n_end - 1], now)
        if rules.marks_end and (goes_on or ends.share > worth):
            wanted += [shape.n_before, shape.n_end]
        marks: tuple[int, ...] = ()
        if now >= self._off_until and rules.most_marks:  # if too many, the last ones count
            found, enough = {shape.markable(n) for n in wanted if n}, min_tokens * FLOOR_MARGIN
            marks = tuple(sorted(n for n in found if n and shape.tokens[n - 1] >= enough)[-rules.most_marks:])
        return MarkDecision(marks, n_static, was_marked, is_moving, is_long)

    def record_usage(self, *, was_known: bool, n_read: int, n_written: int, now: float) -> bool:
        """Record the usage of a marked prompt. True: marks are written but never read here, so none are set for an hour."""
        if n_read:
            self._n_unread = 0
        elif was_known and n_written:
            self._n_unread += 1
            if self._n_unread >= N_UNREAD:
                self._n_unread, self._off_until = 0, now + HOUR_S
                return True
        return False

    def _find_branch(self, chain: Sequence[int], now: float, keeps_s: float) -> int:
        """The number of leading blocks after which an earlier prompt continued differently, at the last such place."""
        kids, n_branch, parent = self._kids, 0, 0
        for n, link in enumerate(chain):
            after = kids.pop(parent, None) or {}
            after.pop(link, None)
            after[link] = now
            if len(after) > 2:
                del after[next(iter(after))]
            kids[parent] = after
            if len(after) > 1 and now - min(after.values()) <= keeps_s:
                n_branch = n
            parent = link
        while len(kids) > MAX_NODES:
            del kids[next(iter(kids))]
        return n_branch
