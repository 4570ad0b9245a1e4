"""Queues and limits, planted."""

from typing import Any

from stayfast.lab.doctor.latency_plants import both, chat
from stayfast.lab.doctor.scene import Plant, Scene

LOAD = frozenset({"chat.load", "chat.limits"})
PATIENT = {"max_wait_s": 3000.0, "target_wait_s": 3000.0}


def _places(scene: Scene, n: int, per_s: float = 4.0, **admission: Any) -> Scene:
    return scene.set(admission={"max_in_flight": n, **admission}).set_flow("chat", per_s=per_s)


def _long_queue(scene: Scene, n: int) -> Scene:
    """A deadline that leaves requests in the queue while it grows."""
    return _places(scene, n, 8.0, max_queue=5000, **PATIENT).set(**chat(deadline=600.0))


def _long_and_short(scene: Scene, n: int) -> Scene:
    """Long requests that keep a place for eight seconds, and n places."""
    more = _places(scene, n, 3.5, **PATIENT)
    return more.set(routes={"papers": {"upstreams": ["north", "south"], "hedge": {"mode": "off"}}}).set_flow(
        "papers", route="papers", per_s=0.45, input_tokens=(12000.0, 0.2), max_tokens=900, body={"ignore_eos": True})


def _fixed(scene: Scene, most: int) -> Scene:
    return scene.set(**both(limit={"mode": "fixed", "max": most, "max_waiting": 400}), **chat(hedge={"mode": "off"}))


PLANTS = (
    Plant("more requests than answers", "load.long_queue", True,
          lambda scene: _long_queue(scene, 3), touches=LOAD),
    Plant("twenty places", "load.long_queue", False, lambda scene: _long_queue(scene, 20), touches=LOAD),
    Plant("short requests behind long ones", "load.no_lanes", True, lambda scene: _long_and_short(scene, 10), touches=LOAD),
    Plant("short and long requests with enough places", "load.no_lanes", False, lambda scene: _long_and_short(scene, 30),
          touches=LOAD),
    Plant("two calls at a time", "load.near_limit", True, lambda scene: _fixed(scene, 2), touches=LOAD),
    Plant("twenty calls at a time", "load.near_limit", False, lambda scene: _fixed(scene, 20), touches=LOAD),
    Plant("three places and no patience", "load.shedding", True, lambda scene: _places(scene, 3), touches=LOAD),
    Plant("thirty places", "load.shedding", False, lambda scene: _places(scene, 30), touches=LOAD),
)
