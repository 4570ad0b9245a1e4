"""How the time of one request is shared among its stages.

Problem: where every layer gives every attempt a fresh time-out, a request waits for their sum, and its user has left long
before. Rule: one deadline, an absolute instant. A stage may have a *part* of the time to it, and a part is two things at
once: the most that the stage may use, and what the stages before it must leave. What a stage leaves of its part is carried
to the next stage that has one. A stage without a part may use whatever nobody behind it is promised.

    remaining    = deadline - now
    kept(i)      = sum of the parts of the stages behind i
    carried(i)   = what the stages before i have left of their parts
    allowance(i) = min(part(i) + carried(i), remaining - kept(i))     with a part
                 = remaining - kept(i)                                without one

A fallback's `reserve` lies inside the call: the first choice has allowance(call) - reserve, and the stages before the call
leave at least the reserve. A client that is less patient than its route makes every part smaller, in proportion.
Source: gRPC deadlines, nested by min(); reserves and handing on are ours.
When wrong: parts are promises, not measurements. A part far above what its stage needs takes that time from the stages
before it, in bad moments; a reserve below the fallback's own p99 is a fallback that fails with everything else.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Annotated

from stayfast.core.setting import SettingDoc, check_bounds
from stayfast.core.types import Stage

PART = r"|[0-9]{1,5}(\.[0-9]{1,6})?%?"
PART_FORM = "seconds, or a share of the deadline like 20%"
_ROUNDING_S = 1e-9


def _part(doc: str) -> SettingDoc:
    return SettingDoc(doc, pattern=PART, form=PART_FORM, or_number=True)


@dataclass(frozen=True, slots=True)
class BudgetConfig:
    """The parts of a route's deadline: seconds (`0.3`) or a share of the deadline (`20%`). Empty: the stage has no part."""

    admit: Annotated[str, _part("Reading the request, and its wait for a slot.")] = ""
    cache: Annotated[str, _part("Cache lookup.")] = ""
    context: Annotated[str, _part("Fitting the prompt.")] = ""
    route: Annotated[str, _part("Choosing the upstream.")] = ""
    model: Annotated[str, _part("All attempts, to the first token of a stream or the end of a whole answer.")] = ""
    relay: Annotated[str, _part("First token of a stream to its last.")] = ""
    post: Annotated[str, _part("After the last byte.")] = ""

    def __post_init__(self) -> None:
        check_bounds(self)
        for field in fields(self):
            part = getattr(self, field.name)
            if part and not float(part.rstrip("%")):
                raise ValueError(f"{field.name} must be {PART_FORM}, more than 0, not {part!r}")


STAGES: Mapping[str, Stage] = MappingProxyType({
    "admit": Stage.ADMIT, "cache": Stage.CACHE, "context": Stage.CONTEXT, "route": Stage.ROUTE, "model": Stage.CALL,
    "relay": Stage.RELAY, "post": Stage.SETTLE})


@dataclass(frozen=True, slots=True)
class StageBudget:
    """The parts of one deadline, in seconds. Immutable, so safe to share."""

    total_s: float
    parts_s: Mapping[Stage, float]  # of those stages that have one
    reserved_s: Mapping[Stage, float]  # for each stage, what it must leave to those behind it
    reserve_s: float = 0.0  # of the call, for the fallback

    def ends_at(self, stage: Stage, now: float, deadline_at: float, carried_s: float) -> float:
        """The instant at which a stage that begins now must be over; may be `now` or before it."""
        latest_at = deadline_at - self.reserved_s[stage]
        part_s = self.parts_s.get(stage)
        return latest_at if part_s is None else min(latest_at, now + part_s + carried_s)

    def carried_s(self, stage: Stage, spent_s: float, carried_s: float) -> float:
        """What is carried on behind a stage that took `spent_s`, when `carried_s` was carried to it."""
        part_s = self.parts_s.get(stage)
        return carried_s if part_s is None else max(0.0, part_s + carried_s - spent_s)

    def within(self, total_s: float) -> "StageBudget":
        """The same parts of a shorter time."""
        if total_s >= self.total_s:
            return self
        share = total_s / self.total_s
        return StageBudget(total_s, {stage: part_s * share for stage, part_s in self.parts_s.items()},
                      {stage: seconds * share for stage, seconds in self.reserved_s.items()}, self.reserve_s * share)


def share_out(config: BudgetConfig, total_s: float, reserve: str = "") -> StageBudget:
    """The budget of a route whose deadline is `total_s`, with a `reserve` for its fallback: seconds, or a share of the
    model's part, which without one is what nobody has a part of. Raises ValueError, beginning with the setting's name, where
    the parts do not fit.
    """
    parts_s = {STAGES[field.name]: seconds(text, total_s) for field in fields(config)
               if (text := getattr(config, field.name))}
    sum_s = sum(parts_s.values())
    if sum_s > total_s + _ROUNDING_S:
        raise ValueError(f"budget comes to {sum_s:g} s, which is more than the deadline of {total_s:g} s")
    model_s = parts_s.get(Stage.CALL, total_s - sum_s)
    reserve_s = seconds(reserve, model_s) if reserve else 0.0
    if reserve and not 0 < reserve_s < model_s - _ROUNDING_S:
        raise ValueError(f"reserve of {reserve_s:g} s leaves no time for the first choice")
    reserved_s: dict[Stage, float] = {}
    behind_s = 0.0
    for stage in reversed(Stage):
        reserved_s[stage] = behind_s
        behind_s += parts_s.get(stage, reserve_s if stage is Stage.CALL else 0.0)
    return StageBudget(total_s, parts_s, reserved_s, reserve_s)


def seconds(part: str, total_s: float) -> float:
    """A part in seconds; a share is one of `total_s`."""
    return float(part[:-1]) / 100 * total_s if part.endswith("%") else float(part)
