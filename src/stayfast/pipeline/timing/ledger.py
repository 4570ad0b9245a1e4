"""Where a request's time went: each stage against its allowance. Entering a stage ends the one before, so that the parts
always add up to the whole and no time is lost between stages.
"""

import re
from collections.abc import Sequence

from stayfast.core.clock import Clock
from stayfast.core.events import StageDone
from stayfast.core.steps import StepDone
from stayfast.core.types import Stage
from stayfast.policy.budget import Budget


class Ledger:
    """The stages of one request, in the order they ran. One task owns it."""

    __slots__ = ("_allowance_s", "_began_at", "_budget", "_carried_s", "_clock", "_deadline_at", "_done", "ends_at",
                 "entered_at", "is_shared_out", "over_stage", "stage")

    def __init__(self, clock: Clock, accepted_at: float, deadline_at: float, budget: Budget) -> None:
        self._clock = clock
        self._deadline_at = deadline_at
        self._budget = budget
        self._carried_s = 0.0
        self._done: list[StageDone] = []
        self._began_at = accepted_at  # the first stage pays for the wait between accept and its own start
        self._allowance_s = 0.0
        self.is_shared_out = bool(budget.parts_s or budget.reserve_s)
        self.ends_at = deadline_at  # of the running stage: when it must be over
        self.entered_at: float | None = None  # when the first stage looked at the request
        self.over_stage: Stage | None = None  # the first that used all of its allowance, or more
        self.stage: Stage | None = None

    def enter(self, stage: Stage) -> float:
        """End the running stage, begin `stage`; returns the instant. Its allowance is the budget's."""
        now, ended, began_at, ends_at = self._clock.now(), self.stage, self._began_at, self.ends_at
        if ended is not None:
            self._done.append(StageDone(ended, began_at, now, self._allowance_s))
            if now >= ends_at and self.over_stage is None:
                self.over_stage = ended
            if self.is_shared_out:
                self._carried_s = self._budget.carried_s(ended, now - began_at, self._carried_s)
            self._began_at = began_at = now
        else:
            self.entered_at = now
        self.stage = stage
        if self.is_shared_out:
            self.ends_at = ends_at = self._budget.ends_at(stage, began_at, self._deadline_at, self._carried_s)
        self._allowance_s = ends_at - began_at if ends_at > began_at else 0.0
        return now

    def finish(self) -> tuple[StageDone, ...]:
        """End the running stage for good; safe to call again."""
        if self.stage is not None:
            now = self._clock.now()
            self._done.append(StageDone(self.stage, self._began_at, now, self._allowance_s))
            if now >= self.ends_at and self.over_stage is None:
                self.over_stage = self.stage
            self.stage = None
        return tuple(self._done)

    def server_timing(self) -> str:
        """The stages so far as a `Server-Timing` value (W3C), durations in milliseconds; the running one counts to now.

        The description is the stage's allowance in milliseconds: `call;dur=812.40;desc="of 2300"`. Where nothing is shared
        out, each may use all that is left, and only the first says how much that is.
        """
        stages = self._done
        if self.stage is not None:
            stages = [*stages, StageDone(self.stage, self._began_at, self._clock.now(), self._allowance_s)]
        return ", ".join([_timing(stage, has_allowance=self.is_shared_out or number == 0)
                          for number, stage in enumerate(stages)])

    def __repr__(self) -> str:
        return f"<Ledger {self.server_timing()}>"


_MAX_STEPS_TOLD = 32
_NO_TOKEN = re.compile(r"[^A-Za-z0-9_.-]+")  # RFC 9110, 5.6.2 has more


def steps_timing(steps: Sequence[StepDone]) -> str:
    """The steps of a turn, to be put behind the stages: `, turn.kb;dur=41.20;desc="timeout of 400"`."""
    return "".join([f', turn.{_NO_TOKEN.sub("_", step.name)};dur={(step.ended_at - step.began_at) * 1e3:.2f};'
                    f'desc="{step.how} of {step.allowance_s * 1e3:.0f}"' for step in steps[:_MAX_STEPS_TOLD]])


def _timing(done: StageDone, *, has_allowance: bool) -> str:
    spent = f"{done.stage};dur={(done.ended_at - done.began_at) * 1e3:.2f}"
    return f'{spent};desc="of {done.allowance_s * 1e3:.0f}"' if has_allowance else spent
