"""Self-hosted engines, planted: figures as scraped from them."""

from collections.abc import Mapping
from typing import Any

from stayfast.lab.doctor.recorded import GIB, spread, with_prompts, with_traffic, with_upstream
from stayfast.lab.doctor.scene import Plant, Scene

PREFIXES = frozenset({"north.prefixes"})
ENGINE, PHASE, START = frozenset({"north.engine"}), frozenset({"north.phase"}), frozenset({"small.phase"})
PROMPTS, TTFT = frozenset({"chat.prompts"}), frozenset({"chat.ttft"})
CALM: dict[str, float] = {"running": 12.0, "waiting": 0.0, "kv_used_ratio": 0.45, "queue_p95_s": 0.01, "age_s": 3.0}
QUEUE: dict[str, float] = {"running": 64.0, "waiting": 40.0, "queue_p95_s": 2.0}


def _engine(scene: Scene, **figures: float) -> Scene:
    return scene.amend(with_upstream("north", n_attempts=600, engine={**CALM, **figures}))


def _bound(scene: Scene, bound: str, waiting_here: int = 0, figures: Mapping[str, float] = CALM) -> Scene:
    """An engine that its readings show to be bound by something. waiting_here: in the gateway, at the limit of 20."""
    return scene.amend(with_upstream("north", n_attempts=600, engine={**CALM, **figures}, bound_by=bound, in_flight=20,
                                     waiting=waiting_here, limit=20.0))


def _batches(scene: Scene, batching: str) -> Scene:
    return scene.amend(with_upstream("north", n_attempts=600, batching=batching))


def _short(scene: Scene, output: tuple[float, float], **figures: float) -> Scene:
    return _engine(scene.amend(with_prompts("chat", output_tokens=spread(*output))), **figures)


def _long_prompts(scene: Scene, p99: float, ttft_p99_s: float, **settings: Any) -> Scene:
    amended = scene.amend(with_prompts("chat", input_tokens=spread(300.0, 900.0, p99))).amend(
        with_traffic("chat", "north", ttft_s=spread(0.4, 0.6, ttft_p99_s)))
    return _engine(amended.set(**settings))


def _loading(scene: Scene, min_warm: int) -> Scene:
    amended = scene.amend(with_upstream("north", n_attempts=600, phase="loading", phase_why="it refuses connections"))
    return amended.set(routes={"chat": {"pool": {"min_warm": min_warm}}})


def _starting(scene: Scene, seconds: float) -> Scene:
    amended = scene.amend(with_upstream("small", phase="ready", cold_start_s=seconds))
    return amended.set(routes={"classify": {"deadline": 30}})


def _prefixes(scene: Scene, hit: float | None, belief: float) -> Scene:
    return scene.amend(with_upstream("north", n_prefix_answers=600, prefix_hit_ratio=hit, prefix_belief_ratio=belief))


