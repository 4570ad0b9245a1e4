"""Agents' conversations: long instructions, many tools, and messages that grow with each turn, in three dialects."""

import asyncio
from random import Random
from typing import Any, Final

import msgspec

from stayfast.core.clock import Clock
from stayfast.core.errors import StayfastError
from stayfast.core.types import Api, Usage
from stayfast.lab.harness.virtual import read
from stayfast.pipeline.exchange import Arrival
from stayfast.pipeline.gateway import Gateway
from stayfast.wire.json_input import decode

Json = dict[str, Any]
N_TURNS: Final = 12
N_OUTPUT: Final = 40  # tokens of an answer
THINK_S: Final = 6.0  # on average, between an answer and the next request
_SENTENCE: Final = "A rule that never changes is worth being read once and kept for all who come after. "
_INSTRUCTIONS: Final = "You look after a shop that never closes. " + _SENTENCE * 750  # 12,000 words
_TOOLS: Final = tuple((f"tool_{n:02}", f"Number {n} of what the shop can do. " + _SENTENCE * 9) for n in range(40))
_PARAMETERS: Final = {"type": "object", "properties": {"what": {"type": "string"}}, "required": ["what"]}


class Turn(msgspec.Struct, frozen=True):
    """One request of an agent. `ttft_s`: from its start to the first content; None, with its status, where it failed."""

    n_turn: int
    status: int
    ttft_s: float | None = None
    usage: Usage | None = None


class Agent:
    """One conversation. `shuffles`: its tools come in another order each time, as from a set."""

    def __init__(self, api: Api, model: str, number: int, rng: Random, *, shuffles: bool) -> None:
        self._api = api
        self._model = model
        self._number = number
        self._rng = rng
        self._shuffles = shuffles
        self._messages: list[Json] = []
        self._call = 0

    async def run(self, gateway: Gateway, clock: Clock, turns: list[Turn]) -> None:
        """All turns, one after the other; each is added to `turns`."""
        for n_turn in range(N_TURNS):
            self._add_input(n_turn)
            turn = await self._ask(gateway, clock, n_turn)
            turns.append(turn)
            self._add_answer(n_turn)
            await asyncio.sleep(self._rng.expovariate(1 / THINK_S))

    async def _ask(self, gateway: Gateway, clock: Clock, n_turn: int) -> Turn:
        began_at = clock.now()
        arrival = Arrival(f"req_{self._number:04x}_{n_turn:04x}", began_at)
        try:
            reply = await gateway.serve(decode(self._api, self._body()), arrival)
        except StayfastError as failed:
            return Turn(n_turn, failed.status)
        ttft_s = clock.now() - began_at
        await read(reply)
        return Turn(n_turn, 200, ttft_s, reply.sight.usage)

    def _words(self, n: int) -> str:
        """Words of this agent's own."""
        return f"Agent {self._number}: " + " ".join(f"{self._rng.randrange(100_000)}" for _ in range(n))

    def _add_input(self, n_turn: int) -> None:
        """A question, or the result of the tool call in the last answer."""
        if n_turn % 4 == 0:
            self._messages.append({"role": "user", "content": self._words(120)})
        elif self._api is Api.MESSAGES:
            result = {"type": "tool_result", "tool_use_id": f"call_{self._call}", "content": self._words(300)}
            self._messages.append({"role": "user", "content": [result]})
        elif self._api is Api.CHAT:
            self._messages.append({"role": "tool", "tool_call_id": f"call_{self._call}", "content": self._words(300)})
        else:
            output = {"type": "function_call_output", "call_id": f"call_{self._call}", "output": self._words(300)}
            self._messages.append(output)

    def _add_answer(self, n_turn: int) -> None:
        """The model's answer: words before the next question, else a tool call."""
        if (n_turn + 1) % 4 == 0:
            self._messages.append({"role": "assistant", "content": self._words(N_OUTPUT)})
            return
        self._call += 1
        name, arguments = _TOOLS[self._rng.randrange(len(_TOOLS))][0], {"what": self._words(10)}
        called = {"name": name, "arguments": msgspec.json.encode(arguments).decode()}
        if self._api is Api.MESSAGES:
            use = {"type": "tool_use", "id": f"call_{self._call}", "name": name, "input": arguments}
            self._messages.append({"role": "assistant", "content": [{"type": "text", "text": self._words(10)}, use]})
        elif self._api is Api.CHAT:
            call = {"id": f"call_{self._call}", "type": "function", "function": called}
            self._messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        else:
            self._messages.append({"type": "function_call", "call_id": f"call_{self._call}", **called})

    def _body(self) -> bytes:
        tools = [self._tool(*tool) for tool in _TOOLS]
        if self._shuffles:
            self._rng.shuffle(tools)
        body: Json = {"model": self._model, "stream": True, "tools": tools}
        if self._api is Api.MESSAGES:
            body |= {"max_tokens": N_OUTPUT, "system": _INSTRUCTIONS, "messages": self._messages}
        elif self._api is Api.CHAT:
            body |= {"max_completion_tokens": N_OUTPUT, "stream_options": {"include_usage": True},
                     "messages": [{"role": "system", "content": _INSTRUCTIONS}, *self._messages]}
        else:
            body |= {"max_output_tokens": N_OUTPUT, "store": False, "instructions": _INSTRUCTIONS, "input": self._messages}
        return msgspec.json.encode(body)

    def _tool(self, name: str, description: str) -> Json:
        if self._api is Api.MESSAGES:
            return {"name": name, "description": description, "input_schema": _PARAMETERS}
        function = {"name": name, "description": description, "parameters": _PARAMETERS}
        return {"type": "function", "function": function} if self._api is Api.CHAT else {"type": "function", **function}
