"""An MCP server for tests, over stdio or, with a port, over HTTP: tools that answer, hang, fail and count."""

import asyncio
import os
import sys

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations

server = MCPServer("shop")
cancelled: list[float] = []


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
async def stock(item: str) -> dict[str, int]:
    """How many of an item there are."""
    return {"n": len(item)}


@server.tool()
async def hang(seconds: float) -> str:
    """Takes its time."""
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        cancelled.append(seconds)
        raise
    return "done"


@server.tool()
async def n_cancelled() -> int:
    """How many calls were cancelled."""
    return len(cancelled)


@server.tool()
async def die() -> None:
    """Ends the server."""
    os._exit(1)


@server.tool()
async def order(item: str) -> str:
    """Fails."""
    raise ToolError(f"no {item} is left")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", port=int(sys.argv[1]))
    else:
        server.run()
