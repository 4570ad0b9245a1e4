"""A small MCP server over stdio: one tool that answers, one that hangs. Started by `examples/mcp_agent.py`."""

import asyncio

from mcp.server.mcpserver import MCPServer
from mcp_types import ToolAnnotations

server = MCPServer("shop")


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
async def stock(item: str) -> dict[str, int]:
    """How many of an item are in stock."""
    return {"n": len(item)}


@server.tool()
async def delivery(order: str) -> str:
    """When an order arrives; its system hangs."""
    await asyncio.sleep(30)
    return f"order {order} comes tomorrow"


if __name__ == "__main__":
    server.run()
