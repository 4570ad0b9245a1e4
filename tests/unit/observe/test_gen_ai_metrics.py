"""OpenTelemetry's GenAI metrics: names, attributes and buckets of the conventions."""

import pytest

from stayfast.core.types import Api, Outcome, Usage
from stayfast.observe.fact_batch import handle_facts
from stayfast.observe.metrics import definitions as known
from stayfast.observe.metrics.collector import MetricsSink
from stayfast.observe.metrics.gen_ai import MAX_MODELS, GenAiMetrics
from stayfast.observe.tracing.config import Peer
from tests.unit.observe.fact_rig import attempt, counted, counting, done


def gen_ai() -> tuple[GenAiMetrics, MetricsSink]:
    """One that counts, and where."""
    metrics = counting()
    made = GenAiMetrics(metrics.totals, lambda: {"u": Peer("anthropic")})
    return made, metrics


def test_gen_ai_metrics_of_call_and_request() -> None:
    """Each attempt is a client's operation, each stream a server's time to first token."""
    its, metrics = gen_ai()
    who = ("chat", "anthropic", "claude-x")
    lost = attempt(model="claude-x", outcome=Outcome.IGNORED, ttft_s=None, is_lost=True, is_estimated=True, usage=Usage(99))
    failed = attempt(model="claude-x", outcome=Outcome.DROPPED, fault="status", upstream_status=529, ttft_s=None, usage=None)
    handle_facts(its, [attempt(model="claude-x", api=Api.MESSAGES), failed, lost, done(), done(stream=False)])
    assert counted(metrics, known.GEN_AI_DURATION) == {(*who, ""): 2, (*who, "529"): 1}
    assert counted(metrics, known.GEN_AI_FIRST_CHUNK) == {who: 1}
    assert counted(metrics, known.GEN_AI_TOKENS) == {(*who, "input"): 1, (*who, "output"): 1}
    assert counted(metrics, known.GEN_AI_SERVER_TTFT) == {("chat", "anthropic", "m"): 1}
    assert metrics.totals.histograms[known.GEN_AI_TOKENS.name][*who, "output"].sum_s == 20


def test_gen_ai_buckets_are_the_conventions() -> None:
    """As the conventions prescribe them."""
    assert known.GEN_AI_DURATION.bounds_s == pytest.approx(
        (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92))
    assert known.GEN_AI_TOKENS.bounds_s[:4] == (1, 4, 16, 64)
    assert known.GEN_AI_TOKENS.bounds_s[-1] == 67_108_864
    assert known.GEN_AI_SERVER_TTFT.bounds_s[-4:] == (2.5, 5.0, 7.5, 10.0)


def test_gen_ai_models_are_bounded() -> None:
    """Where clients choose models freely, the first names are told apart."""
    its, metrics = gen_ai()
    handle_facts(its, [attempt(model=f"m{n}") for n in range(2 * MAX_MODELS)])
    assert len(counted(metrics, known.GEN_AI_DURATION)) == MAX_MODELS + 1
