"""Tools of MCP servers for agents, over stdio (the server runs as a child process) or HTTP. Needs `.[mcp]`.

    async with mcp_tools(["python", "server.py"], timeout=2.0) as files, mcp_tools("http://127.0.0.1:8000/mcp") as pages:
        agent = Agent(model, [*files, *pages])

The hints of a server about a tool (`idempotentHint`, `readOnlyHint`) are not verified: they apply only with `trust_hints`.
Turns share an open server; open and close it in the same task. A call that times out is also cancelled at the server. If the
server has died, every call fails, and the breaker of the tool opens.
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
    """The tools of one server while it is open: a command with its arguments, a URL, or an argument of `mcp.Client`.

    `timeout`: seconds per call. `trust_hints`: tools that the server declares read-only or idempotent may be called twice,
    and read-only ones speculatively. `prefix`: of tool names, if two servers share a name. `environment`: extra variables
    for a command. `open_timeout`: seconds to connect and list the tools. Raises ConnectionError if that fails, ValueError
    and TypeError for wrong arguments.
    """
    for name, seconds in (("timeout", timeout), ("open_timeout", open_timeout)):
        if not is_seconds(seconds):
            raise argument_error(f"{name}={seconds!r:.80}: seconds, above 0, as in mcp_tools(server, {name}=5.0)", seconds)
    description = _describe_server(server)
    if isinstance(server, Sequence) and not isinstance(server, str):
        server = StdioServerParameters(command=server[0], args=list(server[1:]), env=dict(environment))
    async with AsyncExitStack() as stack:
        try:
            async with asyncio.timeout(open_timeout):
                client = await stack.enter_async_context(Client(server))
                tools = await _list_tools(client, timeout, prefix, trust_hints=trust_hints)
        except TimeoutError:
            raise ConnectionError(f"{description} listed no tools within {open_timeout:g} s: is it an MCP server?") from None
        except (BaseExceptionGroup, OSError, MCPError) as error:
            cause: BaseException = error
            while isinstance(cause, BaseExceptionGroup):  # the task groups of the package wrap it
                cause = cause.exceptions[0]
            raise ConnectionError(f"{description} cannot be used: {cause!r}") from error
        yield tools


def _describe_server(server: Any) -> str:
    if isinstance(server, str):
        if not server.startswith(("http://", "https://")):
            raise ValueError(f"mcp_tools({server!r}): a string is a URL; to start a server, pass a list, as in "
                             'mcp_tools(["python", "server.py"])')
        return f"the MCP server at {server}"
    if isinstance(server, Sequence):
        if not server:
            raise ValueError('an empty command: to start a server, write mcp_tools(["python", "server.py"])')
        return f"the MCP server {server[0]!r}"
    return "the MCP server"


async def _list_tools(client: Client, timeout_s: float, prefix: str, *, trust_hints: bool) -> list[AgentTool[..., Any]]:
    tools: list[AgentTool[..., Any]] = []
    cursor: str | None = None
    while True:
        page = await client.list_tools(cursor=cursor)
        for tool in page.tools:
            hints = tool.annotations if trust_hints else None
            is_read_only = hints is not None and bool(hints.read_only_hint)
            tools.append(AgentTool(partial(_call_tool, client, tool.name, timeout_s), prefix + tool.name,
                                   tool.description or tool.title or tool.name, dict(tool.input_schema),
                                   parse=_OBJECT.decode, timeout=timeout_s, speculative=is_read_only,
                                   idempotent=is_read_only or (hints is not None and bool(hints.idempotent_hint))))
        cursor = page.next_cursor
        if not cursor:
            return tools


async def _call_tool(client: Client, name: str, timeout_s: float, /, **arguments: Any) -> Any:
    """The result of the server. Raises ToolError with the server's message if the tool failed."""
    result = await client.call_tool(name, arguments, read_timeout_seconds=timeout_s)
    if result.is_error:
        raise ToolError(_result_text(result) or "the tool failed")
    return result.structured_content if result.structured_content is not None else _result_text(result)


def _result_text(result: CallToolResult) -> str:
    """The text of the result; other content as its type in brackets."""
    return "\n".join(block.text if block.type == "text" else f"[{block.type}]" for block in result.content)