PLANTS = (
    Plant("a replica that must be ready and loads", "replicas.too_few_warm", True,
          lambda scene: _loading(scene, 1), touches=PHASE),
    Plant("a replica that loads and is not needed", "replicas.too_few_warm", False,
          lambda scene: _loading(scene, 0), touches=PHASE),
    Plant("a single replica that starts for an hour", "replicas.start_over_deadline", True,
          lambda scene: _starting(scene, 3600.0), touches=START),
    Plant("a single replica that starts in two seconds", "replicas.start_over_deadline", False,
          lambda scene: _starting(scene, 2.0), touches=START),
    Plant("engine that evicts what routing believes to be cached", "affinity.belief_wrong", True,
          lambda scene: _prefixes(scene, 0.35, 0.7), touches=PREFIXES),
    Plant("engine that evicts now and then", "affinity.belief_wrong", False,
          lambda scene: _prefixes(scene, 0.62, 0.7), touches=PREFIXES),
    Plant("engine that never reports cached tokens", "affinity.hits_unreported", True,
          lambda scene: _prefixes(scene, None, 0.7), touches=PREFIXES),
    Plant("engine whose prompts share nothing", "affinity.hits_unreported", False,
          lambda scene: _prefixes(scene, None, 0.02), touches=PREFIXES),
    Plant("engine with a full KV memory and a queue", "engine.memory_bound", True,
          lambda scene: _engine(scene, **{**QUEUE, "kv_used_ratio": 0.99}), touches=ENGINE),
    Plant("engine with a full KV memory and no queue", "engine.memory_bound", False,
          lambda scene: _engine(scene, kv_used_ratio=0.99), touches=ENGINE),
    Plant("engine with a queue and free KV memory", "engine.compute_bound", True,
          lambda scene: _engine(scene, **{**QUEUE, "kv_used_ratio": 0.3}), touches=ENGINE),
    Plant("engine with a short queue of a moment", "engine.compute_bound", False,
          lambda scene: _engine(scene, **{**QUEUE, "queue_p95_s": 0.02, "kv_used_ratio": 0.3}), touches=ENGINE),
    Plant("engine whose prompts wait for their prefill", "engine.prefill_bound", True,
          lambda scene: _bound(scene, "prefill", 0, {**QUEUE, "kv_used_ratio": 0.3, "prefill_tokens_per_s": 9000.0}),
          touches=ENGINE),
    Plant("engine whose prefills queue for a moment", "engine.prefill_bound", False,
          lambda scene: _bound(scene, "none", 0, {**QUEUE, "queue_p95_s": 0.02, "kv_used_ratio": 0.3}), touches=ENGINE),
    Plant("engine whose batch slows each answer", "engine.decode_bound", True,
          lambda scene: _bound(scene, "decode", 0, {"running": 64.0, "inter_token_s": 0.09, "max_running": 64.0}),
          touches=ENGINE),
    Plant("engine with a large batch at its usual speed", "engine.decode_bound", False,
          lambda scene: _bound(scene, "none", 0, {"running": 64.0, "inter_token_s": 0.02, "max_running": 256.0}),
          touches=ENGINE),
    Plant("limit of the gateway before an idle engine", "engine.gateway_limit", True,
          lambda scene: _bound(scene, "gateway", 30, {"running": 20.0}), touches=ENGINE),
    Plant("limit of the gateway before a full engine", "engine.gateway_limit", False,
          lambda scene: _bound(scene, "memory", 30, {**QUEUE, "kv_used_ratio": 0.99}),
          frozenset({"engine.memory_bound"}), touches=ENGINE),
    Plant("engine that preempts", "engine.preempts", True,
          lambda scene: _engine(scene, preemptions_per_s=0.8, kv_used_ratio=0.97), touches=ENGINE),
    Plant("engine that preempts once an hour", "engine.preempts", False,
          lambda scene: _engine(scene, preemptions_per_s=0.0003), touches=ENGINE),
    Plant("drafts accepted in 30 %", "engine.drafts_rejected", True,
          lambda scene: _engine(scene, spec_accepted_ratio=0.3), touches=ENGINE),
    Plant("drafts accepted in 70 %", "engine.drafts_rejected", False,
          lambda scene: _engine(scene, spec_accepted_ratio=0.7), touches=ENGINE),
    Plant("drafts for labels of ten tokens", "engine.drafts_for_short", True,
          lambda scene: _short(scene, (10.0, 30.0), spec_accepted_ratio=0.8), touches=ENGINE | PROMPTS),
    Plant("drafts for long answers", "engine.drafts_for_short", False,
          lambda scene: _short(scene, (400.0, 900.0), spec_accepted_ratio=0.8), touches=ENGINE | PROMPTS),
    Plant("GPU memory that grows", "engine.memory_grows", True,
          lambda scene: _engine(scene, gpu_memory_bytes=60.0 * GIB, gpu_memory_growth_bytes_per_h=3.0 * GIB),
          touches=ENGINE),
    Plant("GPU memory that fills after a start", "engine.memory_grows", False,
          lambda scene: _engine(scene, gpu_memory_bytes=60.0 * GIB, gpu_memory_growth_bytes_per_h=60.0 * GIB,
                                cold_starts_1h=1.0), touches=ENGINE),
    Plant("engine that scales to zero", "engine.cold_starts", True,
          lambda scene: _engine(scene, cold_starts_1h=6.0, cold_start_s=12.0), touches=ENGINE),
    Plant("engine that was released once", "engine.cold_starts", False,
          lambda scene: _engine(scene, cold_starts_1h=1.0, cold_start_s=12.0), touches=ENGINE),
    Plant("engine whose metrics stopped", "engine.figures_old", True, lambda scene: _engine(scene, age_s=900.0),
          touches=ENGINE),
    Plant("engine with metrics of 20 seconds ago", "engine.figures_old", False, lambda scene: _engine(scene, age_s=20.0),
          touches=ENGINE),
    Plant("engine with static batches", "engine.static_batches", True, lambda scene: _batches(scene, "static"),
          touches=ENGINE),
    Plant("engine with continuous batches", "engine.static_batches", False, lambda scene: _batches(scene, "continuous"),
          touches=ENGINE),
    Plant("prompts of 20,000 tokens among short ones", "prompt.stragglers", True,
          lambda scene: _long_prompts(scene, 20_000.0, 6.0), touches=ENGINE | PROMPTS | TTFT),
    Plant("prompts of 20,000 tokens in a lane", "prompt.stragglers", False,
          lambda scene: _long_prompts(scene, 20_000.0, 6.0, admission={"max_in_flight": 64, "lanes": {"max_prefills": 1}}),
          touches=ENGINE | PROMPTS | TTFT | frozenset({"chat.load"})),
)
