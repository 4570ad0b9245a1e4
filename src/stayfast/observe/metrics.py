"""The first set of metrics. Recorded into plain arrays on the request's path, exposed by prometheus_client at scrape time.

Labels are routes, upstreams, stages and outcomes, all of them named in the settings or here: no client can add a series.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from stayfast.core.events import (
    AttemptDone,
    ConnectionOpened,
    ConnectionReused,
    EngineState,
    Fact,
    RequestDone,
    RequestRefused,
)

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

LATENCY_BOUNDS_S = tuple(0.01 * 2 ** (i / 2) for i in range(29))  # 10 ms to 164 s, about 41 % apart
OVERHEAD_BOUNDS_S = tuple(0.0001 * 2**i for i in range(17))  # 0.1 ms to 6.6 s
NO_ROUTE = "none"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Labels = tuple[str, ...]


class Histogram:
    """Counts by bucket, and a sum. `bounds_s` are upper bounds, ascending; one more bucket holds the rest."""

    __slots__ = ("_bounds_s", "counts", "sum_s")

    def __init__(self, bounds_s: tuple[float, ...]) -> None:
        self._bounds_s = bounds_s
        self.counts = [0] * (len(bounds_s) + 1)
        self.sum_s = 0.0

    def add(self, value_s: float) -> None:
        """Count one value in seconds."""
        self.counts[bisect_left(self._bounds_s, value_s)] += 1
        self.sum_s += value_s

    def cumulative(self) -> list[tuple[str, float]]:
        """Prometheus's classic buckets: (upper bound, how many at most that)."""
        total, rows = 0, []
        for bound, n in zip((*map(repr, self._bounds_s), "+Inf"), self.counts, strict=True):
            total += n
            rows.append((bound, float(total)))
        return rows


