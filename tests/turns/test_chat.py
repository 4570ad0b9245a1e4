"""An agent whose models stand behind the gateway, through OpenAI's own client, over sockets; and what a stream may bring."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from types import SimpleNamespace
from typing import Any

import openai
import pytest
import uvloop

from stayfast.compose.system import Observers, build
from stayfast.core.clock import SystemClock
from stayfast.lab.simulated.settings import KINDS
from stayfast.server.backend import ActiveSystem
from stayfast.server.lifecycle import GatewayServer, ServerHooks
from stayfast.settings import SettingsText, load_settings
from stayfast.turns import budget
from stayfast.turns.agent import Agent
from stayfast.turns.answer import Answer
from stayfast.turns.chat import ChatModel
from stayfast.turns.model_speed import ModelSpeed
from stayfast.turns.tools import ToolCallRequest, tool

SETTINGS = """
server: {port: 0}
upstreams:
  quick: {kind: simulated, ttft: {median_s: 0.02}, gaps: {median_s: 0.002}}
  hung: {kind: simulated, ttft: {median_s: 60}}
routes:
  large: {upstreams: [quick]}
  hung: {upstreams: [hung]}
"""


@asynccontextmanager
async def gateway() -> AsyncIterator[openai.AsyncOpenAI]:
    """A client of a gateway in this process, in front of simulated providers."""
    clock = SystemClock()
    settings = load_settings(SettingsText("test", SETTINGS), {}, kinds=KINDS)
    observers = Observers(settings, clock)
    system = build(settings, observers, {}, clock, Random(1))
    host = ServerHooks(clock=clock, sink=observers.sink, entropy=b"12345678", version="0", on_error=lambda _: None,
                on_listening=lambda _: None, on_reload=lambda: None, on_draining=lambda: None)
    edge = GatewayServer(ActiveSystem(system), host)
    await edge.listen()
    try:
        async with openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{edge.addresses()[0][1]}/v1", api_key="none",
                                      max_retries=0) as client:
            yield client
    finally:
        edge.close()
        system.registry.close()
        await edge.app.tasks.wait_until_empty(1.0)


@tool(timeout=0.3)
async def weather(city: str) -> str:
    """The weather in a city."""
    return "rain" if city else "none"


@pytest.mark.sockets
def test_chat_model_agent_through_the_gateway() -> None:
    """The planner calls tools; the answer is streamed within the budget."""
    async def main() -> None:
        async with gateway() as client:
            agent = Agent(ChatModel(client, "large"), [weather], plan=ChatModel(client, "large", tool_choice="required"),
                          max_tokens=40, speed=ModelSpeed("large"))
            async with budget(8.0), Answer() as a:
                outcome = await agent.run([{"role": "user", "content": "What is the weather?"}], a)
            assert (outcome.outcome, outcome.stopped_by, outcome.n_steps) == ("ok", "steps", 2)
            assert outcome.text == a.text != ""
            results = [json.loads(message["content"]) for message in outcome.messages if message["role"] == "tool"]
            assert [(result["status"], result["result"]) for result in results] == [("ok", "rain")] * 2

    uvloop.run(main())


@pytest.mark.sockets
def test_chat_model_sends_the_deadline_to_the_gateway() -> None:
    """With a hanging model the apology comes in time."""
    async def main() -> float:
        async with gateway() as client:
            agent = Agent(ChatModel(client, "hung", extra_headers={"x-mine": "1"}), answer_s=0.3)
            async with budget(0.5) as b, Answer() as a:
                outcome = await agent.run([{"role": "user", "content": "Hi"}], a)
            assert outcome.outcome == "apology"
            return b.ended_at - b.began_at

    assert uvloop.run(main()) < 2.0


def chunk(*calls: tuple[int, str | None, str | None, str | None], text: str | None = None,
          n_tokens: int | None = None) -> Any:
    """A chunk as the client gives it."""
    pieces = [SimpleNamespace(index=index, id=its_id, function=SimpleNamespace(name=name, arguments=arguments))
              for index, its_id, name, arguments in calls]
    choices = [SimpleNamespace(delta=SimpleNamespace(content=text, tool_calls=pieces or None))] if n_tokens is None else []
    return SimpleNamespace(choices=choices, usage=None if n_tokens is None else SimpleNamespace(completion_tokens=n_tokens))


class FakeClient:
    """What of OpenAI's client is used; it streams these chunks and remembers what was asked."""

    def __init__(self, *chunks: Any) -> None:
        self.chat = SimpleNamespace(completions=self)
        self.asked: dict[str, Any] = {}
        self._chunks = chunks

    async def create(self, **asked: Any) -> Any:
        """A stream."""
        self.asked = asked
        return self

    async def __aenter__(self) -> AsyncIterator[Any]:
        return self._stream()

    async def __aexit__(self, *_: object) -> None:
        pass

    async def _stream(self) -> AsyncIterator[Any]:
        for one in self._chunks:
            yield one


def test_chat_model_reports_a_tool_call_once_when_complete() -> None:
    """In pieces of any size; missing ids are generated."""
    client = FakeClient(
        chunk(text="Let me "), chunk((0, "a", "weather", "")), chunk((0, None, None, '{"city": {"n')),
        chunk((0, None, None, '": 1}')), chunk((0, None, None, "}")), chunk(text="see."),
        chunk((0, None, None, "  "), (1, None, "weather", '{"city":"}"')), chunk((1, None, None, "}")), chunk(n_tokens=9))
    heard: list[Any] = []

    async def main() -> Any:
        async with budget(2.0):
            return await ChatModel(client, "m", extra_headers={"x-mine": "1"}, timeout=0.5).generate(
                [{"role": "user", "content": "Hi"}], [weather.as_function()], heard.append, may_call=True, max_tokens=7)

    said = asyncio.run(main())
    first, second = ToolCallRequest("a", "weather", '{"city": {"n": 1}}'), ToolCallRequest("call_1", "weather",
                                                                                           '{"city":"}"}')
    assert heard == ["Let me ", first, "see.", second]
    assert (said.text, said.calls, said.n_tokens) == ("Let me see.", (first, second), 9)
    assert client.asked["tool_choice"] == "auto"
    assert client.asked["max_completion_tokens"] == 7
    assert set(client.asked["extra_headers"]) == {"x-mine", "x-stayfast-deadline-ms"}
    assert client.asked["timeout"] == 0.5  # its own, which is less than what is left
