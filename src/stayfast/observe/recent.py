"""The last requests, kept as the very facts that were told of them, for `stayfast explain` and whoever looks on.

Two rings: all requests, and those worth a look (slow, failed, left, degraded, stalled, tried more than once), which busy
traffic would push out of the first within seconds. Nothing is computed until somebody asks.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from stayfast.core.events import Fact, RequestDone

_BYTES_PER_FACT = 2000  # a request with its seven stages and one attempt, measured
_BYTES_PER_PART = 200  # another attempt, or a stall


@dataclass(frozen=True, slots=True)
class RecentConfig:
    """How many requests each ring keeps, in numbers and in memory; 0 keeps none."""

    size: int = 1000
    slow_s: float = 2.0  # to the first token
    max_bytes: int = 8 * 1024 * 1024

    def __post_init__(self) -> None:
        if not 0 <= self.size <= 100_000:
            raise ValueError(f"size must be from 0 to 100000, not {self.size}")
        if not self.slow_s > 0:
            raise ValueError(f"slow_s must be more than 0, not {self.slow_s}")
        if not 64 * 1024 <= self.max_bytes <= 1024 * 1024 * 1024:
            raise ValueError(f"max_bytes must be from 65536 to 1073741824, not {self.max_bytes}")


def weight(fact: RequestDone) -> int:
    """About how many bytes a fact keeps from being freed; what a client or an upstream chose the length of is counted."""
    n_bytes = _BYTES_PER_FACT + 4 * (len(fact.model) + len(fact.error or "") + len(fact.finish_reason or ""))
    for attempt in fact.attempts:
        n_bytes += _BYTES_PER_PART * (1 + len(attempt.stalls))
    return n_bytes


class Ring:
    """The newest facts, within both bounds."""

    __slots__ = ("_config", "_facts", "_n_bytes")

    def __init__(self, config: RecentConfig) -> None:
        self._config = config
        self._facts: deque[tuple[RequestDone, int]] = deque()
        self._n_bytes = 0

    def add(self, fact: RequestDone, n_bytes: int) -> None:
        """Keep it, and let go of the oldest that no longer fit."""
        facts, config = self._facts, self._config
        facts.append((fact, n_bytes))
        self._n_bytes += n_bytes
        while len(facts) > config.size or (self._n_bytes > config.max_bytes and facts):
            self._n_bytes -= facts.popleft()[1]

    def __iter__(self) -> Iterator[RequestDone]:
        """Newest first."""
        return (fact for fact, _ in reversed(self._facts))

    def __len__(self) -> int:
        return len(self._facts)


class Recent:
    """A listener that keeps both rings. One loop's."""

    def __init__(self, config: RecentConfig) -> None:
        self._config = config
        self._all = Ring(config)
        self._notable = Ring(config)

    def take(self, facts: Sequence[Fact]) -> None:
        """Take some facts."""
        for fact in facts:
            if isinstance(fact, RequestDone):
                n_bytes = weight(fact)
                self._all.add(fact, n_bytes)
                if self.is_notable(fact):
                    self._notable.add(fact, n_bytes)

    def is_notable(self, fact: RequestDone) -> bool:
        """Whether somebody may want to know why."""
        return (fact.status >= 400 or len(fact.attempts) > 1 or fact.over_stage is not None or fact.degraded is not None
                or (fact.ttft_s is not None and fact.ttft_s >= self._config.slow_s)
                or bool(fact.attempts and fact.attempts[0].stalls))

    def named(self, request_id: str) -> Iterator[RequestDone]:
        """The requests that are still kept under this id (clients choose it, so there may be several), newest first."""
        return (fact for ring in (self._all, self._notable) for fact in ring if fact.request_id == request_id)

    def newest(self, *, is_notable: bool = False) -> Iterator[RequestDone]:
        """All that are kept, newest first."""
        return iter(self._notable if is_notable else self._all)
