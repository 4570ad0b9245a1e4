"""What the client knows of itself, and when its figures are its own and not the target's.

A run is invalid when p99 of the lateness of its sends, or of its loop's lag, is more than max(5 ms, 2 % of the median
TTFT); when it sent fewer requests a second than the schedule asked for, by more than 1 %; or when it ran out of sockets.
"""

import asyncio
from array import array
from collections.abc import Sequence
from math import ceil, isnan

import msgspec

from stayfast.bench.result import Health
from stayfast.bench.run import Record
from stayfast.core.clock import Clock

TICK_S = 0.01
LEAST_BOUND_S = 0.005
TTFT_SHARE = 0.02
MAX_SHORTFALL = 0.01


class LoopLag:
    """How late the loop's own timer is: as late are the stamps of bytes that came meanwhile."""

    def __init__(self, clock: Clock) -> None:
        self.lags_s: array[float] = array("d")
        self._clock = clock

    async def watch(self) -> None:
        """Tick until cancelled."""
        while True:
            due_at = self._clock.now() + TICK_S
            await asyncio.sleep(TICK_S)
            self.lags_s.append(max(0.0, self._clock.now() - due_at))


def health_of(record: Record, lags_s: Sequence[float], *, n_scheduled: int, seconds: float,
              cpu_share: float = 0.0) -> Health:
    """Judge a run. `n_scheduled`: measured shots that were due, 0 in a closed loop; `seconds`: the schedule's length."""
    late_s = sorted(record.lateness_s)
    lags_s = sorted(lags_s)
    requested_rps = n_scheduled / seconds if seconds else 0.0
    n_sent = len(record.lateness_s) - record.n_unsent
    behind_s = max(0.0, record.last_began_s - record.last_at_s)  # how far the end of the sends slipped
    achieved_rps = n_sent / (seconds + behind_s) if seconds else 0.0
    health = Health(
        lateness_p50_s=_quantile(late_s, 0.5), lateness_p99_s=_quantile(late_s, 0.99), lateness_max_s=_quantile(late_s, 1.0),
        loop_lag_p50_s=_quantile(lags_s, 0.5), loop_lag_p99_s=_quantile(lags_s, 0.99), loop_lag_max_s=_quantile(lags_s, 1.0),
        requested_rps=requested_rps, achieved_rps=achieved_rps, cpu_share=cpu_share)
    return msgspec.structs.replace(health, verdict=tuple(_verdict(health, record)))


def _verdict(health: Health, record: Record) -> list[str]:
    bound_s = max(LEAST_BOUND_S, TTFT_SHARE * _median_ttft_s(record))
    reasons = []
    late_s = health.lateness_p99_s if health.requested_rps else 0.0  # a closed loop has no schedule to be late on
    for what, p99_s in (("its sends were late by", late_s), ("its loop lagged by", health.loop_lag_p99_s)):
        if p99_s > bound_s:
            reasons.append(f"{what} {p99_s * 1e3:.1f} ms at p99, more than {bound_s * 1e3:.1f} ms (the larger of 5 ms and "
                           "2 % of the median TTFT): the figures are the client's as much as the target's")
    if health.requested_rps and health.achieved_rps < health.requested_rps * (1 - MAX_SHORTFALL):
        reasons.append(f"it sent {health.achieved_rps:.1f} requests/s of the {health.requested_rps:.1f} asked for: more "
                       "than 1 % short")
    if record.n_unsent:
        reasons.append(f"{record.n_unsent} requests could not be sent at all (no socket, no port, or too late to matter)")
    if reasons:
        reasons[-1] += f" (try a quieter machine or {'a lower rate' if health.requested_rps else 'fewer callers'})"
    return reasons


def _median_ttft_s(record: Record) -> float:
    floats = record.samples.floats
    ttfts_s = (first - sent for first, sent in zip(floats["first_s"], floats["sent_s"], strict=True))
    return _quantile(sorted(ttft_s for ttft_s in ttfts_s if not isnan(ttft_s)), 0.5)


def _quantile(ordered: Sequence[float], share: float) -> float:
    """The nearest rank: a value that was measured."""
    return ordered[max(0, ceil(share * len(ordered)) - 1)] if ordered else 0.0
