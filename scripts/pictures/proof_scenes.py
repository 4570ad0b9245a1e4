"""Scenes of `stayfast prove`, with fewer requests, and with the policy off as well."""

from draw import Line
from scene import waits_s

from stayfast.lab.claims import overload, stalls, stragglers, tail
from stayfast.lab.harness.virtual import run_virtual
from stayfast.policy.admission.overload import AdmissionConfig
from stayfast.policy.admission.priority import TenantTier
from stayfast.policy.resilience.hedge import HedgeConfig


def hedging(n: int, seed: int) -> tuple[Line, Line]:
    """The two providers of `prove tail`."""
    load = tail.tail_load(n / tail.TAIL_RPS)
    off, on = (waits_s(run_virtual(tail.run_in_virtual_time, tail.heavy_tailed(seed), config, load, seed))
               for config in (HedgeConfig("off"), HedgeConfig()))
    return Line("hedging off", off), Line("on, nothing set", on)


def lanes(n: int, seed: int) -> tuple[Line, Line]:
    """`prove stragglers` on the continuous engine: the short ones."""
    case = stragglers.CASES["continuous"]
    off, on = (run_virtual(stragglers.run_in_virtual_time, case, n, seed, has_lanes=has_lanes).short_s
               for has_lanes in (False, True))
    return Line("no lanes", off), Line("with lanes", on)


def admission(n: int, seed: int) -> tuple[Line, Line]:
    """`prove overload`: the premium requests during the overload."""
    peak_s = n / 50
    phases = overload.OverloadPhases(30.0, 10.0, peak_s, 5.0)
    off, on = (waits_s(run_virtual(overload.run_in_virtual_time, phases, config, seed).by_tier[TenantTier.PREMIUM.value],
                       phases.calm_s, phases.calm_s + peak_s) for config in (AdmissionConfig(), overload.NO_QUEUE.admission))
    return Line("no ceiling", off), Line("max_in_flight: 128", on)


def halts(n: int, seed: int) -> tuple[Line, Line]:
    """`prove stalls`: the longest wait inside each answer."""
    off, on = ([fact.gap_max_s or 0.0 for fact in run_virtual(stalls.send_all, n // 4, seed, mode)[0]]
               for mode in ("wait", "rescue"))
    return Line("on_stall: wait", off), Line("on_stall: rescue", on)
