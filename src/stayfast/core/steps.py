"""What a turn that is served as a model tells of itself: its steps, and what they cost."""

import msgspec


class StepDone(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A step of a turn that is served as a model. Instants are monotonic seconds; `allowance_s`: what it might have used."""

    name: str  # the operator's own
    began_at: float
    ended_at: float
    allowance_s: float
    how: str  # ok, timeout, failed, skipped, cancelled; running, where its turn goes on
    detail: str = ""  # names of exceptions and reasons of ours
    is_capped: bool = False  # by its own cap, not by what the turn had left
    cost_usd: float | None = None  # None: it did not say
    parent: int = -1  # which of the turn's steps it ran in; -1: in none
    kind: str = ""  # tool, retrieval; empty: neither

    @property
    def broke_budget(self) -> bool:
        return self.how == "timeout" and not self.is_capped


class TurnSeen(msgspec.Struct, frozen=True, gc=False):
    """What is known of a turn that is served as a model."""

    steps: tuple[StepDone, ...] = ()
    cost_usd: float | None = None
