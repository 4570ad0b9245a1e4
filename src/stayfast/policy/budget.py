"""How a request's deadline is divided among its stages.

Problem: if each layer gives each attempt a fresh time-out, a request waits for their sum, long after its user has left.
Rule: there is one deadline. A stage may have a *part* of the time, which is both the most that it may use and what earlier
stages must leave. What it does not use is carried over to the next stage with a part. A stage without a part may use any
time not reserved for later stages.

    remaining    = deadline - now
    reserved(i)  = sum of the parts of the stages after i
    carried(i)   = unused parts of the stages before i
    allowance(i) = min(part(i) + carried(i), remaining - reserved(i))     with a part
                 = remaining - reserved(i)                                without one

A fallback's `reserve` is inside the call: the first choice has allowance(call) - reserve, and earlier stages leave at least
the reserve. If the client's own time-out is shorter than the route's, all parts shrink in proportion.
Source: gRPC deadlines, nested by min(); reserves and carrying over are ours.
When wrong: a part far above a stage's need takes time from earlier stages; a reserve below the fallback's own p99 makes the
fallback fail, too.
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


def _stage_part(doc: str) -> SettingDoc:
    return SettingDoc(doc, pattern=PART, form=PART_FORM, or_number=True)


@dataclass(frozen=True, slots=True)
class BudgetConfig:
    """The parts of a route's deadline: seconds (`0.3`) or a share of the deadline (`20%`). Empty: no part."""

    admit: Annotated[str, _stage_part("Reading the request, and its wait for a slot.")] = ""
    cache: Annotated[str, _stage_part("Cache lookup.")] = ""
    context: Annotated[str, _stage_part("Fitting the prompt.")] = ""
    route: Annotated[str, _stage_part("Choosing the upstream.")] = ""
    model: Annotated[str, _stage_part("All attempts, to the first token of a stream or the end of a whole answer.")] = ""
    relay: Annotated[str, _stage_part("First token of a stream to its last.")] = ""
    post: Annotated[str, _stage_part("After the last byte.")] = ""

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
    """The parts of one deadline, in seconds. Immutable."""

    total_s: float
    parts_s: Mapping[Stage, float]  # only of stages with a part
    reserved_s: Mapping[Stage, float]  # for each stage, the time that later stages need
    reserve_s: float = 0.0  # of the call, for the fallback

    def ends_at(self, stage: Stage, now: float, deadline_at: float, carried_s: float) -> float:
        """The instant by which a stage that starts now must end; it may have passed already."""
        latest_at = deadline_at - self.reserved_s[stage]
        part_s = self.parts_s.get(stage)
        return latest_at if part_s is None else min(latest_at, now + part_s + carried_s)

    def carried_s(self, stage: Stage, spent_s: float, carried_s: float) -> float:
        """The unused time after a stage that took `spent_s`, given `carried_s` from the stages before."""
        part_s = self.parts_s.get(stage)
        return carried_s if part_s is None else max(0.0, part_s + carried_s - spent_s)

    def scale_to(self, total_s: float) -> "StageBudget":
        if total_s >= self.total_s:
            return self
        share = total_s / self.total_s
        return StageBudget(total_s, {stage: part_s * share for stage, part_s in self.parts_s.items()},
                           {stage: part_s * share for stage, part_s in self.reserved_s.items()}, self.reserve_s * share)


def divide_deadline(config: BudgetConfig, total_s: float, reserve: str = "") -> StageBudget:
    """The budget of a route with a deadline of `total_s` seconds. `reserve`, for the fallback, is in seconds or a share of
    the model's part (without one, of the time that no other stage has). Raises ValueError that begins with the setting's
    name if the parts do not fit.
    """
    parts_s = {STAGES[field.name]: parse_part(text, total_s) for field in fields(config)
               if (text := getattr(config, field.name))}
    sum_s = sum(parts_s.values())
    if sum_s > total_s + _ROUNDING_S:
        raise ValueError(f"budget comes to {sum_s:g} s, which is more than the deadline of {total_s:g} s")
    model_s = parts_s.get(Stage.CALL, total_s - sum_s)
    reserve_s = parse_part(reserve, model_s) if reserve else 0.0
    if reserve and not 0 < reserve_s < model_s - _ROUNDING_S:
        raise ValueError(f"reserve of {reserve_s:g} s leaves no time for the first choice")
    reserved_s: dict[Stage, float] = {}
    behind_s = 0.0
    for stage in reversed(Stage):
        reserved_s[stage] = behind_s
        behind_s += parts_s.get(stage, reserve_s if stage is Stage.CALL else 0.0)
    return StageBudget(total_s, parts_s, reserved_s, reserve_s)


def parse_part(part: str, total_s: float) -> float:
    """A part in seconds; a percentage is of `total_s`."""
    return float(part[:-1]) / 100 * total_s if part.endswith("%") else float(part)
