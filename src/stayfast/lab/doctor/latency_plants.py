"""Slow first tokens, planted: tails, slow providers, and what only looks like them."""

from stayfast.lab.doctor.scene import Plant, Scene

TAIL = {"ttft": {"tail_share": 0.03, "tail_median_s": 4.0}}


def _tail_without_hedges(scene: Scene) -> Scene:
    return scene.set(upstreams={"north": TAIL, "south": TAIL}, routes={"chat": {"hedge": {"mode": "off"}}})


def _wide_body_without_hedges(scene: Scene) -> Scene:
    """A p99 of 2.5 times the p50, as prompts of different lengths have it."""
    return scene.set(upstreams={"north": {"ttft": {"sigma": 0.4}}, "south": {"ttft": {"sigma": 0.4}}},
                     routes={"chat": {"hedge": {"mode": "off"}}})


PLANTS = (
    Plant("tail without hedges", "latency.tail", True, _tail_without_hedges, touches=frozenset({"chat.ttft", "chat.hedge"})),
    Plant("wide body without hedges", "latency.tail", False, _wide_body_without_hedges),
)
