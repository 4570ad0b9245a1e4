"""A turn for the tests of this folder. A gateway serves it; the turn calls a simulated model through the same gateway."""

import asyncio
from functools import partial
from pathlib import Path

from openai import AsyncOpenAI

from stayfast.turns import Answer, TurnRequest, budget, charge, step
from stayfast.turns.chat import ChatModel

WORD = "One"


async def look_up(seconds: float) -> str:
    """A tool that takes its time."""
    charge(0.001)
    await asyncio.sleep(seconds)
    return "found"


async def answer(asked: TurnRequest, a: Answer) -> None:
    """What the user says decides what happens."""
    match asked.text.split():
        case ["fail"]:
            raise KeyError("what the user said")
        case ["fail", "midway"]:
            a.write("One ")
            raise KeyError("what the user said")
        case ["nothing"]:
            return
        case ["hang", name]:
            await hang(a, Path(name))
        case ["ask", url]:
            await ask(asked, a, url)
        case ["late"]:
            await late(asked, a)
        case _:
            for number, word in enumerate((WORD, "two", "three")):
                a.report_progress("writing", word)
                await asyncio.sleep(0.3 if number and asked.text == "slowly" else 0)
                a.write(f"{word} ")


async def hang(a: Answer, ended: Path) -> None:
    """Says a word, and then nothing more until it is cancelled, which it writes down."""
    a.write_prefix("One ")
    try:
        await asyncio.sleep(60)
    finally:
        note(ended)


def note(ended: Path) -> None:
    """For the test, which is another process."""
    ended.touch()


async def ask(asked: TurnRequest, a: Answer, url: str) -> None:
    """Asks a model behind the same gateway."""
    async with AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client, budget(5.0) as b:
        model = partial(ChatModel(client, "small").generate, may_call=False, max_tokens=20)
        said = await b.run(model, asked.chat_messages(), (), lambda _: None, name="model")
        a.write(said.text)


async def late(asked: TurnRequest, a: Answer) -> None:
    """An answer without the tool that is slow, and a patch when that returns."""
    async with budget(2.0) as b:
        found = await b.gather(kb=step(look_up, 0.01), web=step(look_up, 0.4, cap=5), by=0.1, late=asked.late)
        for name, straggler in found.late.items():
            a.put_later(name, straggler)
        a.write("It is on its way.")
