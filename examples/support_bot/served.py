"""The bot as a model of a gateway: `turn: "examples.support_bot.served:answer"`.

The model that it asks is one of the same gateway, so that limits, caches and breakers hold there as well. It looks for that
gateway where STAYFAST_PORT or PORT put it, as the gateway itself does; SUPPORT_BOT_URL names another one. What all turns
share is opened with the first question; vectors follow beside it, and until they are there answers say so.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import replace

from openai import AsyncOpenAI

from examples.support_bot.desk import Unavailable, meaning, words
from examples.support_bot.turn import Desk, Writer, support
from stayfast.engine.config import TINY_ALIAS
from stayfast.settings.environment import environment
from stayfast.turns import Answer, TurnRefused, TurnRequest, current_budget
from stayfast.turns.chat import ChatModel

USUAL_PORT = "8090"


def gateway(variables: Mapping[str, str]) -> str:
    """The address of the gateway that the bot asks its model of."""
    port = variables.get("STAYFAST_PORT") or variables.get("PORT") or USUAL_PORT
    return variables.get("SUPPORT_BOT_URL") or f"http://127.0.0.1:{port}/v1"


class Bot:
    """One for all requests of a process. `model`: which it asks, at `base_url`; None: as `gateway` says."""

    def __init__(self, base_url: str | None = None, model: str = TINY_ALIAS) -> None:
        self._base_url = base_url or gateway(environment())
        self._model = model
        self._desk: Desk | None = None
        self._reading: asyncio.Task[None] | None = None

    async def __call__(self, asked: TurnRequest, a: Answer) -> None:
        """One request. Raises Refused where nothing was asked."""
        if not asked.text.strip():
            raise TurnRefused("messages: the last one of the user must ask something")
        await support(asked.text, a, self._desk or await self._opened(), asked.late)

    async def _opened(self) -> Desk:
        docs, log = await current_budget().run(words, name="opening")
        if self._desk is None:  # another question may have been quicker
            client = AsyncOpenAI(base_url=self._base_url, api_key="none", max_retries=0)
            writer = Writer(ChatModel(client, self._model), self._model, reads=self._model != TINY_ALIAS)
            self._desk = Desk(docs, log, None, writer, {"meaning": "still being read"})
            self._reading = asyncio.get_running_loop().create_task(self._read(self._desk))
        return self._desk

    async def _read(self, desk: Desk) -> None:
        try:
            self._desk = replace(desk, meaning=await meaning(desk.docs), without={})
        except Unavailable as error:
            self._desk = replace(desk, without={"meaning": str(error)})


answer = Bot()
