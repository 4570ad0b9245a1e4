"""The examples run, with the real libraries."""

import asyncio

import httpx
import pytest

from examples import fastapi_endpoint, langgraph_node, mcp_agent, pydantic_ai_tool


def test_langgraph_example() -> None:
    said = asyncio.run(langgraph_node.main())
    assert said.startswith("From 1 page(s), without account, with 2.")
    assert "account" in said
    assert "timeout, not done within its cap of 0.2 s" in said


def test_pydantic_ai_example() -> None:
    said = asyncio.run(pydantic_ai_tool.main())
    assert said.startswith("The shop says: {'status': 'timeout'}")
    assert "order" in said.splitlines()[3]


def test_fastapi_example() -> None:
    async def main() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(fastapi_endpoint.app), base_url="http://app") as client:
            return await client.post("/ask", json={"text": "deadlines", "customer": "Ann"},
                                     headers={"x-stayfast-deadline-ms": "1500"})

    answer = asyncio.run(main()).json()
    assert answer["text"] == "deadlines: see 1 page(s)"
    assert answer["missing"] == {}
    assert 0 < answer["seconds_left"] < 1.5


@pytest.mark.sockets
def test_mcp_example() -> None:
    said = asyncio.run(mcp_agent.main())
    assert said.startswith("There are 3 in stock; when it comes I could not find out (timeout).")
    assert "delivery" in said
