"""What an upstream's answers tell of its cache of prompts' beginnings: from which length on it keeps them, how many bytes a
token has, and what it will not be told.

Problem: tables of floors and of fields are old, wrong, or of another endpoint than the one that answers to a model's name.
Rule: two answers that neither wrote nor read what was marked raise the floor to that length; a field that a refusal names,
where the same request without it is answered, is left out. Both hold for an hour, for one model of one upstream.
When wrong: silence may be a provider's bad minute. So the floor rises to MOST_TIMES what the table says at most, and a
prompt no longer than the silent ones that is kept after all takes it back.

Which beginnings of prompts are asked for again before their provider forgets them.

Problem: an entry lives five minutes from its last use, and the first one who comes after six pays for all of it, and waits.
Rule: what was used at least MIN_USES times, and lately, is asked for again MARGIN_S before its end, as long as there is
budget: so many tokens an hour. What ends first goes first; one that failed is asked for again after AGAIN_S, and counts as
used only when an answer came. It is given up after MOST times without a real use: each costs a tenth of the prompt, so by
then as much has been spent as one new write costs, and never more than twice the least that could have been.
Source: the ski-rental rule; Anthropic's prices (a write 1.25, a read 0.1), its requests with max_tokens 0.
When wrong: who comes once a day pays MOST reads for nothing.

Which requests share a key at a provider that sends a key's requests to one machine, as long as they are not too many.

Problem: OpenAI leads prompts by their `prompt_cache_key` to the machine that remembers them; of more than about 15 a minute
some go to machines that do not. Rule: one key is told apart in parts, each for so many conversations as make at most `MOST`
requests a minute together, at the pace of all that are under way. A conversation keeps its part; a new one goes to the first
part that has room. So as few machines as can be learn the static part, and none forgets a conversation.
Source: OpenAI's guide to prompt caching, for the 15. When wrong: conversations have paces of their own; each worker and
replica tells its own requests apart only. In a key's first minute the pace is guessed, until those who began have shown one,
which is the less the longer they are silent: a burst of questions that come alone is taken for as many agents.
"""

from collections.abc import Hashable
from dataclasses import replace
from typing import Final, NamedTuple

from stayfast.policy.prompt_cache.rules import HOUR_S, PrefixRules

N_SILENT: Final = 2
MOST_TIMES: Final = 4.0
KEY: Final = "prompt_cache_key"


class TokenFloor:
    """The length from which one model of one upstream keeps what is marked. Instants never go backwards."""

    __slots__ = ("_least", "_n_silent", "_raised", "_silent", "_until")

    def __init__(self, tokens: float) -> None:
        self._least = tokens
        self._n_silent = 0
        self._silent = 0.0  # how much was marked when it said nothing
        self._raised = tokens
        self._until = 0.0

    def tokens(self, now: float) -> float:
        return self._raised if now < self._until else self._least

    def note_usage(self, n_marked: float, *, n_read: int, n_written: int, now: float) -> None:
        """An answer to a prompt of which so many tokens were marked."""
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
    """How many bytes of JSON a token has, at one model: about 4, until its answers have told better."""

    __slots__ = ("bytes_a_token",)

    def __init__(self) -> None:
        self.bytes_a_token = 4.0

    def note_usage(self, n_bytes: int, n_tokens: int) -> None:
        """A prompt of so many bytes was counted."""
        if n_tokens and n_bytes:
            self.bytes_a_token += 0.1 * (min(20.0, max(1.0, n_bytes / n_tokens)) - self.bytes_a_token)


class Refusals:
    """Members of a request that one model of one upstream does not take, with when they are tried again."""

    __slots__ = ("_until",)

    def __init__(self) -> None:
        self._until: dict[str, float] = {}

    def add(self, member: str, now: float) -> None:
        """It was refused, and the same request without it was answered."""
        self._until[member] = now + HOUR_S

    def without(self, rules: PrefixRules, now: float) -> PrefixRules:
        """The rules, as far as they can be said there."""
        for member, until in self._until.items():
            if now < until:
                rules = (replace(rules, has_key=False) if member == KEY
                         else replace(rules, marks="none", most_marks=0, marks_end=False))
        return rules


MIN_USES: Final = 3
MOST: Final = 11
MARGIN_S: Final = 45.0
AGAIN_S: Final = 20.0  # nobody waits for an answer longer than that
MAX_KEPT: Final = 256


