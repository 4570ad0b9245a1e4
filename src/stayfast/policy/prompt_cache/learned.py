"""What is learned from an upstream's answers about its prompt cache, and decisions based on it.

Minimum length. Problem: tables of minimum lengths and supported fields are outdated, or made for another endpoint. Rule: two
answers that neither wrote nor read a marked prefix raise the minimum to its length; a field that an error names is omitted,
if the same request succeeds without it. Both hold for an hour, for one model of one upstream. When wrong: the cause may be a
provider's bad minute. So the minimum rises to MOST_TIMES the table's at most, and falls once a shorter prompt is cached.

Refreshing prefixes. Problem: an entry expires five minutes after its last use, and the next request pays for all of it.
Rule: a prefix with MIN_USES or more recent uses is requested MARGIN_S before it expires, within a budget of tokens per hour.
It is given up after MOST refreshes without a real use: each costs a tenth of the prompt, so by then they cost as much as one
write, and never more than twice the minimum possible cost. Source: the ski-rental rule; Anthropic's prices (write 1.25, read
0.1).

Splitting cache keys. Problem: OpenAI routes prompts by their `prompt_cache_key` to the machine with the cached prefix; above
about 15 requests a minute, some go to other machines. Rule: a key is split into parts, each for as many conversations as
make at most `MOST_KEYS` requests a minute at the present pace. A conversation stays in its part. Source: OpenAI's guide to
prompt caching. When wrong: conversations differ in pace, and each worker splits by its own requests only. In a key's first
minute the pace is a guess; a burst of single questions is taken for as many agents.
"""

from collections.abc import Hashable
from dataclasses import replace
from typing import Final, NamedTuple

from stayfast.policy.prompt_cache.rules import HOUR_S, PrefixRules

N_SILENT: Final = 2
MOST_TIMES: Final = 4.0
KEY: Final = "prompt_cache_key"


class TokenFloor:
    """The minimum length that one model of one upstream caches. Instants never go back."""

    __slots__ = ("_least", "_n_silent", "_raised", "_silent", "_until")

    def __init__(self, tokens: float) -> None:
        self._least = tokens
        self._n_silent = 0
        self._silent = 0.0  # length of the marked prefix that was not cached
        self._raised = tokens
        self._until = 0.0

    def tokens(self, now: float) -> float:
        return self._raised if now < self._until else self._least

    def record_usage(self, n_marked: float, *, n_read: int, n_written: int, now: float) -> None:
        """Record the usage of a prompt with `n_marked` marked tokens."""
        if n_read or n_written:
            self._n_silent = 0
            if n_marked <= self._silent:
                self._until = now
            return
        self._n_silent += 1
        if self._n_silent >= N_SILENT:
            self._n_silent = 0
            self._silent = n_marked
            self._raised = max(self.tokens(now), min(n_marked, self._least * MOST_TIMES))
            self._until = now + HOUR_S


class TokenScale:
    """Bytes of JSON per token of one model: 4, then learned."""

    __slots__ = ("bytes_a_token",)

    def __init__(self) -> None:
        self.bytes_a_token = 4.0

    def record_usage(self, n_bytes: int, n_tokens: int) -> None:
        """Record the upstream's token count of a prompt."""
        if n_tokens and n_bytes:
            self.bytes_a_token += 0.1 * (min(20.0, max(1.0, n_bytes / n_tokens)) - self.bytes_a_token)


class RejectedFields:
    """Request fields that one model of one upstream rejects, each omitted for an hour."""

    __slots__ = ("_until",)

    def __init__(self) -> None:
        self._until: dict[str, float] = {}

    def add(self, member: str, now: float) -> None:
        """Record that the field was rejected, and the request without it succeeded."""
        self._until[member] = now + HOUR_S

    def apply_to(self, rules: PrefixRules, now: float) -> PrefixRules:
        """The rules without the rejected fields."""
        for member, until in self._until.items():
            if now < until:
                rules = (replace(rules, has_key=False) if member == KEY
                         else replace(rules, marks="none", most_marks=0, marks_end=False))
        return rules


MIN_USES: Final = 3
MOST: Final = 11
MARGIN_S: Final = 45.0
AGAIN_S: Final = 20.0  # a refresh without an answer after this time has failed
MAX_PREFIXES: Final = 256


class PrefixRefresh(NamedTuple):
    """A request that refreshes a prefix. `keeps_s`: how long the provider then stores it."""

    upstream: str
    model: str
    body: bytes
    n_tokens: float
    keeps_s: float


class _HotPrefix:
    __slots__ = ("at", "n_refreshes", "n_used", "opening", "refreshed_at")

    def __init__(self, opening: PrefixRefresh, at: float) -> None:
        self.opening = opening
        self.at = at  # last use, refreshes included
        self.n_used = 1
        self.n_refreshes = 0  # since the last real use
        self.refreshed_at = float("-inf")

    @property
    def ends_at(self) -> float:
        return self.at + self.opening.keeps_s


