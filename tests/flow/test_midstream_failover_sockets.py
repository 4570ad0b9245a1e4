"""A rescue over real sockets: two chat servers, the official clients of two dialects, one whole answer."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from random import Random

import anthropic
import openai
import pytest
import uvloop
from tests.flow.test_budget_sockets import CHUNKED, chunk

from stayfast.compose.system import Observers, System, build
from stayfast.core.clock import SystemClock
from stayfast.lab.simulated.settings import KINDS
from stayfast.policy.resilience.stall import TokenFlow
from stayfast.server.backend import ActiveSystem
from stayfast.server.lifecycle import GatewayServer, ServerHooks
from stayfast.settings import SettingsText, load_settings

pytestmark = pytest.mark.sockets
TEXT = "What users feel is the tail: ça va? 🙂 So stop waiting."
STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n" + CHUNKED


class Replica:
    """A chat server like vLLM: says TEXT, or goes on with it; one that `halts` stops after 25 characters, and never ends."""

    def __init__(self, *, halts: bool) -> None:
        self.halts = halts
        self.bodies: list[dict[str, object]] = []
        self.was_closed = asyncio.Event()

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, one request."""
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
            asked = json.loads(await reader.readexactly(length))
            self.bodies.append(asked)
            said = asked["messages"][-1]["content"] if asked.get("continue_final_message") else ""
            rest = TEXT[len(said):25] if self.halts else TEXT[len(said):]
            writer.write(STREAM)
            for at in range(0, len(rest), 5):
                writer.write(chunk(self._event({"content": rest[at:at + 5]})))
            if not self.halts:
                usage = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
                writer.write(chunk(self._event({}, "stop"), self._event(None, usage=usage), b"[DONE]", ends=True))
            await reader.read()  # until the gateway leaves
        except ConnectionError:
            pass  # so it did
        finally:
            self.was_closed.set()
            writer.close()

    def _event(self, delta: dict[str, str] | None, reason: str | None = None, **fields: object) -> bytes:
        choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": reason}]
        name = "halting" if self.halts else "whole"
        return json.dumps({"id": f"chatcmpl-{name}", "object": "chat.completion.chunk", "created": 1, "model": "m",
                           "choices": choices, **fields}).encode()


@asynccontextmanager
async def gateway(first: Replica, second: Replica) -> AsyncIterator[tuple[str, System]]:
    """A gateway in this process whose route `m` rescues; it knows the gaps of its upstreams."""
    async with AsyncExitStack() as stack:
        lines = []
        for name, replica in (("first", first), ("second", second)):
            server = await stack.enter_async_context(await asyncio.start_server(replica.talk, "127.0.0.1", 0))
            port = server.sockets[0].getsockname()[1]
            lines.append(f"  {name}: {{kind: openai, base_url: 'http://127.0.0.1:{port}/v1', probe: false, apis: [chat], "
                         "supports_continuation: true}")
        text = "\n".join(["server: {port: 0}", "upstreams:", *lines,
                          "routes: {m: {upstreams: [first, second], pick: order, on_stall: rescue}}"])
        clock = SystemClock()
        settings = load_settings(SettingsText("test", text), {}, kinds=KINDS)
        observers = Observers(settings, clock)
        system = build(settings, observers, {}, clock, Random(1))
        for member in system.registry:
            member.flow = TokenFlow()
            member.flow.add_gaps([0.01] * 300, clock.now())
        errors: list[BaseException] = []
        host = ServerHooks(clock=clock, sink=observers.sink, entropy=b"12345678", version="0", on_error=errors.append,
                    on_listening=lambda _: None, on_reload=lambda: None, on_draining=lambda: None)
        edge = GatewayServer(ActiveSystem(system), host)
        await edge.listen()
        try:
            yield f"http://127.0.0.1:{edge.addresses()[0][1]}", system
        finally:
            edge.close()
            system.registry.close()
            await edge.app.tasks.wait_until_empty(1.0)
        assert errors == []


def test_midstream_failover_over_sockets_openai_client_reads_one_answer() -> None:
    """The first server stalls, the second one continues; the socket of the first one is closed."""
    async def main() -> None:
        first, second = Replica(halts=True), Replica(halts=False)
        async with gateway(first, second) as (url, system), openai.AsyncOpenAI(
                base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
            stream = await client.chat.completions.create(
                model="m", messages=[{"role": "user", "content": "hi"}], stream=True,
                stream_options={"include_usage": True})
            chunks = [one async for one in stream]
            assert "".join(one.choices[0].delta.content or "" for one in chunks if one.choices) == TEXT
            assert {one.id for one in chunks} == {"chatcmpl-halting"}
            reasons = [one.choices[0].finish_reason for one in chunks if one.choices]
            assert [reason for reason in reasons if reason] == ["stop"]
            usage = chunks[-1].usage
            assert usage is not None
            assert usage.completion_tokens == 5 + 3  # five pieces of the first
            async with asyncio.timeout(20):
                await first.was_closed.wait()
            assert second.bodies[0]["messages"] == [{"role": "user", "content": "hi"},
                                                    {"role": "assistant", "content": TEXT[:25].rstrip()}]
            assert second.bodies[0]["add_generation_prompt"] is False
        assert [member.n_in_flight for member in system.registry] == [0, 0]

    uvloop.run(main())


def test_midstream_failover_over_sockets_anthropic_client_reads_one_answer() -> None:
    """The same two chat servers behind a messages client."""
    async def main() -> None:
        async with gateway(Replica(halts=True), Replica(halts=False)) as (url, system), anthropic.AsyncAnthropic(
                base_url=url, api_key="none", max_retries=0) as client:
            async with client.messages.stream(model="m", max_tokens=500,
                                              messages=[{"role": "user", "content": "hi"}]) as stream:
                message = await stream.get_final_message()
            (block,) = message.content
            assert block.type == "text"
            assert block.text == TEXT
            assert (message.stop_reason, message.usage.output_tokens) == ("end_turn", 8)
            _, metrics = await system.metrics()
            assert b'stayfast_rescues_total{route="m",result="rescued"} 1\n' in metrics

    uvloop.run(main())