class Opening(NamedTuple):
    """A request that asks for a beginning, where, and for how long it is then kept."""

    upstream: str
    model: str
    body: bytes
    n_tokens: float
    keeps_s: float


class _HotPrefix:
    __slots__ = ("at", "n_refreshes", "n_used", "opening", "refreshed_at")

    def __init__(self, opening: Opening, at: float) -> None:
        self.opening = opening
        self.at = at  # of its last use, ours included
        self.n_used = 1
        self.n_refreshes = 0  # by us, since somebody else used it
        self.refreshed_at = float("-inf")  # by us

    @property
    def ends_at(self) -> float:
        return self.at + self.opening.keeps_s


class HotPrefixes:
    """One route's. Pure state; instants never go backwards."""

    __slots__ = ("_per_hour", "_prefixes", "_tokens", "_tokens_at")

    def __init__(self, tokens_per_hour: float) -> None:
        self._per_hour = tokens_per_hour
        self._tokens = float(tokens_per_hour)
        self._tokens_at = 0.0
        self._prefixes: dict[Hashable, _HotPrefix] = {}  # the least lately used first

    def used(self, key: Hashable, now: float) -> bool:
        """A request begins with it; False where it must be added first."""
        prefix = self._prefixes.pop(key, None)
        if prefix is None:
            return False
        prefix.at, prefix.n_refreshes = now, 0
        prefix.n_used += 1
        self._prefixes[key] = prefix
        return True

    def add(self, opening: Opening, key: Hashable, now: float) -> None:
        """One that was not known."""
        self._prefixes[key] = _HotPrefix(opening, now)
        if len(self._prefixes) > MAX_KEPT:
            del self._prefixes[next(iter(self._prefixes))]

    def take(self, now: float) -> tuple[Hashable, Opening] | None:
        """Of what is due now, that which ends first; it counts as asked, and its tokens as spent."""
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

    def answered(self, key: Hashable) -> None:
        """An answer came to what was taken: it is kept from when it was asked for."""
        prefix = self._prefixes.get(key)
        if prefix is not None:
            prefix.at = max(prefix.at, prefix.refreshed_at)


MINUTE_S: Final = 60.0
MOST_KEYS: Final = 14.0
PACE_OF_AGENTS, PACE_OF_OTHERS = 8.0, 2.0  # requests a minute of one conversation, as long as nobody knows
MAX_CONVERSATIONS: Final = 10_000


class PromptParts:
    """Those of one key. Pure state; instants never go backwards."""

    __slots__ = ("_began_at", "_guess", "_live", "_minute", "_n", "_n_before", "_n_live", "_n_started", "_of",
                 "_started_sum_s")

    def __init__(self, now: float, *, is_of_agents: bool) -> None:
        self._guess = PACE_OF_AGENTS if is_of_agents else PACE_OF_OTHERS
        self._of: dict[int, int] = {}  # conversation to part, the least lately heard of first
        self._live: dict[int, float] = {}  # those of the last minute, with when; in the same order
        self._n_live = [0]  # by part
        self._began_at = now
        self._n_started = 0  # conversations
        self._started_sum_s = 0.0  # the sum of their beginnings, since that of the key
        self._minute = int(now // MINUTE_S)
        self._n = 0
        self._n_before = 0

    def part(self, conversation: int, now: float) -> int:
        """Where this request of a conversation belongs."""
        self._forget(now)
        part = self._of.pop(conversation, None)
        if part is None:
            most = max(1.0, MOST_KEYS / self._pace(now))
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

    def _pace(self, now: float) -> float:
        age_s = now - self._began_at
        if not self._live:
            return self._guess
        if age_s < MINUTE_S:  # of one that has this pace, half a step is always still to come
            observed_s = self._n_started * (age_s + MINUTE_S / self._guess / 2) - self._started_sum_s
            return min(self._guess, max(1.0, MINUTE_S * (self._n + self._n_before) / observed_s))
        share_before = 1 - now % MINUTE_S / MINUTE_S
        return max(1.0, (self._n + self._n_before * share_before) / len(self._live))

    def _forget(self, now: float) -> None:
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
        while len(self._of) > max(MAX_CONVERSATIONS, len(self._live)):  # the live ones are its newest
            del self._of[next(iter(self._of))]
