"""Where a request's time went: each stage against its allowance. Entering a stage ends the one before, so that the parts
always add up to the whole and no time is lost between stages.
"""

from functools import lru_cache

from stayfast.core.clock import Clock
from stayfast.core.deadline import Deadline
from stayfast.core.events import StageDone
from stayfast.core.types import Stage


class Ledger:
    """The stages of one request, in the order they ran. One task owns it."""

    __slots__ = ("_allowance_s", "_began_at", "_clock", "_deadline", "_done", "stage")

    def __init__(self, clock: Clock, accepted_at: float, deadline: Deadline) -> None:
        self._clock = clock
        self._deadline = deadline
        self._done: list[StageDone] = []
        self._began_at = accepted_at  # the first stage pays for the wait between accept and its own start
        self._allowance_s = 0.0
        self.stage: Stage | None = None

    def enter(self, stage: Stage, cap_s: float | None = None) -> float:
        """End the running stage, begin `stage`; returns the instant. Its allowance is what is left, at most `cap_s`."""
        now = self._clock.now()
        if self.stage is not None:
            self._done.append(StageDone(self.stage, self._began_at, now, self._allowance_s))
            self._began_at = now
        self.stage = stage
        left_s = self._deadline.at - now
        self._allowance_s = left_s if cap_s is None or left_s < cap_s else cap_s
        return now

    def finish(self) -> tuple[StageDone, ...]:
        """End the running stage for good; safe to call again."""
        if self.stage is not None:
            self._done.append(StageDone(self.stage, self._began_at, self._clock.now(), self._allowance_s))
            self.stage = None
        return tuple(self._done)

    def server_timing(self) -> str:
        """The stages so far as a `Server-Timing` value (W3C), durations in milliseconds; the running one counts to now."""
        stages = [done.stage for done in self._done]
        spent_ms = [(done.ended_at - done.began_at) * 1e3 for done in self._done]
        if self.stage is not None:
            stages.append(self.stage)
            spent_ms.append((self._clock.now() - self._began_at) * 1e3)
        return _timing_format(*stages) % tuple(spent_ms)

    def __repr__(self) -> str:
        return f"<Ledger {self.server_timing()}>"


@lru_cache(maxsize=64)  # the ways through the stages are few, and one % is a third of the cost of a join
def _timing_format(*stages: Stage) -> str:
    return ", ".join(f"{stage.value};dur=%.2f" for stage in stages)
