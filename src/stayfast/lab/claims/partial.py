"""One tool hangs: the answer comes in time and says what it is without, and what was missing follows when it is there.

The turn's budget lies in a longer one, under which the tool goes on (`gather(late=...)`). Each follow-up must come at the
instant at which its tool returns, once, and be what that tool said to this turn and no other; the longer budget ends what
does not come at all. One reader sees `final` with the answer, another the patch, and its copy of the state must come to be
the turn's own. In virtual time, many turns at once.
"""

import asyncio
from dataclasses import dataclass
from random import Random
from typing import Any

from stayfast.lab.harness.claim import Figure, Finding, Sense
from stayfast.lab.harness.virtual import VirtualClaim, arrive
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
NEVER = 0.1  # of the tools that hang: they do not come within FOLLOW_UP_S
NAMES = ("retrieval", "orders", "weather", "calendar")
TURNS_A_S = 20.0


@dataclass(slots=True)
class PartialRun:
    longest_s: float = 0.0
    latest_follow_up_s: float = 0.0
    n_wrong_names: int = 0  # answers that named more, or less, than what hung
    n_lost: int = 0  # follow-ups that did not come, or were not this turn's
    n_followed: int = 0
    n_given_up: int = 0
    n_wrong_finals: int = 0  # readers that did not see one final event, with what is missing, at the answer's instant
    n_wrong_states: int = 0  # readers whose state did not come to be the turn's by its patches
    latest_patch_s: float = 0.0


async def play(loop: SimLoop, n: int, seed: int) -> Finding:
    rng, seen = Random(seed), PartialRun()
    await arrive(n, TURNS_A_S, rng, lambda number: _turn(number, loop, rng, seen))
    n_left = len(asyncio.all_tasks()) - 1
    return Finding((
        Figure("longest time to an answer, of a budget of 2.5 s", seen.longest_s, "s", TOTAL_S),
        Figure("answers that did not name exactly what they were without", float(seen.n_wrong_names), "", 0.0),
        Figure("follow-ups that were lost or another turn's", float(seen.n_lost), "", 0.0),
        Figure("latest follow-up, after its source returned", seen.latest_follow_up_s * 1e3, "ms", LATE_MS),
        Figure("readers without one final event that says what is missing", float(seen.n_wrong_finals), "", 0.0),
        Figure("readers whose state is not the turn's after the patch", float(seen.n_wrong_states), "", 0.0),
        Figure("latest patch, after its source returned", seen.latest_patch_s * 1e3, "ms", LATE_MS),
        Figure("follow-ups that came", float(seen.n_followed), "", 0.8 * n, Sense.AT_LEAST),
        Figure("sources that never came and were ended", float(seen.n_given_up), "", 1.0, Sense.AT_LEAST),
        Figure("Tasks left behind", float(n_left), "", 0.0)))


PARTIAL = VirtualClaim(
    "partial", "Where 1 of 4 sources hangs, every answer comes within its budget and names what it is without; what was "
    "missing follows the moment it is there.", play, "{:,} turns in virtual time", 20_000, 2_000)


async def _turn(number: int, loop: SimLoop, rng: Random, seen: PartialRun) -> None:
    hangs = rng.choice(NAMES)
    hangs_s = rng.uniform(3, 20) if rng.random() >= NEVER else FOLLOW_UP_S * 10
    returned_at: dict[str, float] = {}

    async def ask(name: str) -> tuple[int, str]:
        await asyncio.sleep(hangs_s if name == hangs else rng.uniform(0.05, 0.8))
        returned_at[name] = loop.now()
        return number, name

    async def answer() -> None:
        await asyncio.sleep(rng.uniform(0.5, ANSWER_S))

    began_at = loop.now()
    a = Answer()
    async with budget(FOLLOW_UP_S) as afterwards, asyncio.TaskGroup() as readers:
        readers.create_task(_read(a, hangs, returned_at, loop, seen))
        async with budget(TOTAL_S, {"answer": ANSWER_S}) as b, a:
            calls: dict[str, Any] = {name: step(ask, name) for name in NAMES}
            found = await b.gather(by=BY_S, late=afterwards, **calls)
            for name, straggler in found.late.items():
                a.put_later(name, straggler)
            await b.run(answer)
            a.write("all that was there")
        seen.longest_s = max(seen.longest_s, loop.now() - began_at)
        is_right = list(found.missing) == [hangs] and all(found.done[name] == (number, name) for name in found.done)
        seen.n_wrong_names += not is_right or len(found.done) != len(NAMES) - 1
        if hangs not in found.late:
            seen.n_lost += 1
            return
        try:
            follow_up = await found.late[hangs].wait()
        except TimeoutError:
            seen.n_given_up += 1
            seen.n_lost += hangs_s < FOLLOW_UP_S
            return
    seen.n_followed += 1
    seen.n_lost += follow_up != (number, hangs)
    seen.latest_follow_up_s = max(seen.latest_follow_up_s, loop.now() - returned_at[hangs])


async def _read(a: Answer, hangs: str, returned_at: dict[str, float], loop: SimLoop, seen: PartialRun) -> None:
    """Read one turn to its last patch, as a page would that asked for late ones."""
    state: Any = {}
    finals: list[FinalEvent] = []
    async for event in a.read(late=True):
        match event.payload:
            case PatchEvent(operations):
                state = apply_patch(state, operations)
                if finals and hangs in returned_at:
                    seen.latest_patch_s = max(seen.latest_patch_s, loop.now() - returned_at[hangs])
            case FinalEvent() as final:
                finals.append(final)
    seen.n_wrong_finals += finals != [FinalEvent("ok", missing=(hangs,), pending=(hangs,))]
    seen.n_wrong_states += state != a.state or state.get(hangs, {}).get("status") in (None, "pending")
