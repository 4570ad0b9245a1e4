"""Mid-stream failover over real sockets: two chat servers, the official clients of two dialects, one whole answer."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anthropic
import openai
import pytest
import uvloop

from stayfast.compose.system import System
from stayfast.core.clock import SystemClock
from stayfast.policy.resilience.stall import TokenFlow
from tests.flow.socket_rig import EVENT_STREAM, chunk_of, gateway, listening, read_request

pytestmark = pytest.mark.sockets
TEXT = "What users feel is the tail: ça va? 🙂 So stop waiting."


class ChatServer:
    """A chat server like vLLM: it sends TEXT, or continues it. One that `halts` stalls after 25 characters."""

    def __init__(self, *, halts: bool) -> None:
        self.halts = halts
        self.bodies: list[dict[str, object]] = []
        self.was_closed = asyncio.Event()

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, one request."""
        try:
            body = json.loads((await read_request(reader))[1])
            self.bodies.append(body)
            start = body["messages"][-1]["content"] if body.get("continue_final_message") else ""
            rest = TEXT[len(start):25] if self.halts else TEXT[len(start):]
            writer.write(EVENT_STREAM)
            for at in range(0, len(rest), 5):
                writer.write(chunk_of(self._event({"content": rest[at:at + 5]})))
            if not self.halts:
                usage = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
                writer.write(chunk_of(self._event({}, "stop"), self._event(None, usage=usage), b"[DONE]", ends=True))
            await reader.read()  # until the gateway closes
        except ConnectionError:
            pass  # closed by the gateway
        finally:
            self.was_closed.set()
            writer.close()

    def _event(self, delta: dict[str, str] | None, reason: str | None = None, **fields: object) -> bytes:
        choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": reason}]
        name = "halting" if self.halts else "whole"
        return json.dumps({"id": f"chatcmpl-{name}", "object": "chat.completion.chunk", "created": 1, "model": "m",
                           "choices": choices, **fields}).encode()


@asynccontextmanager
async def gateway_of(first: ChatServer, second: ChatServer) -> AsyncIterator[tuple[str, System]]:
    """A gateway whose route `m` continues stalled answers: its URL and its system. It knows the gaps of its upstreams."""
    async with listening(first.talk) as first_port, listening(second.talk) as second_port:
        lines = [f"  {name}: {{kind: openai, base_url: 'http://127.0.0.1:{port}/v1', probe: false, apis: [chat], "
                 "supports_continuation: true}" for name, port in (("first", first_port), ("second", second_port))]
        text = "\n".join(["server: {port: 0}", "upstreams:", *lines,
                          "routes: {m: {upstreams: [first, second], pick: order, on_stall: rescue}}"])
        async with gateway(text) as (system, port):
            for member in system.registry:
                member.flow = TokenFlow()
                member.flow.add_gaps([0.01] * 300, SystemClock().now())
            yield f"http://127.0.0.1:{port}", system


def test_midstream_failover_over_sockets_openai_client_reads_one_answer() -> None:
    """The first server stalls, the second one continues; the socket of the first one is closed."""
    async def main() -> None:
        first, second = ChatServer(halts=True), ChatServer(halts=False)
        async with gateway_of(first, second) as (url, system), openai.AsyncOpenAI(
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
        async with gateway_of(ChatServer(halts=True), ChatServer(halts=False)) as (url, system), anthropic.AsyncAnthropic(
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
