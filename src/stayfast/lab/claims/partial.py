"""A hanging tool: the answer is on time and names what is missing, and the missing result follows when it arrives.

The turn's budget is inside a longer one, in which the tool continues (`gather(late=...)`). Each follow-up must arrive once,
at the instant at which its tool returns, with this turn's result. The longer budget ends tools that never return. A reader
must see `final` with the answer, then the patch, and its copy of the state must become equal to the turn's state. In virtual
time, with many concurrent turns.
"""

import asyncio
from dataclasses import dataclass
from random import Random
from typing import Any

from stayfast.lab.harness.claim import ClaimResult, Figure, Sense
from stayfast.lab.harness.virtual import VirtualClaim, leftover_tasks_figure, run_arrivals
from stayfast.testing.simloop import SimLoop
from stayfast.turns import budget, step
from stayfast.turns.answer import Answer
from stayfast.turns.events import FinalEvent, PatchEvent
from stayfast.turns.patch import apply_patch

TOTAL_S = 2.5
BY_S = 0.9
ANSWER_S = 1.2
FOLLOW_UP_S = 30.0
LATE_MS = 1.0
NEVER = 0.1  # share of the hanging tools that do not return within FOLLOW_UP_S
NAMES = ("retrieval", "orders", "weather", "calendar")
TURNS_PER_S = 20.0


@dataclass(slots=True)
class PartialRun:
    """n_wrong_names: answers that named more or less than the hanging tool. n_lost: follow-ups that did not arrive or
    belong to another turn. n_wrong_finals: readers that did not get exactly one final event with the missing name.
    n_wrong_states: readers whose patched state differs from the turn's.
    """

    longest_s: float = 0.0
    latest_follow_up_s: float = 0.0
    n_wrong_names: int = 0
    n_lost: int = 0
    n_followed: int = 0
    n_given_up: int = 0
    n_wrong_finals: int = 0
    n_wrong_states: int = 0
    latest_patch_s: float = 0.0


async def measure(loop: SimLoop, n: int, seed: int) -> ClaimResult:
    rng, seen = Random(seed), PartialRun()
    await run_arrivals(n, TURNS_PER_S, rng, lambda number: _run_turn(number, loop, rng, seen))
    return ClaimResult((
        Figure.exact("longest time to an answer, of a budget of 2.5 s", seen.longest_s, "s", TOTAL_S),
        Figure.count("answers that did not name exactly what they were without", seen.n_wrong_names),
        Figure.count("follow-ups that were lost or another turn's", seen.n_lost),
        Figure.exact("latest follow-up, after its source returned", seen.latest_follow_up_s * 1e3, "ms", LATE_MS),
        Figure.count("readers without one final event that says what is missing", seen.n_wrong_finals),
        Figure.count("readers whose state is not the turn's after the patch", seen.n_wrong_states),
        Figure.exact("latest patch, after its source returned", seen.latest_patch_s * 1e3, "ms", LATE_MS),
        Figure.count("follow-ups that came", seen.n_followed, 0.8 * n, Sense.AT_LEAST),
        Figure.count("sources that never came and were ended", seen.n_given_up, 1.0, Sense.AT_LEAST),
        leftover_tasks_figure()))


PARTIAL = VirtualClaim(
    "partial", "If 1 of 4 sources hangs, every answer is within its budget and names what is missing; the missing result "
    f"follows within {LATE_MS:g} ms of its arrival.",
    measure, "{:,} turns in virtual time", 20_000, 2_000)


async def _run_turn(number: int, loop: SimLoop, rng: Random, seen: PartialRun) -> None:
    hanging = rng.choice(NAMES)
    hangs_s = rng.uniform(3, 20) if rng.random() >= NEVER else FOLLOW_UP_S * 10
    returned_at: dict[str, float] = {}

    async def call_tool(name: str) -> tuple[int, str]:
        await asyncio.sleep(hangs_s if name == hanging else rng.uniform(0.05, 0.8))
        returned_at[name] = loop.now()
        return number, name

    async def write_answer() -> None:
        await asyncio.sleep(rng.uniform(0.5, ANSWER_S))

    began_at = loop.now()
    a = Answer()
    async with budget(FOLLOW_UP_S) as afterwards, asyncio.TaskGroup() as readers:
        readers.create_task(_read_events(a, hanging, returned_at, loop, seen))
        async with budget(TOTAL_S, {"answer": ANSWER_S}) as b, a:
            calls: dict[str, Any] = {name: step(call_tool, name) for name in NAMES}
            found = await b.gather(by=BY_S, late=afterwards, **calls)
            for name, straggler in found.late.items():
                a.put_later(name, straggler)
            await b.run(write_answer, name="answer")
            a.write("all that was there")
        seen.longest_s = max(seen.longest_s, loop.now() - began_at)
        is_right = list(found.missing) == [hanging] and all(found.done[name] == (number, name) for name in found.done)
        seen.n_wrong_names += not is_right or len(found.done) != len(NAMES) - 1
        if hanging not in found.late:
            seen.n_lost += 1
            return
        try:
            follow_up = await found.late[hanging].wait()
        except TimeoutError:
            seen.n_given_up += 1
            seen.n_lost += hangs_s < FOLLOW_UP_S
            return
    seen.n_followed += 1
    seen.n_lost += follow_up != (number, hanging)
    seen.latest_follow_up_s = max(seen.latest_follow_up_s, loop.now() - returned_at[hanging])


async def _read_events(a: Answer, hanging: str, returned_at: dict[str, float], loop: SimLoop, seen: PartialRun) -> None:
    """Read one turn's events to its last patch, like a page that requested late results."""
    state: Any = {}
    finals: list[FinalEvent] = []
    async for event in a.read(late=True):
        match event.payload:
            case PatchEvent(operations):
                state = apply_patch(state, operations)
                if finals and hanging in returned_at:
                    seen.latest_patch_s = max(seen.latest_patch_s, loop.now() - returned_at[hanging])
            case FinalEvent() as final:
                finals.append(final)
    seen.n_wrong_finals += finals != [FinalEvent("ok", missing=(hanging,), pending=(hanging,))]
    seen.n_wrong_states += state != a.state or state.get(hanging, {}).get("status") in (None, "pending")