class HotPrefixes:
    """The prefixes of one route. Pure state; instants never go back."""

    __slots__ = ("_per_hour", "_prefixes", "_tokens", "_tokens_at")

    def __init__(self, tokens_per_hour: float) -> None:
        self._per_hour = tokens_per_hour
        self._tokens = float(tokens_per_hour)
        self._tokens_at = 0.0
        self._prefixes: dict[Hashable, _HotPrefix] = {}  # least recently used first

    def record_use(self, key: Hashable, now: float) -> bool:
        """Record a request with this prefix; False if the prefix is unknown and must be added first."""
        prefix = self._prefixes.pop(key, None)
        if prefix is None:
            return False
        prefix.at, prefix.n_refreshes = now, 0
        prefix.n_used += 1
        self._prefixes[key] = prefix
        return True

    def add(self, opening: PrefixRefresh, key: Hashable, now: float) -> None:
        self._prefixes[key] = _HotPrefix(opening, now)
        if len(self._prefixes) > MAX_PREFIXES:
            del self._prefixes[next(iter(self._prefixes))]

    def take_due(self, now: float) -> tuple[Hashable, PrefixRefresh] | None:
        """The due prefix that expires first, if any. It counts as refreshed, and its tokens as spent."""
        self._tokens = min(self._per_hour, self._tokens + (now - self._tokens_at) / HOUR_S * self._per_hour)
        self._tokens_at = now
        found: tuple[Hashable, _HotPrefix] | None = None
        for key, prefix in list(self._prefixes.items()):
            left_s = prefix.ends_at - now
            if left_s <= 0:
                del self._prefixes[key]
            elif left_s <= MARGIN_S and self._may_refresh(prefix, now) and (found is None
                                                                            or left_s < found[1].ends_at - now):
                found = key, prefix
        if found is None:
            return None
        key, prefix = found
        self._tokens -= prefix.opening.n_tokens
        prefix.refreshed_at, prefix.n_refreshes = now, prefix.n_refreshes + 1
        return key, prefix.opening

    def _may_refresh(self, prefix: _HotPrefix, now: float) -> bool:
        return (prefix.n_used >= MIN_USES and prefix.n_refreshes < MOST and now - prefix.refreshed_at >= AGAIN_S
                and prefix.opening.n_tokens <= self._tokens)

    def record_refresh(self, key: Hashable) -> None:
        """Record a successful refresh; the provider's time counts from its request."""
        prefix = self._prefixes.get(key)
        if prefix is not None:
            prefix.at = max(prefix.at, prefix.refreshed_at)


MINUTE_S: Final = 60.0
MOST_KEYS: Final = 14.0
PACE_OF_AGENTS, PACE_OF_OTHERS = 8.0, 2.0  # assumed requests a minute of one conversation
MAX_CONVERSATIONS: Final = 10_000


class CacheKeyParts:
    """The parts of one key. Pure state; instants never go back."""

    __slots__ = ("_began_at", "_guess", "_live", "_minute", "_n", "_n_before", "_n_live", "_n_started", "_of",
                 "_started_sum_s")

    def __init__(self, now: float, *, is_of_agents: bool) -> None:
        self._guess = PACE_OF_AGENTS if is_of_agents else PACE_OF_OTHERS
        self._of: dict[int, int] = {}  # conversation to part, least recently used first
        self._live: dict[int, float] = {}  # conversations of the last minute, with their last request; in the same order
        self._n_live = [0]  # by part
        self._began_at = now
        self._n_started = 0  # conversations
        self._started_sum_s = 0.0  # the sum of their start times, relative to `_began_at`
        self._minute = int(now // MINUTE_S)
        self._n = 0  # requests in this minute
        self._n_before = 0

    def part_for(self, conversation: int, now: float) -> int:
        """The part for this request of a conversation."""
        self._expire(now)
        part = self._of.pop(conversation, None)
        if part is None:
            most = max(1.0, MOST_KEYS / self._requests_per_minute(now))
            part = next((n for n, n_live in enumerate(self._n_live) if n_live + 1 <= most), len(self._n_live))
            if part == len(self._n_live):
                self._n_live.append(0)
            self._n_started += 1
            self._started_sum_s += now - self._began_at
        if self._live.pop(conversation, None) is None:
            self._n_live[part] += 1
        self._live[conversation] = now
        self._of[conversation] = part
        self._n += 1
        return part

    def _requests_per_minute(self, now: float) -> float:
        age_s = now - self._began_at
        if not self._live:
            return self._guess
        if age_s < MINUTE_S:  # on average, half an interval until the next request is still to come
            observed_s = self._n_started * (age_s + MINUTE_S / self._guess / 2) - self._started_sum_s
            return min(self._guess, max(1.0, MINUTE_S * (self._n + self._n_before) / observed_s))
        share_before = 1 - now % MINUTE_S / MINUTE_S
        return max(1.0, (self._n + self._n_before * share_before) / len(self._live))

    def _expire(self, now: float) -> None:
        minute = int(now // MINUTE_S)
        if minute != self._minute:
            self._n_before = self._n if minute == self._minute + 1 else 0
            self._minute, self._n = minute, 0
        while self._live:
            conversation, at = next(iter(self._live.items()))
            if now - at < MINUTE_S:
                break
            del self._live[conversation]
            self._n_live[self._of[conversation]] -= 1
        while len(self._of) > max(MAX_CONVERSATIONS, len(self._live)):  # live conversations are the newest
            del self._of[next(iter(self._of))]
