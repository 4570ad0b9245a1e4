"""The half of the proof `isolation` that is about conversations: a follow-up means what was said before it.

Each conversation has a question, its answer, and a follow-up ("What are its types?"). The follow-up is asked below its own
question twice, and below N_OTHERS of other conversations, to a gateway with a semantic cache to which a text is only like
itself (`prove.oracle`). Below its own the second is answered from the cache; below another's it never is.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Final

import msgspec

from stayfast.core.types import Api
from stayfast.pipeline.exchange import Arrival
from stayfast.prove.claim import Figure, Sense, SetUpFailed
from stayfast.prove.oracle import SEMANTIC, Oracle, Told, ask, gateway_of, name_of
from stayfast.testing.simloop import SimLoop, run
from stayfast.wire.json_input import decode

FILES: Final = ("meancache_d1.json", "meancache_Synthetic_Dataset_Diverse.json")
N_OTHERS: Final = 10
LEAST_OWN: Final = 99.0  # %: a cache that never hits would mistake nothing
FROM_A_CACHE: Final = ("hit", "semantic", "coalesced")
_MODEL: Final = "m"


class Conversation(msgspec.Struct, frozen=True, rename={
        "question": "Main Query", "answer": "Main Query Response", "follow_up": "Follow-Up Query"}):
    """As the files have it."""

    question: str
    answer: str
    follow_up: str


def conversations(folder: Path) -> list[Conversation]:
    """Those of the files in this folder, each once. Raises SetUpFailed for a file that is none."""
    found: dict[Conversation, None] = {}
    for path in [folder / name for name in FILES if (folder / name).exists()]:
        try:
            found |= dict.fromkeys(msgspec.json.decode(path.read_bytes(), type=list[Conversation]))
        except (OSError, msgspec.MsgspecError) as error:
            raise SetUpFailed(f"{path} cannot be read as conversations: {type(error).__name__}") from None
    return list(found)


def below_others(asked: Sequence[Conversation], seed: int) -> list[Figure]:
    """Ask all follow-ups, and count. In virtual time."""
    async def main(loop: SimLoop) -> list[Figure]:
        below = _Below(loop, seed)
        rng = Random(seed)
        n_own = n_taken = n_else = 0
        for one in asked:
            await below.ask(one, one)
            again, _ = await below.ask(one, one)
            n_own += again in FROM_A_CACHE
            others = [other for other in rng.sample(asked, min(len(asked), N_OTHERS + 1))
                      if (other.question, other.answer) != (one.question, one.answer)]
            for other in others[:N_OTHERS]:
                result, is_new = await below.ask(other, one)
                n_else += is_new
                n_taken += is_new and result in FROM_A_CACHE
        n_asked = f"{n_else:,} times below others'"
        return [
            Figure(f"follow-ups asked {n_asked}: answered from a cache", float(n_taken), "", 0.0),
            Figure("with answers that were made below another question", float(below.n_crossed), "", 0.0),
            Figure("follow-ups below their own, asked again: answered from a cache",
                   n_own / len(asked) * 100 if asked else 0.0, "%", LEAST_OWN, Sense.AT_LEAST)]

    return run(main)


class _Below:
    """Asks a follow-up below any first turn."""

    def __init__(self, loop: SimLoop, seed: int) -> None:
        self.n_crossed = 0
        self._names: dict[str, str] = {}
        self._gateway = gateway_of(Oracle(self._names), (_MODEL,), SEMANTIC, loop, Random(seed), is_alike=False)
        self._loop = loop
        self._known: set[str] = set()
        self._n = 0

    async def ask(self, above: Conversation, below: Conversation) -> tuple[str, bool]:
        """What the cache had to do with the answer, and whether this follow-up was asked below those words for the first
        time.
        """
        turns = [("user", above.question), ("assistant", above.answer), ("user", below.follow_up)]
        name = name_of(msgspec.json.encode(turns))
        is_new, self._n = name not in self._known, self._n + 1
        self._known.add(name)
        self._names[f"req_{self._n}"] = name
        body = {"model": _MODEL, "temperature": 0, "messages": [{"role": role, "content": text} for role, text in turns]}
        told: Told = await ask(self._gateway, decode(Api.CHAT, msgspec.json.encode(body)),
                               Arrival(f"req_{self._n}", self._loop.now()))
        self.n_crossed += told.name != name
        await asyncio.sleep(1.0)  # it learns meanwhile
        return told.result, is_new
