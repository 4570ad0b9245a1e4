"""What an engine is bound by now: its KV memory, prefills, decoding, or the gateway's own limit.

Problem: a slow engine with a queue has opposite remedies, depending on what is short. Rule, the first line that holds:

    no reading, or it shows neither waiting nor running         unknown
    it sleeps                                                   none
    KV used >= 0.9, and it queues or preempts                   memory
    queues, all places of its batch taken                       decode
    queues, KV used < 0.6 or not shown but places free          prefill
    queues, between                                             decode if gaps grow with the batch, else unknown
    no queue in it, but requests wait in the gateway            gateway
    no queue, gaps between tokens grow with its running ones    decode
    else                                                        none

Gaps grow if they are GROWN times those at a half or less of the running requests, by a mean that forgets. A change must show
in HOLD readings in a row, except that a missing reading is unknown at once. "Queues": at least one request waits.
Source: the runbook of "LLM Latency in Production: What Actually Moves the Needle"; vLLM preempts when no block is free, and
does not start a prompt that finds too few.
When wrong: readings are seconds old, so a burst shorter than HOLD of them is not found; memory that one long prompt waits
for looks like prefill while less than 0.6 is used; an engine that shows no queue is never bound by its own work.
"""

from enum import StrEnum
from math import log2
from typing import Final

from stayfast.core.engine_signals import EngineSignals

KV_FULL: Final = 0.9
KV_FREE: Final = 0.6
BATCH_FULL: Final = 0.95  # of the places of its batch
MIN_PREEMPTIONS_PER_S: Final = 0.05  # three a minute
GROWN: Final = 1.5
HOLD: Final = 3
FORGET: Final = 0.1  # weight of a new reading in the mean gap of a batch size
MIN_SEEN: Final = 3  # readings of a batch size before its mean counts


class Bound(StrEnum):
    MEMORY = "memory"
    PREFILL = "prefill"
    DECODE = "decode"
    GATEWAY = "gateway"
    NONE = "none"
    UNKNOWN = "unknown"


class GapsByBatch:
    """The usual time between two tokens, by the size of the batch in powers of two."""

    __slots__ = ("_means",)

    def __init__(self) -> None:
        self._means: dict[int, tuple[float, int]] = {}  # (seconds, readings)

    def learn(self, running: float, gap_s: float) -> None:
        size = int(log2(running + 1.0))
        mean_s, n = self._means.get(size, (gap_s, 0))
        self._means[size] = (mean_s + max(FORGET, 1.0 / (n + 1)) * (gap_s - mean_s), n + 1)

    def has_grown(self, running: float, gap_s: float) -> bool:
        """Whether this gap is GROWN times that of a smaller batch."""
        size = int(log2(running + 1.0))
        lower = [mean_s for known, (mean_s, n) in self._means.items() if known < size and n >= MIN_SEEN]
        return bool(lower) and gap_s >= GROWN * min(lower)


class BoundJudge:
    """Of one engine."""

    __slots__ = ("_candidate", "_gaps", "_n_seen", "bound")

    def __init__(self) -> None:
        self.bound = Bound.UNKNOWN
        self._candidate = Bound.UNKNOWN
        self._n_seen = 0
        self._gaps = GapsByBatch()

    def observe(self, signals: EngineSignals | None, n_queued: int) -> Bound:
        """A new reading; None: there is none. n_queued: requests that wait in the gateway for this engine."""
        seen = self._judge(signals, n_queued)
        self._n_seen = self._n_seen + 1 if seen is self._candidate else 1
        self._candidate = seen
        if signals is None or self._n_seen >= HOLD:
            self.bound = seen
        return self.bound

    def _judge(self, signals: EngineSignals | None, n_queued: int) -> Bound:
        if signals is None or (signals.waiting is None and signals.running is None):
            return Bound.UNKNOWN
        if signals.is_sleeping:
            return Bound.NONE
        grows = self._do_gaps_grow(signals)
        queues = bool(signals.waiting)
        if (signals.kv_used_ratio or 0.0) >= KV_FULL and (
                queues or (signals.preemptions_per_s or 0.0) >= MIN_PREEMPTIONS_PER_S):
            return Bound.MEMORY
        if queues:
            return _name_queue(signals, grows=grows)
        if n_queued and signals.waiting is not None:
            return Bound.GATEWAY
        return Bound.DECODE if grows else Bound.NONE

    def _do_gaps_grow(self, signals: EngineSignals) -> bool:
        running, gap_s = signals.running, signals.inter_token_s
        if not running or gap_s is None:
            return False
        grows = self._gaps.has_grown(running, gap_s)
        self._gaps.learn(running, gap_s)
        return grows

    def __repr__(self) -> str:
        return f"<BoundJudge: {self.bound}>"


def _name_queue(signals: EngineSignals, *, grows: bool) -> Bound:
    """Of an engine in which requests wait, with free memory."""
    places, used = signals.max_running, signals.kv_used_ratio
    if places and signals.running is not None and signals.running >= BATCH_FULL * places:
        return Bound.DECODE
    if used < KV_FREE if used is not None else bool(places):
        return Bound.PREFILL
    return Bound.DECODE if grows else Bound.UNKNOWN
