"""Limits of providers, retries, breakers, fallbacks and broken streams, planted."""

from typing import Any

import msgspec

from stayfast.core.snapshot import Snapshot
from stayfast.lab.doctor.latency_plants import HEDGE, LIMITS, TTFT, both, chat
from stayfast.lab.doctor.scene import Amendment, Plant, Scene

FAULTS, QUOTA, STREAMS = (frozenset({f"chat.{one}"}) for one in ("faults", "quota", "streams"))


def amend_upstream(name: str, **changes: Any) -> Amendment:
    """Change the row of an upstream."""
    def amend(snapshot: Snapshot) -> Snapshot:
        rows = tuple(msgspec.structs.replace(row, **changes) if row.name == name else row for row in snapshot.upstreams)
        return msgspec.structs.replace(snapshot, upstreams=rows)
    return amend


def _set_retry_after(seconds: float) -> Amendment:
    return lambda snapshot: msgspec.structs.replace(snapshot, retry_after_s=seconds)


def _limited(scene: Scene, rate: float) -> Scene:
    return scene.set(upstreams={"north": {"faults": [{"kind": "status", "status": 429, "rate": rate}]}})


def _reserved(scene: Scene, max_tokens: int) -> Scene:
    left = amend_upstream("north", quota_left={"output_tokens": 0.2}, quota_left_1h={"output_tokens": 0.15})
    return scene.set_flow("chat", max_tokens=max_tokens).amend(left)


def _stacked(scene: Scene, rate: float) -> Scene:
    """A flow of the retries of SDKs, and calls that fail."""
    faults = [{"kind": "status", "status": 500, "rate": rate}] if rate else []
    return scene.set(**both(faults=faults), **chat(retry={"budget": 0.5})).set_flow(
        "retries", per_s=0.8, headers=(("x-stainless-retry-count", "1"),))


def _outage(scene: Scene, *spans_s: tuple[float, float], open_s: float = 20.0) -> Scene:
    faults = [{"kind": "status", "status": 503, "from_s": from_s, "until_s": until_s} for from_s, until_s in spans_s]
    return scene.set(upstreams={"south": {"faults": faults, "breaker": {"open_s": open_s}}})


def _fallback(scene: Scene, fault: dict[str, Any]) -> Scene:
    return scene.set(**both(faults=[fault]), **chat(
        hedge={"mode": "off"}, deadline=8.0, retry={"max_attempts": 1, "budget": 0.5},
        on_overrun={"fallback": {"upstreams": ["small"], "reserve": "30%"}}))


def _stalls(scene: Scene, seconds: float) -> Scene:
    return scene.set(upstreams={"south": {"stalls": {"share": 0.03, "duration": {"median_s": seconds, "sigma": 0.2}}}})


def _truncated(scene: Scene, rate: float) -> Scene:
    return scene.set(upstreams={"south": {"faults": [{"kind": "truncated", "rate": rate}]}})


FLAPS = tuple((30.0 + 60 * number, 50.0 + 60 * number) for number in range(4))
PLANTS = (
    Plant("15 % of the calls answer 429", "limits.rate_limited", True, lambda scene: _limited(scene, 0.15), touches=FAULTS),
    Plant("2 % of the calls answer 429", "limits.rate_limited", False, lambda scene: _limited(scene, 0.02), touches=FAULTS),
    Plant("5 % of the tokens a minute left", "limits.headroom", True,
          lambda scene: scene.amend(amend_upstream("north", quota_left={"tokens": 0.05, "requests": 0.7})), touches=QUOTA),
    Plant("40 % of the tokens a minute left", "limits.headroom", False,
          lambda scene: scene.amend(amend_upstream("north", quota_left={"tokens": 0.4, "requests": 0.7})), touches=QUOTA),
    Plant("max_tokens of 4,000 for short answers", "limits.reserved_output", True, lambda scene: _reserved(scene, 4000),
          touches=QUOTA),
    Plant("max_tokens of 128 for short answers", "limits.reserved_output", False, lambda scene: _reserved(scene, 128),
          touches=QUOTA),
    Plant("SDKs and gateway retry", "retries.stacked", True, lambda scene: _stacked(scene, 0.1), touches=FAULTS),
    Plant("SDKs retry, the gateway need not", "retries.stacked", False, lambda scene: _stacked(scene, 0.0), touches=FAULTS),
    Plant("Retry-After of five minutes", "retries.retry_after", True,
          lambda scene: scene.amend(_set_retry_after(300.0)), touches=frozenset({"retry_after"})),
    Plant("Retry-After of half a minute", "retries.retry_after", False,
          lambda scene: scene.amend(_set_retry_after(30.0)), touches=frozenset({"retry_after"})),
    Plant("one upstream is down", "breaker.open", True, lambda scene: _outage(scene, (250.0, 400.0), open_s=120.0),
          touches=FAULTS),
    Plant("one upstream was down", "breaker.open", False, lambda scene: _outage(scene, (40.0, 60.0)), touches=FAULTS),
    Plant("one upstream is down every minute", "breaker.flapping", True, lambda scene: _outage(scene, *FLAPS, open_s=5.0),
          touches=FAULTS),
    Plant("one long outage with failed probes", "breaker.flapping", False,
          lambda scene: _outage(scene, (30.0, 160.0), open_s=5.0), touches=FAULTS),
    Plant("calls hang until the fallback's reserve", "fallback.late", True,
          lambda scene: _fallback(scene, {"kind": "hang", "rate": 0.06}), touches=FAULTS | HEDGE | LIMITS | TTFT),
    Plant("calls fail at once, and the fallback answers", "fallback.late", False,
          lambda scene: _fallback(scene, {"kind": "status", "status": 500, "rate": 0.06}),
          touches=FAULTS | HEDGE | LIMITS | TTFT),
    Plant("stalls of 3 s", "streams.stalls", True, lambda scene: _stalls(scene, 3.0), touches=STREAMS),
    Plant("pauses of 0.4 s", "streams.stalls", False, lambda scene: _stalls(scene, 0.4), touches=STREAMS),
    Plant("5 % of the streams break off", "streams.truncated", True, lambda scene: _truncated(scene, 0.05),
          touches=STREAMS | FAULTS),
    Plant("one stream in 300 breaks off", "streams.truncated", False, lambda scene: _truncated(scene, 0.003),
          touches=STREAMS | FAULTS),
)
