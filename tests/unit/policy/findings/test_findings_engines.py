"""Self-hosted engines."""

from typing import Any

import pytest

from stayfast.core.snapshot import Snapshot, UpstreamRow
from tests.unit.policy.findings.check_rig import find, find_one, prompts, snapshot, spread, traffic

GIB = 2**30
QUEUE: dict[str, Any] = {"waiting": 20.0, "running": 60.0, "queue_p95_s": 1.5, "age_s": 5.0}


def engine(settings: dict[str, Any] | None = None, *, batching: str = "", n_attempts: int = 200,
           output: tuple[float, float] = (200.0, 600.0), **figures: float) -> Snapshot:
    row = UpstreamRow("gpu", "openai", n_attempts=n_attempts, in_flight=8, batching=batching, engine=figures)
    return snapshot(settings, upstreams=(row,), prompts=(prompts("own", output_tokens=spread(*output)),),
                    traffic=(traffic(route="own"), traffic(route="own", upstream="gpu")))


FAULTS = {
    "engine.memory_bound": engine(**QUEUE, kv_used_ratio=0.98),
    "engine.compute_bound": engine(**QUEUE, kv_used_ratio=0.4),
    "engine.preempts": engine(preemptions_per_s=0.5, running=60.0, kv_used_ratio=0.97),
    "engine.drafts_rejected": engine(spec_accepted_ratio=0.3),
    "engine.drafts_for_short": engine(spec_accepted_ratio=0.7, output=(12.0, 40.0)),
    "engine.memory_grows": engine(gpu_memory_bytes=40.0 * GIB, gpu_memory_growth_bytes_per_h=2.0 * GIB),
    "engine.cold_starts": engine(cold_starts_1h=3.0, cold_start_s=14.0),
    "engine.figures_old": engine(age_s=600.0, waiting=0.0),
    "engine.static_batches": engine(batching="static"),
}


@pytest.mark.parametrize("check", FAULTS)
def test_sick_engine_is_found(check: str) -> None:
    assert find_one(check, FAULTS[check]).where.upstream == "gpu"


@pytest.mark.parametrize(("check", "observed"), [
    ("engine.memory_bound", engine(**{**QUEUE, "waiting": 0.0}, kv_used_ratio=0.98)),  # full and none waits: well used
    ("engine.memory_bound", engine(**QUEUE, kv_used_ratio=0.4)),
    ("engine.memory_bound", engine(**{**QUEUE, "queue_p95_s": 0.01}, kv_used_ratio=0.98)),  # a burst of a moment
    ("engine.memory_bound", engine(**{**QUEUE, "age_s": 300.0}, kv_used_ratio=0.98)),  # figures of another time
    ("engine.compute_bound", engine(**QUEUE, kv_used_ratio=0.98)),
    ("engine.compute_bound", engine(**{**QUEUE, "waiting": 2.0}, kv_used_ratio=0.4)),
    ("engine.compute_bound", engine(**QUEUE)),  # its memory is not known
    ("engine.preempts", engine(preemptions_per_s=0.01, running=60.0)),
    ("engine.drafts_rejected", engine(spec_accepted_ratio=0.7)),
    ("engine.drafts_rejected", engine(waiting=0.0)),  # no speculation
    ("engine.drafts_rejected", engine(spec_accepted_length=3.2)),
    ("engine.drafts_for_short", engine(spec_accepted_ratio=0.7)),
    ("engine.drafts_for_short", engine(spec_accepted_ratio=0.7, output=(20.0, 900.0))),  # a long tail gains
    ("engine.drafts_for_short", engine(waiting=0.0, output=(12.0, 40.0))),
    ("engine.memory_grows", engine(gpu_memory_bytes=40.0 * GIB, gpu_memory_growth_bytes_per_h=0.1 * GIB)),
    ("engine.memory_grows", engine(gpu_memory_bytes=40.0 * GIB, gpu_memory_growth_bytes_per_h=20.0 * GIB,
                                   cold_starts_1h=1.0)),  # it has just loaded its weights
    ("engine.cold_starts", engine(cold_starts_1h=1.0, cold_start_s=14.0)),  # a release
    ("engine.figures_old", engine(age_s=600.0, n_attempts=0)),  # unused
    ("engine.figures_old", engine(age_s=20.0)),
    ("engine.static_batches", engine(batching="continuous")),
    ("engine.static_batches", engine(batching="static", n_attempts=20)),
])
def test_look_alike_is_not_found(check: str, observed: Snapshot) -> None:
    assert find(check, observed) == []


def test_metrics_that_never_came_are_found_where_they_are_set_up() -> None:
    set_up = {"upstreams": {"gpu": {"engine_metrics": "vllm"}}}
    assert "were never read" in find_one("engine.figures_old", engine(set_up)).summary
    assert find("engine.figures_old", engine()) == []


def test_accepted_length_counts_where_the_ratio_is_unknown() -> None:
    assert "1.2 tokens" in find_one("engine.drafts_rejected", engine(spec_accepted_length=1.2)).summary


def test_static_batches_with_places_get_isolated_short_requests() -> None:
    observed = engine({"admission": {"max_in_flight": 64}}, batching="static")
    assert any("isolate_short: true" in change.patch for change in find_one("engine.static_batches", observed).do)


def mixed(settings: dict[str, Any] | None = None, *, p99: float = 12_000.0, ttft_p99: float = 5.0, batching: str = "single",
          **figures: float) -> Snapshot:
    row = UpstreamRow("gpu", "openai", batching=batching, engine=figures)
    served = traffic(route="own", upstream="gpu", ttft_s=spread(0.4, 1.5, ttft_p99))
    return snapshot(settings, upstreams=(row,), traffic=(traffic(route="own"), served),
                    prompts=(prompts("own", input_tokens=spread(200.0, 600.0, p99)),))


def test_long_prompts_among_short_ones_are_found() -> None:
    finding = find_one("prompt.stragglers", mixed())
    assert (finding.where.route, finding.where.upstream) == ("own", "gpu")
    assert "max_prefills: 1" in finding.do[0].patch


@pytest.mark.parametrize("observed", [
    mixed(p99=1500.0), mixed(ttft_p99=1.0),  # not that long, not felt
    mixed(batching="continuous"),  # a provider with room for both
    mixed({"admission": {"max_in_flight": 64, "lanes": {"max_prefills": 1}}}),  # separated
    mixed({"routes": {"own": {"oversize_route": "chat"}}})])
def test_long_prompts_without_effect_are_no_stragglers(observed: Snapshot) -> None:
    assert find("prompt.stragglers", observed) == []
