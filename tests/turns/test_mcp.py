"""Tools of a real MCP server, in a child process over stdio and over HTTP, under a budget."""

import asyncio
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from stayfast.turns import budget
from stayfast.turns.agent import Agent, AgentResult
from stayfast.turns.mcp import mcp_tools
from stayfast.turns.model import Json, ModelReply, OnPiece
from stayfast.turns.tools import AgentTool, ToolCallRequest
from tests.ports import free_port

pytestmark = pytest.mark.sockets
SERVER = Path(__file__).with_name("mcp_server.py")


class Scripted:
    """A model that calls all tools once, and then says what came of it."""

    async def generate(self, messages: Sequence[Json], tools: Sequence[Json], on_piece: OnPiece, *, may_call: bool,
                  max_tokens: int) -> ModelReply:
        """See `Model`."""
        results = [message["content"] for message in messages if message["role"] == "tool"]
        if may_call and not results:
            return ModelReply(calls=(ToolCallRequest("1", "stock", '{"item": "tea"}'), ToolCallRequest("2", "hang",
                                                                                                       '{"seconds": 30}'),
                               ToolCallRequest("3", "order", '{"item": "tea"}'), ToolCallRequest("4", "stock",
                                                                                                 '{"thing": 1}')))
        return ModelReply(" | ".join(results))


async def ask(server: object) -> AgentResult:
    """One turn with the tools of that server."""
    async with mcp_tools(server, timeout=3.0, trust_hints=True) as tools:
        assert [(tool.name, tool.is_idempotent, tool.is_speculative) for tool in tools] == [
            ("stock", True, True), ("hang", False, False), ("n_cancelled", False, False), ("die", False, False),
            ("order", False, False)]
        agent = Agent(Scripted(), tools)
        async with budget(60.0):
            return await agent.run([{"role": "user", "content": "What is there?"}])


def check(outcome: AgentResult) -> None:
    """Each call has its result, in their order: the hanging one its time-out, the failing one the server's words."""
    stock, hang, order, wrong = (json.loads(result) for result in outcome.text.split(" | "))
    assert (stock["status"], stock["result"]) == ("ok", {"n": 3})
    assert hang["status"] == "timeout"
    assert 2950 <= hang["elapsed_ms"] < 8000
    assert order["status"] == "error"
    assert "no tea is left" in order["error"]
    assert wrong["status"] == "error"
    assert outcome.outcome == "ok"


def test_mcp_server_over_stdio() -> None:
    check(asyncio.run(ask([sys.executable, str(SERVER)])))


def test_mcp_server_over_http() -> None:
    with running() as port:
        check(asyncio.run(ask(f"http://127.0.0.1:{port}/mcp")))


def test_mcp_prefix_separates_equal_tool_names() -> None:
    async def main() -> list[str]:
        command = [sys.executable, str(SERVER)]
        async with mcp_tools(command, prefix="a_") as some, mcp_tools(command, prefix="b_") as others:
            return list(Agent(Scripted(), [*some, *others]).tools)

    names = ("stock", "hang", "n_cancelled", "die", "order")
    assert asyncio.run(main()) == [*(f"a_{name}" for name in names), *(f"b_{name}" for name in names)]
    with pytest.raises(ValueError, match="an empty command"):
        asyncio.run(ask([]))


def test_mcp_timed_out_call_is_cancelled_at_the_server_and_dead_server_fails() -> None:
    async def call(tool: AgentTool[..., Any], arguments: str = "") -> dict[str, Any]:
        async with budget(5.0) as b:
            running = b.start_step(tool.build_step(arguments), tool.name)
            await running.done_future()
            return tool.describe_result(arguments, running)

    async def main() -> None:
        async with mcp_tools([sys.executable, str(SERVER)], timeout=2.0) as tools:
            by_name = {tool.name: tool for tool in tools}
            async with asyncio.timeout(30):
                while (await call(by_name["n_cancelled"])).get("result") in (None, {"result": 0}):
                    assert (await call(by_name["hang"], '{"seconds": 40}'))["status"] == "timeout"
                    await asyncio.sleep(0.05)
            for name in ("die", "n_cancelled"):
                said = await call(by_name[name])
                assert said["status"] == "error", name
                assert said["elapsed_ms"] < 1900

    asyncio.run(main())


@contextmanager
def running() -> Iterator[int]:
    """A server over HTTP on a free port; its port."""
    port = free_port()
    child = subprocess.Popen([sys.executable, str(SERVER), str(port)], stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 30
        while time.monotonic() < until:
            with socket.socket() as trying:
                if trying.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        yield port
    finally:
        child.terminate()
        child.wait(10)


def test_mcp_server_that_does_not_start_raises_connection_error() -> None:
    async def open_it(server: object) -> None:
        async with mcp_tools(server, open_timeout=1.0):
            raise AssertionError("it has opened")

    for server, said in ((["sleep", "1000"], "listed no tools within 1 s"),
                         (["true"], "the MCP server 'true' cannot be used"),
                         (["/no/such/program"], "cannot be used"), ("http://127.0.0.1:9/mcp", "cannot be used")):
        with pytest.raises(ConnectionError, match=said):
            asyncio.run(open_it(server))
    with pytest.raises(ValueError, match="a string is a URL"):
        asyncio.run(open_it("python server.py"))