class Metrics:
    """A sink that counts. One loop; reading at scrape time happens on the same loop."""

    def __init__(self, in_flight: Callable[[], Iterable[tuple[str, int]]] = tuple) -> None:
        self.in_flight = in_flight  # (upstream, requests in flight) at the moment of the scrape
        self.requests: dict[Labels, int] = defaultdict(int)  # route, api, status
        self.refused: dict[Labels, int] = defaultdict(int)  # status, code
        self.attempts: dict[Labels, int] = defaultdict(int)  # upstream, outcome, fault
        self.tokens: dict[Labels, int] = defaultdict(int)  # route, kind
        self.client_left: dict[Labels, int] = defaultdict(int)  # route, when
        self.deadline_exceeded: dict[Labels, int] = defaultdict(int)  # route, limit
        self.truncated: dict[Labels, int] = defaultdict(int)  # upstream
        self.opened: dict[Labels, int] = defaultdict(int)  # upstream, http_version, tls: none, full, resumed
        self.reused: dict[Labels, int] = defaultdict(int)  # upstream
        self.engine_states: dict[Labels, int] = defaultdict(int)  # state
        self.ttft_s: dict[Labels, Histogram] = defaultdict(lambda: Histogram(LATENCY_BOUNDS_S))  # route, upstream
        self.e2e_s: dict[Labels, Histogram] = defaultdict(lambda: Histogram(LATENCY_BOUNDS_S))
        self.stage_s: dict[Labels, Histogram] = defaultdict(lambda: Histogram(OVERHEAD_BOUNDS_S))  # stage
        self.handshake_s: dict[Labels, Histogram] = defaultdict(lambda: Histogram(OVERHEAD_BOUNDS_S))  # upstream

    def emit(self, fact: Fact) -> None:
        """Take one fact."""
        if isinstance(fact, RequestDone):
            self._request(fact)
        elif isinstance(fact, AttemptDone):
            self.attempts[fact.upstream, fact.outcome._value_, fact.fault or ""] += 1
            if fact.fault == "truncated":
                self.truncated[(fact.upstream,)] += 1
        elif isinstance(fact, ConnectionReused):
            self.reused[(fact.upstream,)] += 1
        elif isinstance(fact, ConnectionOpened):
            tls = "none" if not fact.tls else "resumed" if fact.tls_resumed else "full"
            self.opened[fact.upstream, fact.http_version, tls] += 1
            self.handshake_s[(fact.upstream,)].add(fact.handshake_s)
        elif isinstance(fact, RequestRefused):
            self.refused[str(fact.status), fact.code] += 1
        elif isinstance(fact, EngineState):
            self.engine_states[(fact.state,)] += 1

    def _request(self, fact: RequestDone) -> None:
        route = fact.route or NO_ROUTE
        self.requests[route, fact.api._value_, str(fact.status)] += 1  # _value_: `.value` at a fifth of the cost
        where = (route, fact.upstream or "")
        if fact.ttft_s is not None:
            self.ttft_s[where].add(fact.ttft_s)
        self.e2e_s[where].add(fact.ended_at - fact.accepted_at)
        for done in fact.stages:
            self.stage_s[(done.stage._value_,)].add(done.ended_at - done.began_at)
        if fact.usage is not None:
            self.tokens[route, "input"] += fact.usage.input_total
            self.tokens[route, "cached"] += fact.usage.cached_read
            self.tokens[route, "output"] += fact.usage.output
        if fact.status == 499:
            self.client_left[route, "before_first_token" if fact.ttft_s is None else "mid_answer"] += 1
        elif fact.status == 504 and fact.error is not None:
            self.deadline_exceeded[route, fact.error] += 1

    def collect(self) -> Iterable["Metric"]:
        """prometheus_client's collector protocol."""
        from prometheus_client.core import (  # noqa: PLC0415 - 60 ms of import that only a scrape needs
            CounterMetricFamily,
            GaugeMetricFamily,
            HistogramMetricFamily,
        )
        for name, text, labels, counts in self._counters():
            counter = CounterMetricFamily(name, text, labels=labels)
            for values, n in counts.items():
                counter.add_metric(values, n)
            yield counter
        for name, text, labels, histograms in self._histograms():
            family = HistogramMetricFamily(name, text, labels=labels)
            for values, histogram in histograms.items():
                family.add_metric(values, histogram.cumulative(), histogram.sum_s)
            yield family
        gauge = GaugeMetricFamily("stayfast_in_flight", "Requests in flight by upstream.", labels=["upstream"])
        for upstream, n in self.in_flight():
            gauge.add_metric([upstream], n)
        yield gauge

    def _counters(self) -> list[tuple[str, str, list[str], dict[Labels, int]]]:
        return [
            ("stayfast_requests", "Requests by route, API and status (499: the client left).",
             ["route", "api", "status"], self.requests),
            ("stayfast_refused", "Requests that the edge answered by itself.", ["status", "code"], self.refused),
            ("stayfast_attempts", "Calls to upstreams by outcome and fault.", ["upstream", "outcome", "fault"],
             self.attempts),
            ("stayfast_tokens", "Tokens that upstreams reported.", ["route", "kind"], self.tokens),
            ("stayfast_client_left", "Clients that hung up first.", ["route", "when"], self.client_left),
            ("stayfast_deadline_exceeded", "Requests that a limit ended.", ["route", "limit"], self.deadline_exceeded),
            ("stayfast_truncated_streams", "Streams cut before the protocol's end.", ["upstream"], self.truncated),
            ("stayfast_connections_opened", "New upstream connections: handshakes paid.",
             ["upstream", "http_version", "tls"], self.opened),
            ("stayfast_connections_reused", "Requests on a pooled connection: handshakes saved.", ["upstream"],
             self.reused),
            ("stayfast_engine_states", "State changes of the embedded engine.", ["state"], self.engine_states),
        ]

    def _histograms(self) -> list[tuple[str, str, list[str], dict[Labels, Histogram]]]:
        return [
            ("stayfast_ttft_seconds", "Accept to first content token.", ["route", "upstream"], self.ttft_s),
            ("stayfast_e2e_seconds", "Accept to last byte.", ["route", "upstream"], self.e2e_s),
            ("stayfast_stage_seconds", "Time spent by stage.", ["stage"], self.stage_s),
            ("stayfast_handshake_seconds", "TCP and TLS of new upstream connections.", ["upstream"], self.handshake_s),
        ]

    def text(self) -> bytes:
        """The exposition, in Prometheus's text format 0.0.4."""
        from prometheus_client import CollectorRegistry, generate_latest  # noqa: PLC0415 - only a scrape needs it

        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        return generate_latest(registry)
