"""A gateway whose one upstream is at a given port, and a client of it, over real sockets."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.flow.socket_rig import gateway
from tests.server.fakes import CHAT, Client, post

WHOLE = (b'{"id":"c","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":{"role":"assistant",'
         b'"content":"hi"},"finish_reason":"stop"}]}')


@asynccontextmanager
async def gateway_to(port: int, to: int, route: str = "[a]") -> AsyncIterator[None]:
    """A gateway on `port`, whose one upstream, a, is at port `to`."""
    text = (f"server: {{port: {port}}}\nroutes: {{m: {route}}}\n"
            f"upstreams: {{a: {{kind: openai, base_url: 'http://127.0.0.1:{to}/v1', probe: false}}}}")
    async with gateway(text):
        yield


async def fetch(port: int, *lines: str, path: str = "/v1/chat/completions", body: bytes = CHAT) -> tuple[
        int, dict[str, str], Any]:
    """The answer to one request: status, headers and body."""
    client = Client(*await asyncio.open_connection("127.0.0.1", port))
    client.send(post(body, path, *lines))
    status, headers, answer = await client.answer()
    client.leave()
    return status, headers, json.loads(answer)
