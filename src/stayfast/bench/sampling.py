"""From an answer as it came to a row of the report."""

from stayfast.bench.exchange import Exchange
from stayfast.bench.samples import Sample
from stayfast.bench.target import Asking


class Tally:
    """Makes one target's samples, and knows how their output tokens were counted."""

    __slots__ = ("_n_by_chunks", "_n_by_usage")

    def __init__(self) -> None:
        self._n_by_usage = 0
        self._n_by_chunks = 0

    @property
    def counted_by(self) -> str:
        """usage, chunks, or both."""
        if self._n_by_usage and self._n_by_chunks:
            return "both"
        return "chunks" if self._n_by_chunks else "usage"

    def sample(self, asking: Asking, exchange: Exchange, sent_at: float, connect_s: float) -> Sample:
        """The row. `sent_at` is the clock's; NaN for what did not happen."""
        zero_at, shot, reader = asking.zero_at, asking.shot, exchange.reader
        usage = reader.usage
        is_by_usage = usage is not None and usage.output > 0
        self._n_by_usage += is_by_usage
        self._n_by_chunks += exchange.n_chunks > 0 and not is_by_usage
        return Sample(
            shot.number, shot.at_s, sent_s=sent_at - zero_at, headers_s=exchange.head_at - zero_at,
            first_s=exchange.first_at - zero_at, last_s=exchange.last_at - zero_at, ended_s=exchange.ended_at - zero_at,
            n_input=usage.input_total if usage else shot.n_input,
            n_output=usage.output if usage and is_by_usage else exchange.n_chunks, n_chunks=exchange.n_chunks,
            gap_max_s=exchange.gap_max_s, connect_s=connect_s, shown_s=exchange.shown_at - zero_at, status=exchange.status,
            error=exchange.error, n_upstream_attempts=exchange.n_attempts, server_timing=exchange.server_timing)
