"""Arrival times of an answer's parts: the gaps between them, and the stalls among the gaps.

A gap is the time between two reads with content; it is counted at the later one. A stall is a gap that a reader notices:
longer than STALL_AFTER_S, and longer than STALL_TIMES_MEAN times the mean of the gaps before it, without earlier stalls (a
model that is always slow does not stall). The wait in which an answer was cut off may be a stall, too, but is no gap.
"""

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


class SilenceClock:
    """How long an answer has made no progress, over all reads since. Comments and pings show that a connection is open, not
    that an answer is being written. Time in which the client reads nothing does not count.
    """

    __slots__ = ("_n_progress", "seconds")

    def __init__(self, summary: AnswerSummary) -> None:
        self.seconds = 0.0
        self._n_progress = summary.n_progress

    def note_content(self, summary: AnswerSummary) -> None:
        self.seconds = 0.0
        self._n_progress = summary.n_progress

    def note_read(self, summary: AnswerSummary, waited_s: float) -> None:
        """A read without content ended, after `waited_s`."""
        if summary.n_progress != self._n_progress:
            self.note_content(summary)
        else:
            self.seconds += waited_s

    def __repr__(self) -> str:
        return f"<SilenceClock {self.seconds:.3g} s>"


class TokenTimings(Struct, eq=False):
    """The instants of one answer. Owned by the task that reads it; costs two additions and a comparison a part."""

    _route: str
    _upstream: str
    _sink: Sink
    first_at: float | None = None
    last_at: float = 0.0
    stalls: list[Stall] = []
    _gaps_s: list[float] = []
    _n_gaps: int = 0  # emitted already
    _longest_s: float = 0.0
    _stalled_s: float = 0.0

    def start(self, now: float) -> None:
        """The first content arrived."""
        self.first_at = self.last_at = now

    def note_content(self, now: float) -> None:
        gap_s = now - self.last_at
        if gap_s > STALL_AFTER_S:
            self._judge(gap_s)
        self.last_at = now
        gaps_s = self._gaps_s
        gaps_s.append(gap_s)
        if len(gaps_s) == GAPS_PER_EVENT:
            self._report()

    def end(self, now: float, *, is_whole: bool) -> None:
        """The answer is over. If it is not whole, it ended during a wait."""
        if self._gaps_s:
            self._report()
        if self.first_at is not None and not is_whole:
            wait_s = now - self.last_at
            if wait_s > STALL_AFTER_S:
                self._judge(wait_s)
                self._longest_s = max(self._longest_s, wait_s)

    @property
    def gap_max_s(self) -> float | None:
        """The longest gap; None: all parts arrived at once."""
        longest_s = max(self._gaps_s, default=0.0)
        return max(longest_s, self._longest_s) or None

    def tpot_s(self, n_output_tokens: int) -> float | None:
        """Seconds for each token after the first; None: unknown."""
        if self.first_at is None or self.last_at <= self.first_at or n_output_tokens < 2:
            return None
        return (self.last_at - self.first_at) / (n_output_tokens - 1)

    def _judge(self, gap_s: float) -> None:
        assert self.first_at is not None
        n_before = self._n_gaps + len(self._gaps_s)
        before_s = self.last_at - self.first_at
        if n_before > len(self.stalls):
            n_before, before_s = n_before - len(self.stalls), before_s - self._stalled_s
        if not n_before or gap_s > STALL_TIMES_MEAN * before_s / n_before:
            self._stalled_s += gap_s
            self.stalls.append(Stall(self.last_at, gap_s))

    def _report(self) -> None:
        gaps_s, self._gaps_s = self._gaps_s, []
        self._n_gaps += len(gaps_s)
        self._longest_s = max(self._longest_s, *gaps_s)
        self._sink.emit(TokenGaps(self._route, self._upstream, gaps_s))

    def __repr__(self) -> str:
        return f"<TokenTimings of {self._upstream}: {self._n_gaps + len(self._gaps_s)} gaps, {len(self.stalls)} stalls>"
