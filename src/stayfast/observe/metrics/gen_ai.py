"""OpenTelemetry's GenAI metrics in Prometheus form, with the conventions' names, attributes and buckets.

A call to an upstream is a client operation; the gateway's own time to first token is a server metric. Off by default: the
figures are the same as in the gateway's metrics, under names that standard dashboards know.
"""

from collections.abc import Callable, Mapping, Sequence

from stayfast.core.events import AttemptDone, RequestDone
from stayfast.core.types import JOB, NO_ROUTE
from stayfast.observe.fact_batch import FactHandlers
from stayfast.observe.metrics import definitions as known
from stayfast.observe.metrics.counters import Totals
from stayfast.observe.tracing.config import OPERATIONS, Peer, error_type, is_turn

MAX_MODELS = 100  # names, as clients may choose them; further ones are "other"
_OTHER = "other"


class GenAiMetrics:
    """Counts facts into `totals`. For one event loop."""

    __slots__ = ("_duration_s", "_first_chunk_s", "_models", "_peers", "_tokens", "_ttft_s")

    def __init__(self, totals: Totals, peers: Callable[[], Mapping[str, Peer]]) -> None:
        self._peers = peers  # by upstream; a reload may bring others
        histograms = totals.histograms
        self._duration_s = histograms[known.GEN_AI_DURATION.name]
        self._first_chunk_s = histograms[known.GEN_AI_FIRST_CHUNK.name]
        self._tokens = histograms[known.GEN_AI_TOKENS.name]
        self._ttft_s = histograms[known.GEN_AI_SERVER_TTFT.name]
        self._models: set[str] = set()

    @property
    def handlers(self) -> FactHandlers:
        return {AttemptDone: self._count_operations, RequestDone: self._count_first_tokens}

    def _count_operations(self, attempts: Sequence[AttemptDone]) -> None:
        for done in attempts:
            if not is_turn(done):
                self._count_operation(done)

    def _count_first_tokens(self, requests: Sequence[RequestDone]) -> None:
        for fact in requests:
            if fact.ttft_s is not None and fact.stream and fact.role != JOB:
                provider = self._provider_name(fact.upstream or "", fact.attempts[-1].kind if fact.attempts else "stayfast")
                self._ttft_s[OPERATIONS[fact.api], provider, fact.route or NO_ROUTE].add(fact.ttft_s)

    def _count_operation(self, done: AttemptDone) -> None:
        labels = (OPERATIONS[done.api], self._provider_name(done.upstream, done.kind), self._model_name(done.model))
        self._duration_s[(*labels, error_type(done) or "")].add(done.ended_at - done.began_at)
        if done.ttft_s is not None and done.is_stream:
            self._first_chunk_s[labels].add(done.ttft_s)
        usage = done.usage
        if usage is not None and not done.is_estimated:
            self._tokens[(*labels, "input")].add(usage.input_total)
            self._tokens[(*labels, "output")].add(usage.output)

    def _provider_name(self, upstream: str, kind: str) -> str:
        peer = self._peers().get(upstream)
        return peer.provider if peer is not None else kind

    def _model_name(self, model: str) -> str:
        if model not in self._models:
            if len(self._models) >= MAX_MODELS:
                return _OTHER
            self._models.add(model)
        return model
