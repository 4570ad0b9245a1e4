"""What waits depend on, and where the time goes, planted."""

from typing import Any

import msgspec

from stayfast.core.snapshot import Snapshot, Spread, TrafficRow
from stayfast.lab.doctor.latency_plants import LIMITS, TTFT, both, chat
from stayfast.lab.doctor.scene import Amendment, Plant, Scene, healthy_upstream

PROMPT, ANSWER, STAGES, START = (frozenset({f"chat.{one}"}) for one in ("prompt", "answer", "stages", "start"))


def amend_traffic(route: str, **changes: Any) -> Amendment:
    """Change the rows of a route."""
    def amend(snapshot: Snapshot) -> Snapshot:
        rows = tuple(_replace(row, changes) if row.route == route else row for row in snapshot.traffic)
        return msgspec.structs.replace(snapshot, traffic=rows)
    return amend


def _replace(row: TrafficRow, changes: dict[str, Any]) -> TrafficRow:
    return msgspec.structs.replace(row, **changes)


def _prefill(scene: Scene, per_token: float) -> Scene:
    slow = scene.set(**both(ttft={"median_s": 0.3}, prefill_per_token=per_token))
    return slow.set_flow("chat", input_tokens=(1500.0, 0.8))


def _engine(scene: Scene, per_s: float) -> Scene:
    """Engines of four sequences each: ten answers a second in all."""
    engine = {"max_running": 4, "decode_step_s": 0.01, "prefill_tokens_per_s": 20000.0}
    own = scene.set(**both(engine=engine, limit={"mode": "off"}), **chat(hedge={"mode": "off"}))
    return own.set_flow("chat", per_s=per_s)


def _slow_provider(scene: Scene, median_s: float) -> Scene:
    return scene.set(**both(ttft={"median_s": median_s}))


def _long_answers(scene: Scene, cap: int | None) -> Scene:
    return scene.set(**both(output={"median": 250.0, "sigma": 0.8})).set_flow("chat", max_tokens=cap)


def _reports(scene: Scene, slo: dict[str, Any], tokens: int) -> Scene:
    """A route of whole answers."""
    more = scene.set(upstreams={"writer": {**healthy_upstream(), "output": {"median": 400.0, "sigma": 0.3}}},
                     routes={"reports": {"upstreams": ["writer"], "slo": slo}})
    return more.set_flow("reports", route="reports", per_s=0.6, max_tokens=tokens, stream=False)


def _slow_cache(scene: Scene, seconds: float) -> Scene:
    """Look-ups that take long: virtual time has no network to a store."""
    stages = {"call": 0.62, "cache": seconds}
    return scene.amend(amend_traffic("chat", stages_at_p99_s=stages, stages_at_p50_s={"call": 0.4, "cache": seconds / 4}))


def _own_time(scene: Scene, seconds: float) -> Scene:
    return scene.amend(amend_traffic("chat", own_s=Spread(1000, seconds / 2, seconds, seconds, seconds)))


PLANTS = (
    Plant("long prompts that are read slowly", "waits.prefill_bound", True, lambda scene: _prefill(scene, 0.002),
          touches=TTFT | PROMPT),
    Plant("long prompts that are read fast", "waits.prefill_bound", False, lambda scene: _prefill(scene, 0.00002),
          touches=TTFT | PROMPT),
    Plant("engines near saturation", "waits.queue_bound", True, lambda scene: _engine(scene, 8.5),
          touches=TTFT | PROMPT | frozenset({"chat.load"})),
    Plant("engines at half of their load", "waits.queue_bound", False, lambda scene: _engine(scene, 4.0),
          touches=TTFT | PROMPT | frozenset({"chat.load"})),
    Plant("slow provider", "waits.provider_bound", True, lambda scene: _slow_provider(scene, 1.6), touches=TTFT),
    Plant("provider within half of the promise", "waits.provider_bound", False, lambda scene: _slow_provider(scene, 0.85),
          touches=TTFT),
    Plant("long answers without max_tokens", "answers.long", True, lambda scene: _long_answers(scene, None), touches=ANSWER),
    Plant("long answers with max_tokens", "answers.long", False, lambda scene: _long_answers(scene, 400), touches=ANSWER),
    Plant("long answers that are not streamed", "answers.whole", True, lambda scene: _reports(scene, {}, 600),
          touches=frozenset({"reports"})),
    Plant("long answers that nobody waits for", "answers.whole", False, lambda scene: _reports(scene, {"ttft": None}, 600),
          touches=frozenset({"reports"})),
    Plant("slow look-ups in the cache", "time.stage_dominates", True, lambda scene: _slow_cache(scene, 0.9), touches=STAGES),
    Plant("look-ups of 80 ms", "time.stage_dominates", False, lambda scene: _slow_cache(scene, 0.08), touches=STAGES),
    Plant("a part of 0.5 s for the model", "budget.overruns", True, lambda scene: scene.set(**chat(budget={"model": 0.5})),
          touches=LIMITS),
    Plant("a part of 2 s for the model", "budget.overruns", False, lambda scene: scene.set(**chat(budget={"model": 2.0})),
          touches=LIMITS),
    Plant("0.3 s between accept and start", "gateway.late_start", True, lambda scene: scene.set_flow("chat", held_s=0.3),
          touches=START),
    Plant("10 ms between accept and start", "gateway.late_start", False, lambda scene: scene.set_flow("chat", held_s=0.01),
          touches=START),
    Plant("own time of 0.3 s", "gateway.overhead", True, lambda scene: _own_time(scene, 0.3), touches=START),
    Plant("own time of 50 ms", "gateway.overhead", False, lambda scene: _own_time(scene, 0.05), touches=START),
)
