"""Six mixes of healthy traffic, with the jagged edges that real providers have: nothing is to be found in them."""

from collections.abc import Mapping
from typing import Any

from stayfast.lab.doctor.scene import Flow, Scene, healthy_scene


def healthy_mixes() -> Mapping[str, Scene]:
    """By name."""
    return {"chat on two jagged providers": _chat(), "long prompts": _long_prompts(), "short whole answers": _classify(),
            "reports that nobody waits for": _reports(), "rushes on engines": _rushes(), "a little of "
                                                                                         "everything": _everything()}


def _upstream(preset: str, **changes: Any) -> dict[str, Any]:
    return {"kind": "simulated", "probe": False, "preset": preset, "output": {"median": 80.0, "sigma": 0.5},
            "gaps": {"median_s": 0.01, "tokens_per_chunk": 8}, **changes}


def _chat() -> Scene:
    return Scene({"upstreams": {"a": _upstream("gpt-4o-like"), "b": _upstream("gpt-4o-mini-like")},
                  "routes": {"chat": {"upstreams": ["a", "b"]}}}, {"chat": Flow(per_s=5.0)})


def _long_prompts() -> Scene:
    return Scene({"upstreams": {"a": _upstream("gemini-flash-like", prefill_per_token=0.00003),
                                "b": _upstream("gemini-flash-like", prefill_per_token=0.00003)},
                  "routes": {"chat": {"upstreams": ["a", "b"]}}}, {"chat": Flow(per_s=3.0, input_tokens=(6000.0, 0.4))})


def _classify() -> Scene:
    return Scene({"upstreams": {"a": _upstream("gemini-flash-lite-like"), "b": _upstream("gemini-flash-like")},
                  "routes": {"classify": {"upstreams": ["a", "b"]}}},
                 {"classify": Flow("classify", 6.0, input_tokens=(200.0, 0.5), max_tokens=12, stream=False)})


def _reports() -> Scene:
    return Scene({"upstreams": {"a": _upstream("steady", output={"median": 500.0, "sigma": 0.3})},
                  "routes": {"reports": {"upstreams": ["a"], "slo": {"ttft": None}}}},
                 {"reports": Flow("reports", 1.5, max_tokens=800, stream=False)})


def _rushes() -> Scene:
    """Engines that are half busy, and nearly busy for half a minute."""
    engine = {"max_running": 16, "decode_step_s": 0.01}
    upstreams = {name: _upstream("instant", ttft={"median_s": 0.2, "sigma": 0.2}, engine=engine) for name in ("a", "b")}
    return Scene({"upstreams": upstreams, "routes": {"chat": {"upstreams": ["a", "b"]}}},
                 {"chat": Flow(per_s=5.0), "rush": Flow(per_s=8.0, from_s=120.0, until_s=150.0)})


def _everything() -> Scene:
    """Two routes, a fallback, a few errors and refusals, clients with usual time-outs."""
    few = [{"kind": "status", "status": 500, "rate": 0.005}, {"kind": "status", "status": 429, "rate": 0.002}]
    scene = healthy_scene().set(
        upstreams={"north": {"faults": few}, "south": {"ttft": {"tail_share": 0.01, "tail_median_s": 2.0}}},
        routes={"chat": {"on_overrun": {"fallback": {"upstreams": ["small"]}}, "deadline": 60.0}})
    return scene.set_flow("chat", silence_s=90.0)
