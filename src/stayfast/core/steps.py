"""The steps of a turn that is served as a model, and what they cost."""

import msgspec


class StepDone(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A step of such a turn. Instants are monotonic seconds; `allowance_s` is the time that it was allowed to use."""

    name: str  # chosen by the operator
    began_at: float
    ended_at: float
    allowance_s: float
    outcome: str  # ok, timeout, failed, skipped, cancelled; running if the turn continues in the background
    detail: str = ""  # exception names and fixed reasons only
    is_capped: bool = False  # limited by its own cap, not by the turn's remaining time
    cost_usd: float | None = None  # None: not reported
    parent: int = -1  # index of the step that contains it; -1: none
    kind: str = ""  # tool, retrieval, or empty

    @property
    def broke_budget(self) -> bool:
        return self.outcome == "timeout" and not self.is_capped


class TurnSnapshot(msgspec.Struct, frozen=True, gc=False):
    """A snapshot of a turn that is served as a model."""

    steps: tuple[StepDone, ...] = ()
    cost_usd: float | None = None
