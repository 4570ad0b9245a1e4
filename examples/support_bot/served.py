"""The bot as a model of a gateway: `turn: "examples.support_bot.served:answer"`.

It uses a model of the same gateway, so that limits, caches and breakers apply there too. The address follows from
STAYFAST_PORT or PORT, as for the gateway; SUPPORT_BOT_URL overrides it. The shared state is opened with the first question;
vectors are loaded in the background, and answers name them as missing until then.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import replace

from openai import AsyncOpenAI

from examples.support_bot.desk import Unavailable, load_meaning, load_words
from examples.support_bot.turn import Desk, Writer, support
from stayfast.engine.config import TINY_ALIAS
from stayfast.settings.environment import read_environment
from stayfast.turns import Answer, TurnRefused, TurnRequest, current_budget
from stayfast.turns.chat import ChatModel

DEFAULT_PORT = "8090"


def gateway_url(variables: Mapping[str, str]) -> str:
    """The address of the gateway with the bot's model."""
    port = variables.get("STAYFAST_PORT") or variables.get("PORT") or DEFAULT_PORT
    return variables.get("SUPPORT_BOT_URL") or f"http://127.0.0.1:{port}/v1"


class Bot:
    """One per process. `model`: at `base_url`; by default that of `gateway_url`."""

    def __init__(self, base_url: str | None = None, model: str = TINY_ALIAS) -> None:
        self._base_url = base_url or gateway_url(read_environment())
        self._model = model
        self._desk: Desk | None = None
        self._reading: asyncio.Task[None] | None = None

    async def __call__(self, request: TurnRequest, a: Answer) -> None:
        """One request. Raises TurnRefused for an empty question."""
        if not request.text.strip():
            raise TurnRefused("messages: the last user message must not be empty")
        await support(request.text, a, self._desk or await self._open_desk(), request.late)

    async def _open_desk(self) -> Desk:
        docs, log = await current_budget().run(load_words, name="opening")
        if self._desk is None:  # another request may have opened it
            client = AsyncOpenAI(base_url=self._base_url, api_key="none", max_retries=0)
            writer = Writer(ChatModel(client, self._model), self._model, reads=self._model != TINY_ALIAS)
            self._desk = Desk(docs, log, None, writer, {"meaning": "still being read"})
            self._reading = asyncio.get_running_loop().create_task(self._load_meaning(self._desk))
        return self._desk

    async def _load_meaning(self, desk: Desk) -> None:
        try:
            self._desk = replace(desk, meaning=await load_meaning(desk.docs), without={})
        except Unavailable as error:
            self._desk = replace(desk, without={"meaning": str(error)})


answer = Bot()
