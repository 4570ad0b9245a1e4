"""Arrival times of an answer's parts: the gaps between them, and the stalls among the gaps.

A gap is the time between two reads with content; it is counted at the later one. A stall is a gap that a reader notices:
longer than STALL_AFTER_S, and longer than STALL_TIMES_MEAN times the mean of the gaps before it, without earlier stalls (a
model that is always slow does not stall). The wait in which an answer was cut off may be a stall, too, but is no gap.
"""

from collections.abc import Sequence
from operator import sub
from typing import Final

from msgspec import Struct

from stayfast.core.events import Fact, Sink, Stall, TokenGaps
from stayfast.core.types import AnswerSummary

STALL_AFTER_S = 1.0  # a reader's attention lasts about this long (Nielsen, 1993)
STALL_TIMES_MEAN = 8.0
GAPS_PER_EVENT = 256  # sorting them together costs a sink a tenth of a microsecond per gap


class _Silent:
    """The null object of a sink."""

    __slots__ = ()

    def emit(self, fact: Fact) -> None:
        """Drop the fact."""


SILENT: Final[Sink] = _Silent()


class SilenceClock(Struct, eq=False):
    """How long an answer has made no progress, over all reads since. Comments and pings show that a connection is open, not
    that an answer is being written. Time in which the client reads nothing does not count.
    """

    n_progress: int  # of the answer, as of the last read
    seconds: float = 0.0

    def note_content(self, summary: AnswerSummary) -> None:
        self.seconds = 0.0
        self.n_progress = summary.n_progress

    def note_read(self, summary: AnswerSummary, waited_s: float) -> None:
        """A read without content ended, after `waited_s`."""
        if summary.n_progress != self.n_progress:
            self.note_content(summary)
        else:
            self.seconds += waited_s

    def __repr__(self) -> str:
        return f"<SilenceClock {self.seconds:.3g} s>"


class TokenTimings(Struct, eq=False):
    """The instants of one answer. Owned by the task that reads it; on the way only instants are noted."""

    _route: str
    _upstream: str
    _sink: Sink
    first_at: float | None = None
    stalls: list[Stall] = []  # after the end; before it, those among the reported gaps
    _times: list[float] = []  # of the latest reported part, and of each one since
    _n_gaps: int = 0  # reported already
    _longest_s: float = 0.0
    _stalled_s: float = 0.0

    @property
    def last_at(self) -> float:
        return self._times[-1] if self._times else 0.0

    def start(self, now: float) -> None:
        """The first content arrived."""
        self.first_at = now
        self._times = [now]

    def note_content(self, now: float) -> None:
        times = self._times
        times.append(now)
        if len(times) > GAPS_PER_EVENT:
            self._report()

    def end(self, now: float, *, is_whole: bool) -> None:
        """The answer is over. If it is not whole, it ended during a wait."""
        if len(self._times) > 1:
            self._report()
        if self.first_at is not None and not is_whole:
            wait_s = now - self.last_at
            if wait_s > STALL_AFTER_S:
                self._judge(wait_s, self.last_at, self._n_gaps)
                self._longest_s = max(self._longest_s, wait_s)

    @property
    def gap_max_s(self) -> float | None:
        """The longest gap; None: all parts arrived at once."""
        pending_s = max(_gaps_s(self._times)) if len(self._times) > 1 else 0.0
        return max(self._longest_s, pending_s) or None

    def tpot_s(self, n_output_tokens: int) -> float | None:
        """Seconds for each token after the first; None: unknown."""
        if self.first_at is None or n_output_tokens < 2:
            return None
        return (self._times[-1] - self.first_at) / (n_output_tokens - 1) or None

    def _judge(self, gap_s: float, began_at: float, n_before: int) -> None:
        """n_before: the gaps before this one."""
        assert self.first_at is not None
        before_s = began_at - self.first_at
        if n_before > len(self.stalls):
            n_before, before_s = n_before - len(self.stalls), before_s - self._stalled_s
        if not n_before or gap_s > STALL_TIMES_MEAN * before_s / n_before:
            self._stalled_s += gap_s
            self.stalls.append(Stall(began_at, gap_s))

    def _report(self) -> None:
        times, n_before = self._times, self._n_gaps
        gaps_s, self._times = _gaps_s(times), times[-1:]
        self._n_gaps += len(gaps_s)
        longest_s = max(gaps_s)
        if longest_s > STALL_AFTER_S:
            for n, gap_s in enumerate(gaps_s):
                if gap_s > STALL_AFTER_S:
                    self._judge(gap_s, times[n], n_before + n)
        self._longest_s = max(self._longest_s, longest_s)
        self._sink.emit(TokenGaps(self._route, self._upstream, gaps_s))

    def __repr__(self) -> str:
        n_gaps = self._n_gaps + len(_gaps_s(self._times))
        return f"<TokenTimings of {self._upstream}: {n_gaps} gaps, {len(self.stalls)} stalls>"


def _gaps_s(times: Sequence[float]) -> list[float]:
    return [*map(sub, times[1:], times)]
