"""Which requests share a key at a provider that sends a key's requests to one machine, as long as they are not too many.

Problem: OpenAI leads prompts by their `prompt_cache_key` to the machine that remembers them; of more than about 15 a minute
some go to machines that do not. Rule: one key is told apart in parts, each for so many conversations as make at most `MOST`
requests a minute together, at the pace of all that are under way. A conversation keeps its part; a new one goes to the first
part that has room. So as few machines as can be learn the static part, and none forgets a conversation.
Source: OpenAI's guide to prompt caching, for the 15. When wrong: conversations have paces of their own; each worker and
replica tells its own requests apart only. In a key's first minute the pace is guessed, until those who began have shown one,
which is the less the longer they are silent: a burst of questions that come alone is taken for as many agents.
"""

from typing import Final

MINUTE_S: Final = 60.0
MOST: Final = 14.0
PACE_OF_AGENTS, PACE_OF_OTHERS = 8.0, 2.0  # requests a minute of one conversation, as long as nobody knows
MAX_CONVERSATIONS: Final = 10_000


class Parts:
    """Those of one key. Pure state; instants never go backwards."""

    __slots__ = ("_began_at", "_begun_s", "_guess", "_live", "_minute", "_n", "_n_before", "_n_begun", "_n_live", "_of")

    def __init__(self, now: float, *, is_of_agents: bool) -> None:
        self._guess = PACE_OF_AGENTS if is_of_agents else PACE_OF_OTHERS
        self._of: dict[int, int] = {}  # conversation to part, the least lately heard of first
        self._live: dict[int, float] = {}  # those of the last minute, with when; in the same order
        self._n_live = [0]  # by part
        self._began_at = now
        self._n_begun = 0  # conversations
        self._begun_s = 0.0  # the sum of their beginnings, since that of the key
        self._minute = int(now // MINUTE_S)
        self._n = 0
        self._n_before = 0

    def part(self, conversation: int, now: float) -> int:
        """Where this request of a conversation belongs."""
        self._forget(now)
        part = self._of.pop(conversation, None)
        if part is None:
            most = max(1.0, MOST / self._pace(now))
            part = next((n for n, n_live in enumerate(self._n_live) if n_live + 1 <= most), len(self._n_live))
            if part == len(self._n_live):
                self._n_live.append(0)
            self._n_begun += 1
            self._begun_s += now - self._began_at
        if self._live.pop(conversation, None) is None:
            self._n_live[part] += 1
        self._live[conversation] = now
        self._of[conversation] = part
        self._n += 1
        return part

    def _pace(self, now: float) -> float:
        """Requests a minute of one conversation."""
        age_s = now - self._began_at
        if not self._live:
            return self._guess
        if age_s < MINUTE_S:  # of one that has this pace, half a step is always still to come
            heard_s = self._n_begun * (age_s + MINUTE_S / self._guess / 2) - self._begun_s
            return min(self._guess, max(1.0, MINUTE_S * (self._n + self._n_before) / heard_s))
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
