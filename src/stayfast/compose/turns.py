"""The turns that are served as models: which function stands behind which upstream, before and after a reload."""

from collections.abc import Mapping

from stayfast.core.clock import Clock
from stayfast.core.events import Sink
from stayfast.observe.metrics.counters import Rows
from stayfast.observe.metrics.definitions import TURN_THREADS
from stayfast.settings import Settings, TurnUpstream
from stayfast.turns import threads
from stayfast.turns.function import find
from stayfast.turns.remote_resume import AskOthers, Heard, Sought
from stayfast.turns.served import Served
from stayfast.upstreams.state.upstream_state import Registry


class Turns:
    """Those of the running system, for the other workers. One loop's."""

    def __init__(self) -> None:
        self.served: Mapping[str, Served] = {}

    async def tell(self, sought: Sought) -> Heard | None:
        """What has come of a turn that is kept here; None where it is not."""
        served = self.served.get(sought.upstream)
        return await served.tell(sought) if served is not None else None

    def end(self) -> None:
        """Cancel what runs, as the process ends."""
        for served in self.served.values():
            served.end()


def thread_gauges(turns: Turns) -> Rows:
    """The threads of plain functions that steps run, as a metric. Where no turn is served there is no series."""
    if not turns.served:
        return {}
    running = threads.running()
    n_abandoned = sum(thread.is_abandoned for thread in running)
    return {TURN_THREADS.name: [(("waited_for",), len(running) - n_abandoned), (("abandoned",), n_abandoned)]}


def served(name: str, its: TurnUpstream, sink: Sink, clock: Clock, ask_others: AskOthers) -> Served:
    """One function as an upstream. Raises ValueError where it cannot be served."""
    return Served(name, find(its.turn), clock, sink, resume_s=its.resume_s, is_idempotent=its.idempotent,
                  ask_others=ask_others)


def settle_turns(settings: Settings, registry: Registry, turns: Turns) -> None:
    """Give each its function as it is now, and the turns that clients may come back to. What runs goes on as it is."""
    found: dict[str, Served] = {}
    for name, its in settings.upstreams.items():
        if not isinstance(its, TurnUpstream):
            continue
        member = registry[name]
        member.is_once = not its.idempotent
        assert isinstance(member.upstream, Served)
        found[name] = member.upstream
        member.upstream.function = find(its.turn)
        if name in turns.served:
            member.upstream.kept = turns.served[name].kept
    turns.served = found
