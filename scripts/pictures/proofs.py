"""Pictures of what `stayfast prove` plays, smaller and with the policy off as well."""

from draw import Line
from scene import waits_s

from stayfast.policy.admission import AdmissionConfig
from stayfast.policy.hedge import HedgeConfig
from stayfast.policy.priority import Tier
from stayfast.prove import overload, stalls, stragglers, tail
from stayfast.prove.load import Load
from stayfast.prove.waits import in_virtual_time as asked
from stayfast.upstreams.simulated import Gaps, ProviderConfig

BUDGET = 0.1


def hedging(n: int, seed: int) -> tuple[Line, Line]:
    """The two providers of `prove tail`."""
    providers = {name: ProviderConfig(seed=number, ttft=tail.MIXTURE, gaps=Gaps(0.0, 0.0), fills_max_tokens=True)
                 for number, name in enumerate("ab")}
    load = Load(n / tail.VIRTUAL_RPS, tail.VIRTUAL_RPS, n_output=2, warmup_s=10.0)
    off, on = (waits_s(asked(providers, config, load, seed)) for config in (HedgeConfig("off"), HedgeConfig(budget=BUDGET)))
    return Line("hedging off", off), Line("on, budget: 0.1", on)


def lanes(n: int, seed: int) -> tuple[Line, Line]:
    """`prove stragglers` on the continuous engine: the short ones."""
    scene = stragglers.SCENES["continuous"]
    off, on = (stragglers.in_virtual_time(scene, n, seed, has_lanes=has_lanes).short_s for has_lanes in (False, True))
    return Line("no lanes", off), Line("with lanes", on)


def admission(n: int, seed: int) -> tuple[Line, Line]:
    """`prove overload`: the premium ones in the time of overload."""
    peak_s = n / 50
    extent = overload.Extent(30.0, 10.0, peak_s, 5.0)
    off, on = (waits_s(overload.in_virtual_time(extent, config, seed).by_tier[Tier.PREMIUM.value], extent.calm_s,
                       extent.calm_s + peak_s) for config in (AdmissionConfig(), overload.ADMISSION))
    return Line("no ceiling", off), Line("max_in_flight: 128", on)


def halts(n: int, seed: int) -> tuple[Line, Line]:
    """`prove stalls`: the longest wait inside each answer."""
    off, on = ([fact.gap_max_s or 0.0 for fact in stalls.played(n // 4, seed, mode)[0]] for mode in ("wait", "rescue"))
    return Line("on_stall: wait", off), Line("on_stall: rescue", on)
