"""The stages of one request, and their times."""

import msgspec

from stayfast.core.types import Stage


class StageDone(msgspec.Struct, frozen=True, gc=False):
    """A stage ended. Instants are monotonic seconds; `allowance_s` is the time that it was allowed to use."""

    stage: Stage
    began_at: float
    ended_at: float
    allowance_s: float

    @property
    def spent_s(self) -> float:
        return self.ended_at - self.began_at


class StageTimes(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """All stages of a request, of which each begins when the one before ends. Instants are monotonic seconds."""

    began_at: float
    ended: tuple[tuple[Stage, float], ...]  # each stage, and when it ended
    deadline_at: float
    ends: tuple[float, ...] = ()  # when each of them had to end; empty: at the deadline

    def each(self) -> tuple[StageDone, ...]:
        found: list[StageDone] = []
        began_at = self.began_at
        for (stage, ended_at), ends_at in zip(self.ended, self.ends or (self.deadline_at,) * len(self.ended), strict=True):
            found.append(StageDone(stage, began_at, ended_at, max(0.0, ends_at - began_at)))
            began_at = ended_at
        return tuple(found)
