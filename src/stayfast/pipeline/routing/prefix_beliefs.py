"""What one route believes to be in the caches of its upstreams, and what their answers showed."""

from collections.abc import Mapping, Sequence
from math import inf

from msgspec import Struct

from stayfast.core.constants import BYTES_A_TOKEN
from stayfast.core.engine_signals import EngineSignals
from stayfast.core.types import Usage
from stayfast.policy.routing.affinity import BLOCK_BYTES, AffinityConfig, CacheTruth, SentPrefixes, blocks_of
from stayfast.policy.routing.replica_cost import FailurePenalty

TOLERANCE = 0.1  # of the prompt: an answer that shows so much less than believed is a sign of evictions
TOKENS_A_BLOCK = BLOCK_BYTES // BYTES_A_TOKEN


class SentPrompt(Struct, frozen=True, gc=False):
    """What was believed when one attempt began. share: of the prompt, in the cache; blocks: those of it."""

    share: float
    n_blocks: int
    oldest_at: float  # when the last of these blocks was sent before


class PrefixBeliefs:
    """By upstream. Belongs to one loop; nothing here awaits."""

    __slots__ = ("_config", "_failures", "_prefixes", "_truths", "checked", "tokens")

    def __init__(self, config: AffinityConfig) -> None:
        self._config = config
        self._prefixes: dict[str, SentPrefixes] = {}
        self._truths: dict[str, CacheTruth] = {}
        self._failures: dict[str, FailurePenalty] = {}
        self.tokens: dict[tuple[str, str], int] = {}  # of prompts sent, by upstream and kind: known, new
        self.checked: dict[tuple[str, str], int] = {}  # of answered prompts: input, cached, believed, or unreported

    def cached_tokens(self, name: str, blocks: Sequence[int], now: float) -> float:
        """The tokens of a prompt that are believed to be in the upstream's cache, estimated by their bytes."""
        return self._prefixes_of(name).n_known(blocks, now) * TOKENS_A_BLOCK if blocks else 0.0

    def failed_s(self, name: str, now: float) -> float:
        """What recent failures add to the upstream's cost."""
        penalty = self._failures.get(name)
        return penalty.seconds(now) if penalty is not None else 0.0

    def note_sent(self, name: str, blocks: Sequence[int], n_prompt: int, signals: EngineSignals | None,
                  now: float) -> SentPrompt:
        """An attempt begins. n_prompt: its bytes; signals: of its engine."""
        prefixes = self._prefixes_of(name)
        if signals is not None and signals.kv_tokens:
            prefixes.set_capacity(blocks_of(signals.kv_tokens))
        n_known = prefixes.n_known(blocks, now)
        oldest_at = prefixes.sent_at(blocks[n_known - 1]) if n_known else inf
        prefixes.record_sent(blocks, now)
        _count(self.tokens, name, "known", n_known * TOKENS_A_BLOCK)
        _count(self.tokens, name, "new", (n_prompt - n_known * BLOCK_BYTES) // BYTES_A_TOKEN)
        return SentPrompt(min(1.0, n_known * BLOCK_BYTES / max(1, n_prompt)), n_known, oldest_at)

    def note_failure(self, name: str, now: float) -> None:
        """An attempt failed by the upstream's fault."""
        penalty = self._failures.get(name)
        if penalty is None:
            self._failures[name] = penalty = FailurePenalty()
        penalty.record_failure(now)

    def note_unanswered(self, name: str, sent: SentPrompt, blocks: Sequence[int]) -> None:
        """An attempt ended without a first token: its new blocks may not have been computed."""
        self._prefixes_of(name).forget(blocks[sent.n_blocks:])

    def note_usage(self, name: str, sent: SentPrompt, usage: Usage) -> None:
        """An attempt succeeded; its usage shows what the upstream had in its cache."""
        truth = self.truths.get(name)
        if truth is None:
            self._truths[name] = truth = CacheTruth()
        n_input, n_cached = usage.input_total, min(usage.cached_read, usage.input_total)
        truth.add(n_input, n_cached, sent.share)
        if not truth.reports:
            _count(self.checked, name, "unreported", n_input)
            return
        _count(self.checked, name, "input", n_input)
        _count(self.checked, name, "cached", n_cached)
        _count(self.checked, name, "believed", int(sent.share * n_input))
        if not sent.n_blocks:
            return
        missing = sent.share - n_cached / n_input
        if missing <= 0:
            self._prefixes_of(name).record_confirmed()
        elif missing > TOLERANCE and missing * n_input > 2 * TOKENS_A_BLOCK:
            self._prefixes_of(name).record_evicted(sent.oldest_at)

    @property
    def truths(self) -> Mapping[str, CacheTruth]:
        """Hit rates by upstream: of those with answers."""
        return self._truths

    @property
    def n_blocks(self) -> int:
        """Prompt blocks with a known upstream."""
        return sum(map(len, self._prefixes.values()))

    def _prefixes_of(self, name: str) -> SentPrefixes:
        found = self._prefixes.get(name)
        if found is None:
            self._prefixes[name] = found = SentPrefixes(self._config.most_blocks, self._config.ttl_s)
        return found

    def __repr__(self) -> str:
        return f"<PrefixBeliefs {self._prefixes!r} {self._truths!r}>"


def _count(counts: dict[tuple[str, str], int], name: str, kind: str, n: int) -> None:
    counts[name, kind] = counts.get((name, kind), 0) + n
