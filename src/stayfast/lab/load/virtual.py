"""A system in virtual time: the same parts on another clock, without sockets, threads or anybody's environment."""

from dataclasses import replace
from random import Random

from stayfast.compose.system import Observers, System, build
from stayfast.core.clock import Clock
from stayfast.lab.simulated.settings import SimulatedUpstream
from stayfast.settings import Log, Settings, Tracing


def check_simulated(settings: Settings) -> None:
    """Raises ValueError for upstreams that are not simulated and stores that are not memory: what is outside of this
    process answers in real time.
    """
    upstreams = settings.upstreams.items()
    real = [f"{name} (kind {its.kind})" for name, its in upstreams if not isinstance(its, SimulatedUpstream)]
    if real:
        raise ValueError(f"in virtual time all upstreams must be simulated, and these are not: {', '.join(real)}")
    outside = [f"{name} (kind {its.kind})" for name, its in settings.stores.items() if its.kind != "memory"]
    if outside:
        raise ValueError(f"in virtual time all stores must be memory, and these are not: {', '.join(outside)}")


def virtual(settings: Settings, clock: Clock, seed: int) -> System:
    """The system of these settings; call it on the virtual loop. Everything that is drawn comes from `seed`.

    Metrics are kept as usual, request lines and spans are not written: there is no thread to write them. Raises ValueError
    as `check_simulated` does.
    """
    check_simulated(settings)
    quiet = replace(settings, log=Log(level="error", requests=False), tracing=Tracing())
    return build(quiet, Observers(quiet, clock), {}, clock, Random(seed))
