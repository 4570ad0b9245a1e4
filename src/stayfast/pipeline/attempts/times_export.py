"""What this process exports of its times to the first token, for other processes (policy/merged_times.py)."""

from collections.abc import Mapping
from math import inf
from typing import Final

from stayfast.policy.merged_times import MergedTimes, bound_times
from stayfast.policy.resilience.hedge import FirstTokens, recent_histograms

MAX_REFRESHED: Final = 64  # kinds computed anew in one export: 35 us each


class TimesExport:
    """The last export of each kind. Each export computes the oldest ones anew, so that none blocks the loop for long."""

    __slots__ = ("_exported_at", "_times")

    def __init__(self) -> None:
        self._times: dict[str, MergedTimes] = {}
        self._exported_at: dict[str, float] = {}

    def refresh(self, kinds: Mapping[str, FirstTokens], now: float) -> dict[str, MergedTimes]:
        """The export of these kinds, and of no others. Kinds without an answer in the last half hour are left out."""
        at = self._exported_at
        for kind in sorted(kinds, key=lambda kind: at.get(kind, -inf))[:MAX_REFRESHED]:
            ended, cut_off = recent_histograms([kinds[kind]], now)
            at[kind] = now
            self._times[kind] = MergedTimes(ended.pack(), cut_off.pack())
        for kind in at.keys() - kinds.keys():
            del at[kind], self._times[kind]
        return bound_times({kind: times for kind, times in self._times.items() if times.ended})

    def __repr__(self) -> str:
        return f"<TimesExport of {len(self._times)} kinds>"
