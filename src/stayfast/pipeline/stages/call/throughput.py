"""Who writes slower than it did: told from the gaps of all answers, as the metrics are, so that no route must ask for it.

An upstream's flow is kept where there is somebody else to ask: what sags weighs more when the next request chooses
(`policy.resilience.stall`). A route that has its answers guarded (`rescue`) looks at each once a second besides.
"""

from collections.abc import Iterable, Mapping, Sequence

from stayfast.core.clock import Clock
from stayfast.core.events import Fact, GapsSeen
from stayfast.pipeline.plan import Route
from stayfast.policy.resilience.stall import Flow


class Sagging:
    """A listener of `observe.batch`. `flows`: of the upstreams that have peers, by name; another table after a reload."""

    __slots__ = ("_clock", "flows")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.flows: Mapping[str, Flow] = {}

    def take(self, facts: Sequence[Fact]) -> None:
        """Learn from the gaps among these facts."""
        flows = self.flows
        if not flows:
            return
        for fact in facts:
            if type(fact) is GapsSeen and (flow := flows.get(fact.upstream)) is not None:
                flow.saw(fact.gaps_s, self._clock.now())

    def __repr__(self) -> str:
        return f"<Sagging of {', '.join(self.flows) or 'nobody'}>"


def flows_of(routes: Iterable[Route]) -> dict[str, Flow]:
    """The flows of all upstreams that share a route with another one, which have one from here on."""
    flows: dict[str, Flow] = {}
    for route in routes:
        if len(route.targets) > 1:
            for target in route.targets:
                member = target.member
                member.flow = flows[member.upstream.name] = member.flow or Flow()
    return flows
