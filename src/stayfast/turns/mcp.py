"""Tools of MCP servers, for agents: over stdio, where the server is started as a child, or over HTTP. Needs `.[mcp]`.

    async with mcp_tools(["python", "server.py"], timeout=2.0) as files, mcp_tools("http://127.0.0.1:8000/mcp") as pages:
        agent = Agent(model, [*files, *pages])

What a server says of a tool (`idempotentHint`, `readOnlyHint`) is a hint of a stranger: it counts only with `trust_hints`. An open
server is shared by turns; open it and close it in one task. A call that is cut off by its time-out is cancelled at the
server, too; a server that has died answers every call by an error, which the breaker of the tool then spares.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from types import MappingProxyType
from typing import Any

import msgspec
from mcp import Client, MCPError, StdioServerParameters
from mcp_types import CallToolResult

from stayfast.turns.tools import AgentTool, ToolError
from stayfast.turns.validation import argument_error, is_seconds

_OBJECT = msgspec.json.Decoder(dict[str, Any])


@asynccontextmanager
async def mcp_tools(server: Any, *, timeout: float = 5.0, trust_hints: bool = False, prefix: str = "",
                    environment: Mapping[str, str] = MappingProxyType({}),
                    open_timeout: float = 10.0) -> AsyncIterator[list[AgentTool[..., Any]]]:
    """The tools of one server while it is open: a command and its arguments, a URL, or what `mcp.Client` takes.

    `timeout`: the most seconds of one call. `trust_hints`: tools that the server calls read-only or idempotent may be called
    twice and, if read-only, be begun while the model still writes. `prefix`: of their names, where two servers have the
    same. `environment`: more variables for a command. `open_timeout`: the most seconds until it has told its tools. Raises
    ConnectionError where it has not, or cannot be reached or started, ValueError and TypeError for what cannot be.
    """
    for name, seconds in (("timeout", timeout), ("open_timeout", open_timeout)):
        if not is_seconds(seconds):
            raise argument_error(f"{name}={seconds!r:.80}: seconds, more than 0, as in mcp_tools(server, {name}=5.0)",
                                 seconds)
    named = _describe_server(server)
    if isinstance(server, Sequence) and not isinstance(server, str):
        server = StdioServerParameters(command=server[0], args=list(server[1:]), env=dict(environment))
    async with AsyncExitStack() as opened:
        try:
            async with asyncio.timeout(open_timeout):
                client = await opened.enter_async_context(Client(server))
                tools = await _list_tools(client, timeout, prefix, trust=trust_hints)
        except TimeoutError:
            raise ConnectionError(f"{named} told no tools within {open_timeout:g} s: is it an MCP server?") from None
        except (BaseExceptionGroup, OSError, MCPError) as error:
            cause: BaseException = error
            while isinstance(cause, BaseExceptionGroup):  # the package's task groups wrap it
                cause = cause.exceptions[0]
            raise ConnectionError(f"{named} cannot be used: {cause!r}") from error
        yield tools


def _describe_server(server: Any) -> str:
    if isinstance(server, str):
        if not server.startswith(("http://", "https://")):
            raise ValueError(f"mcp_tools({server!r}): a string is a URL; a server that is to be started is a list, as in "
                             'mcp_tools(["python", "server.py"])')
        return f"the MCP server at {server}"
    if isinstance(server, Sequence):
        if not server:
            raise ValueError('an empty command: a server is started as in mcp_tools(["python", "server.py"])')
        return f"the MCP server {server[0]!r}"
    return "the MCP server"


async def _list_tools(client: Client, timeout_s: float, prefix: str, *, trust: bool) -> list[AgentTool[..., Any]]:
    tools: list[AgentTool[..., Any]] = []
    cursor: str | None = None
    while True:
        page = await client.list_tools(cursor=cursor)
        for one in page.tools:
            hints = one.annotations if trust else None
            only_reads = hints is not None and bool(hints.read_only_hint)
            tools.append(AgentTool(partial(_call_tool, client, one.name, timeout_s), prefix + one.name,
                              one.description or one.title or one.name, dict(one.input_schema), parse=_OBJECT.decode,
                              timeout=timeout_s, speculative=only_reads,
                              idempotent=only_reads or (hints is not None and bool(hints.idempotent_hint))))
        cursor = page.next_cursor
        if not cursor:
            return tools


async def _call_tool(client: Client, name: str, timeout_s: float, /, **arguments: Any) -> Any:
    """What the server says. Raises ToolError in its words where it could not do it."""
    result = await client.call_tool(name, arguments, read_timeout_seconds=timeout_s)
    if result.is_error:
        raise ToolError(_result_text(result) or "it failed")
    return result.structured_content if result.structured_content is not None else _result_text(result)


def _result_text(result: CallToolResult) -> str:
    """Its text; of pictures and the like only the kind."""
    return "\n".join(block.text if block.type == "text" else f"[{block.type}]" for block in result.content)
