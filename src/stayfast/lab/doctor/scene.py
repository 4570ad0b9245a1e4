"""A gateway with simulated providers and its traffic, and changes of both: faults and their look-alikes.

A scene is data: settings as in a file, flows of requests, and amendments of the snapshot for what virtual time does not
have (CPUs, memory, connections, shared stores). Changes compose, so two faults can be planted in one scene.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, NamedTuple

from stayfast.core.snapshot import Snapshot

Amendment = Callable[[Snapshot], Snapshot]
Tree = Mapping[str, Any]


def plain_messages(rng: Random, flow: "Flow") -> list[dict[str, Any]]:
    """One question of about `flow.input_tokens` tokens."""
    n = draw_tokens(rng, flow.input_tokens)
    return [{"role": "user", "content": f"{n}: {'word' * n}"}]  # prompts of different lengths begin differently


def draw_tokens(rng: Random, median_and_sigma: tuple[float, float]) -> int:
    """A lognormal number, at least 1. (median, sigma of the logarithm)"""
    median, sigma = median_and_sigma
    return max(1, round(median * rng.lognormvariate(0.0, sigma)))


@dataclass(frozen=True, slots=True)
class Flow:
    """Requests of one route: a Poisson process from from_s until until_s."""

    route: str = "chat"
    per_s: float = 4.0
    from_s: float = 0.0
    until_s: float = 1e9
    input_tokens: tuple[float, float] = (400.0, 0.5)  # median, sigma
    max_tokens: int | None = 128
    stream: bool = True
    tenant: str | None = None
    headers: tuple[tuple[str, str], ...] = ()
    total_s: float | None = None  # the client's own deadline
    silence_s: float | None = None  # read time-out of its SDK
    held_s: float = 0.0  # from accept to the start of processing
    make_messages: Callable[[Random, "Flow"], list[dict[str, Any]]] = plain_messages
    body: Tree = field(default_factory=dict)  # more members of the request


@dataclass(frozen=True, slots=True)
class Scene:
    """seconds: of virtual time before the snapshot is taken."""

    settings: Tree
    flows: Mapping[str, Flow]
    seconds: float = 310.0
    amendments: tuple[Amendment, ...] = ()

    def set(self, **sections: Any) -> "Scene":
        """The same with settings merged: mappings are merged, other values are replaced."""
        return replace(self, settings=merge_trees(self.settings, sections))

    def set_flow(self, name: str, **changes: Any) -> "Scene":
        """The same with a changed or a new flow."""
        return replace(self, flows={**self.flows, name: replace(self.flows.get(name, Flow()), **changes)})

    def amend(self, amendment: Amendment) -> "Scene":
        """The same with a change of the snapshot."""
        return replace(self, amendments=(*self.amendments, amendment))


def merge_trees(tree: Tree, changes: Tree) -> dict[str, Any]:
    """Merge as the patch of a finding is merged into a settings file."""
    merged = dict(tree)
    for name, value in changes.items():
        old = merged.get(name)
        merged[name] = merge_trees(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged


class Plant(NamedTuple):
    """A change of a healthy scene. As a fault (`is_fault`) it must be found as `check`, as a look-alike it must not.

    also: other findings that are correct there. touches: what it changes; two plants that touch the same do not compose.
    """

    name: str
    check: str
    is_fault: bool
    change: Callable[[Scene], Scene]
    also: frozenset[str] = frozenset()
    touches: frozenset[str] = frozenset()


def healthy_scene() -> Scene:
    """A chat route on two providers, and a route of whole, short answers on a third. Nothing is wrong here."""
    return Scene(
        settings={
            "upstreams": {
                "north": healthy_upstream(),
                "south": healthy_upstream(),
                "small": healthy_upstream(median_s=0.15),
            },
            "routes": {"chat": {"upstreams": ["north", "south"]}, "classify": {"upstreams": ["small"]}},
        },
        flows={"chat": Flow(), "classify": Flow("classify", 2.0, input_tokens=(150.0, 0.3), max_tokens=8, stream=False)})


def healthy_upstream(median_s: float = 0.4) -> dict[str, Any]:
    """A simulated provider with a short tail. Eight tokens an event, to simulate faster."""
    return {"kind": "simulated", "probe": False, "ttft": {"median_s": median_s, "sigma": 0.2},
            "gaps": {"median_s": 0.01, "sigma": 0.2, "tokens_per_chunk": 8}, "output": {"median": 80.0, "sigma": 0.4}}
