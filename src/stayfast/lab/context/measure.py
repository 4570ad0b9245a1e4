"""How much planted damage the checks find, how many good summaries they reject, and what they cost.

Damage counts as found if the damaged summary breaks a rule that the good one does not break in the same place, so that a
false alarm never counts as a find. CPU time is that of this thread, with the reading of the source included.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from time import thread_time

from stayfast.core.context import Summary, TurnText, Violation
from stayfast.lab.context.conversations import LabConversation, make_conversation, make_summary
from stayfast.lab.context.damage import ALL_KINDS, damage_summary
from stayfast.policy.context.summary_checks import check_summary


@dataclass(frozen=True, slots=True)
class DamageResult:
    """`by_kind`: found and planted damage. `ms_a_kb`: CPU of each check, milliseconds a kilobyte of source, ascending."""

    by_kind: dict[str, tuple[int, int]]
    n_false_alarms: int
    n_good: int
    ms_a_kb: tuple[float, ...]

    def quantile_ms(self, share: float) -> float:
        """A quantile of the cost, such as 0.99."""
        return self.ms_a_kb[min(len(self.ms_a_kb) - 1, int(share * len(self.ms_a_kb)))]


@dataclass(frozen=True, slots=True)
class DamageCase:
    """A summary with its violations. `kind`: of its damage; empty for a good one, else `found` has what is new."""

    kind: str
    conversation: LabConversation
    summary: Summary
    found: tuple[Violation, ...]
    cpu_ms: float


def measure_damage(seed: int, n: int) -> DamageResult:
    """`n` conversations, each with a good summary and one damage of each kind. The seed determines all but the times."""
    by_kind = dict.fromkeys(ALL_KINDS, (0, 0))
    n_false_alarms, costs = 0, []
    for case in run_cases(seed, n):
        costs.append(case.cpu_ms / (case.conversation.n_chars / 1000))
        if not case.kind:
            n_false_alarms += bool(case.found)
        else:
            n_found, n_planted = by_kind[case.kind]
            by_kind[case.kind] = n_found + bool(case.found), n_planted + 1
    return DamageResult(by_kind, n_false_alarms, n, tuple(sorted(costs)))


def run_cases(seed: int, n: int) -> Iterator[DamageCase]:
    """The cases of a measurement, one by one: of each conversation the good summary first."""
    for at in range(n):
        conversation = make_conversation(seed * 1_000_000 + at)
        good = make_summary(conversation, conversation.lines)
        usual, cpu_ms = _check(conversation.source, good)
        yield DamageCase("", conversation, good, usual, cpu_ms)
        for kind in ALL_KINDS:
            damaged = damage_summary(kind, conversation, Random(f"{seed} {at} {kind}"))
            if damaged is not None and damaged != good:
                found, cpu_ms = _check(conversation.source, damaged)
                new = tuple(violation for violation in found if violation not in usual)
                yield DamageCase(kind, conversation, damaged, new, cpu_ms)


def _check(source: tuple[TurnText, ...], summary: Summary) -> tuple[tuple[Violation, ...], float]:
    started = thread_time()
    found = check_summary(source, summary)
    return found, (thread_time() - started) * 1e3
