"""Slow first tokens, hedges and time limits, planted."""

from typing import Any

from stayfast.lab.doctor.scene import Plant, Scene

BOTH = ("north", "south")
TTFT, HEDGE, LIMITS, PROMISE = (frozenset({f"chat.{one}"}) for one in ("ttft", "hedge", "limits", "promise"))


def both(**changes: Any) -> dict[str, Any]:
    """Settings of both upstreams of the chat route."""
    return {"upstreams": dict.fromkeys(BOTH, changes)}


def chat(**changes: Any) -> dict[str, Any]:
    """Settings of the chat route."""
    return {"routes": {"chat": changes}}


def _tail(scene: Scene, mode: str, share: float = 0.03, **hedge: Any) -> Scene:
    return scene.set(**both(ttft={"tail_share": share, "tail_median_s": 4.0}), **chat(hedge={"mode": mode, **hedge}))


def _late_by(scene: Scene, from_s: float, seconds: float) -> Scene:
    """All calls are late from an instant on; less traffic, for a longer time."""
    late = [{"kind": "slow_headers", "seconds": seconds, "from_s": from_s}]
    longer = scene.set(**both(faults=late)).set_flow("chat", per_s=1.0).set_flow("classify", per_s=0.5)
    return Scene(longer.settings, longer.flows, 1500.0, longer.amendments)


def _race(scene: Scene, after_s: float, sigma: float, share: float = 0.0) -> Scene:
    return scene.set(**both(ttft={"sigma": sigma, "tail_share": share, "tail_median_s": 4.0}),
                     **chat(hedge={"mode": "race", "race_after_s": after_s, "budget": 0.5}, retry={"budget": 0.6}))


def _target(scene: Scene, p50_s: float) -> Scene:
    return scene.set(**chat(slo={"stages": {"call": {"p50_s": p50_s}}}))


def _hang(scene: Scene, rate: float) -> Scene:
    faults = [{"kind": "hang", "rate": rate}] if rate else []
    return scene.set(**both(faults=faults), **chat(hedge={"mode": "off"}, timeouts={"first_token_s": 30.0}))


PLANTS = (
    Plant("tail, and hedges of 1 %", "latency.tail", True, lambda scene: _tail(scene, "auto", 0.06, budget=0.01),
          touches=TTFT | HEDGE),
    Plant("wide body with hedges", "latency.tail", False, lambda scene: scene.set(**both(ttft={"sigma": 0.5})),
          touches=TTFT),
    Plant("all calls late for five minutes", "latency.all_slow", True, lambda scene: _late_by(scene, 1190.0, 0.4),
          touches=TTFT | frozenset({"seconds"})),
    Plant("calls as late as an hour ago", "latency.all_slow", False, lambda scene: _late_by(scene, 0.0, 0.4),
          touches=TTFT | frozenset({"seconds"})),
    Plant("one upstream of three times the median", "latency.slow_upstream", True,
          lambda scene: scene.set(upstreams={"south": {"ttft": {"median_s": 1.3}}}), touches=TTFT),
    Plant("one upstream of 1.5 times the median", "latency.slow_upstream", False,
          lambda scene: scene.set(upstreams={"south": {"ttft": {"median_s": 0.6}}}), touches=TTFT),
    Plant("one upstream with a tail", "latency.uneven_upstreams", True,
          lambda scene: scene.set(upstreams={"south": {"ttft": {"tail_share": 0.06, "tail_median_s": 4.0}}},
                                  **chat(hedge={"mode": "off"})), frozenset({"hedging.off"}), TTFT | HEDGE),
    Plant("two upstreams with one distribution", "latency.uneven_upstreams", False,
          lambda scene: scene.set(**both(ttft={"sigma": 0.3}), **chat(hedge={"mode": "off"})), touches=TTFT | HEDGE),
    Plant("promise of 0.42 s", "latency.promise_missed", True,
          lambda scene: scene.set(**chat(slo={"ttft": {"under_s": 0.42, "share": 0.9}})), touches=PROMISE),
    Plant("promise of 0.6 s", "latency.promise_missed", False,
          lambda scene: scene.set(**chat(slo={"ttft": {"under_s": 0.6, "share": 0.9}})), touches=PROMISE),
    Plant("target of 0.35 s for the call's median", "latency.target_missed", True, lambda scene: _target(scene, 0.35),
          touches=PROMISE),
    Plant("target of 0.8 s for the call's median", "latency.target_missed", False, lambda scene: _target(scene, 0.8),
          touches=PROMISE),
    Plant("tail without hedges", "hedging.off", True, lambda scene: _tail(scene, "off"), touches=TTFT | HEDGE),
    Plant("wide body without hedges", "hedging.off", False,
          lambda scene: scene.set(**both(ttft={"sigma": 0.35}), **chat(hedge={"mode": "off"})), touches=TTFT | HEDGE),
    Plant("race against a steady provider", "hedging.waste", True, lambda scene: _race(scene, 0.3, 0.05),
          touches=TTFT | HEDGE),
    Plant("race against a long tail", "hedging.waste", False, lambda scene: _race(scene, 0.8, 0.2, 0.1),
          touches=TTFT | HEDGE),
    Plant("first token within 0.5 s or none", "timeouts.first_token_too_short", True,
          lambda scene: scene.set(**chat(timeouts={"first_token_s": 0.5})), touches=LIMITS),
    Plant("first token within 3 s or none", "timeouts.first_token_too_short", False,
          lambda scene: scene.set(**chat(timeouts={"first_token_s": 3.0})), touches=LIMITS),
    Plant("1 % of the calls hang for 30 s", "timeouts.first_token_too_long", True, lambda scene: _hang(scene, 0.01),
          touches=TTFT | HEDGE | LIMITS),
    Plant("a limit of 30 s that nothing reaches", "timeouts.first_token_too_long", False, lambda scene: _hang(scene, 0.0),
          touches=HEDGE | LIMITS),
    Plant("deadline below the median", "timeouts.deadline_below_median", True,
          lambda scene: scene.set(**chat(deadline=0.9)), touches=LIMITS | TTFT),
    Plant("deadline of 3 s", "timeouts.deadline_below_median", False, lambda scene: scene.set(**chat(deadline=3.0)),
          touches=LIMITS),
    Plant("clients that wait 0.6 s", "timeouts.client_too_short", True,
          lambda scene: scene.set_flow("chat", silence_s=0.6), touches=LIMITS | TTFT),  # no longer wait is seen
    Plant("clients that wait 30 s", "timeouts.client_too_short", False,
          lambda scene: scene.set_flow("chat", silence_s=30.0), touches=LIMITS),
    Plant("clients that wait 600 s for a deadline of 10 s", "timeouts.client_too_long", True,
          lambda scene: scene.set(**chat(deadline=10.0)).set_flow("chat", silence_s=600.0), touches=LIMITS),
    Plant("clients that wait 600 s, as the route does", "timeouts.client_too_long", False,
          lambda scene: scene.set_flow("chat", silence_s=600.0), touches=LIMITS),
)
