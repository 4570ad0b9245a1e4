"""observe.metrics: what is counted, and how it is exposed."""

from prometheus_client.parser import text_string_to_metric_families

from stayfast.core.events import AttemptDone, ConnectionOpened, ConnectionReused, RequestDone, StageDone
from stayfast.core.types import Api, Outcome, Stage, Usage
from stayfast.observe.metrics import Metrics


def done(**changes: object) -> RequestDone:
    """A request of 0.5 s whose first token came after 0.2 s."""
    fields: dict[str, object] = {
        "request_id": "r", "api": Api.CHAT, "route": "m", "model": "m", "stream": True, "status": 200, "accepted_at": 1.0,
        "ended_at": 1.5, "wall_at": 0.0, "stages": (StageDone(Stage.CALL, 1.0, 1.2, 10.0),), "upstream": "u", "ttft_s": 0.2,
        "usage": Usage(10, 20, 5)}
    return RequestDone(**{**fields, **changes})  # type: ignore[arg-type]


def samples(metrics: Metrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """The exposition, parsed by Prometheus's own reader."""
    text = metrics.text().decode()
    return {(sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(text) for sample in family.samples}


def test_a_request_is_counted_once_everywhere() -> None:
    """One fact: a request, its latencies, its tokens."""
    metrics = Metrics(lambda: [("u", 3)])
    metrics.emit(done())
    found = samples(metrics)
    where = (("route", "m"), ("upstream", "u"))
    assert found["stayfast_requests_total", (("api", "chat"), ("route", "m"), ("status", "200"))] == 1
    assert found["stayfast_ttft_seconds_count", where] == 1
    assert found["stayfast_ttft_seconds_sum", where] == 0.2
    assert found["stayfast_e2e_seconds_sum", where] == 0.5
    assert found["stayfast_tokens_total", (("kind", "output"), ("route", "m"))] == 20
    assert found["stayfast_in_flight", (("upstream", "u"),)] == 3


def test_buckets_are_cumulative_and_end_in_inf() -> None:
    """Classic histograms as Prometheus wants them."""
    metrics = Metrics()
    for ended_at in (1.005, 1.1, 500.0):
        metrics.emit(done(ended_at=ended_at))
    rows = [(labels, value) for (name, labels), value in samples(metrics).items() if name == "stayfast_e2e_seconds_bucket"]
    by_bound = {float(dict(labels)["le"]): value for labels, value in rows}
    bounds = sorted(by_bound)
    assert [by_bound[bound] for bound in bounds] == sorted(by_bound.values())
    assert by_bound[bounds[0]] == 1
    assert by_bound[float("inf")] == 3


def test_unknown_models_add_no_series() -> None:
    """A client that makes up model names cannot grow the metrics."""
    metrics = Metrics()
    for number in range(50):
        metrics.emit(done(route=None, model=f"made-up-{number}", status=404, upstream=None, ttft_s=None))
    assert len(metrics.requests) == 1
    assert metrics.requests["none", "chat", "404"] == 50


def test_clients_that_left_and_limits_that_fired() -> None:
    """Who gave up waiting, and when; which limit ended a request."""
    metrics = Metrics()
    metrics.emit(done(status=499, ttft_s=None))
    metrics.emit(done(status=499))
    metrics.emit(done(status=504, error="idle_s_exceeded"))
    assert metrics.client_left == {("m", "before_first_token"): 1, ("m", "mid_answer"): 1}
    assert metrics.deadline_exceeded == {("m", "idle_s_exceeded"): 1}


def test_connections_and_attempts() -> None:
    """Handshakes paid and saved; attempts by what they taught."""
    metrics = Metrics()
    metrics.emit(ConnectionOpened("u", 0.01, "1.1", tls=True, tls_resumed=True))
    metrics.emit(ConnectionOpened("u", 0.01, "2"))
    metrics.emit(ConnectionReused("u"))
    metrics.emit(AttemptDone("m", "u", 0, 1, Outcome.DROPPED, fault="truncated"))
    assert metrics.opened == {("u", "1.1", "resumed"): 1, ("u", "2", "none"): 1}
    assert metrics.reused == {("u",): 1}
    assert metrics.truncated == {("u",): 1}
    assert metrics.attempts == {("u", "dropped", "truncated"): 1}
