"""Asking a simulated provider on virtual time."""

import asyncio
from typing import Any, NamedTuple

import msgspec

from stayfast.core.types import Api, Request
from stayfast.lab.simulated import ConnectionBroken, Provider, SimulatedCall, SimulatedHead, SimulatedRequest
from stayfast.testing import SimLoop
from stayfast.wire.request_body import decode

BODIES: dict[Api, dict[str, Any]] = {
    Api.CHAT: {"messages": [{"role": "user", "content": "hello there"}]},
    Api.COMPLETIONS: {"prompt": "hello there"},
    Api.RESPONSES: {"input": "hello there"},
    Api.MESSAGES: {"messages": [{"role": "user", "content": "hello there"}], "max_tokens": 1000},
    Api.EMBEDDINGS: {"input": ["hello", "there"]},
    Api.RERANK: {"query": "hello", "documents": ["hello", {"text": "there"}]},
    Api.COUNT_TOKENS: {"messages": [{"role": "user", "content": "hello there"}]},
    Api.INPUT_TOKENS: {"input": "hello there"}, Api.TOKENIZE: {"prompt": "hello there"},
}


class Heard(NamedTuple):
    """What a caller heard of one answer. Instants are seconds since it asked."""

    answering: SimulatedCall
    head: SimulatedHead | None
    head_at: float
    parts: list[tuple[float, bytes]]
    broke: str | None = None

    @property
    def body(self) -> bytes:
        """All of the body."""
        return (self.head.body or b"" if self.head is not None else b"") + b"".join(data for _, data in self.parts)

    @property
    def took_s(self) -> float:
        """Until the last byte."""
        return self.parts[-1][0] if self.parts else self.head_at


def request(api: Api, *, stream: bool = False, **fields: Any) -> Request:
    """A decoded request."""
    streamed = {"stream": stream} if api.can_stream else {}
    return decode(api, msgspec.json.encode({"model": "m", **BODIES[api], **streamed, **fields}))


def chat(n_output: int = 10, *, stream: bool = True, **fields: Any) -> SimulatedRequest:
    """A chat request for so many tokens."""
    return SimulatedRequest(Api.CHAT, "m", stream, n_output=n_output, **fields)


async def hear(provider: Provider, ask: SimulatedRequest) -> Heard:
    """Ask, and listen to the end."""
    loop = asyncio.get_running_loop()
    began_at = loop.time()
    answering = provider.start_call(ask)
    head, head_at, broke = None, 0.0, None
    parts: list[tuple[float, bytes]] = []
    try:
        head = await answering.wait_head()
        head_at = loop.time() - began_at
        while (data := await answering.next()) is not None:
            parts.append((loop.time() - began_at, data))
    except ConnectionBroken as why:
        broke = why.kind
        head_at = head_at or loop.time() - began_at
    finally:
        answering.close()
    return Heard(answering, head, head_at, parts, broke)


async def hear_for(seconds: float, provider: Provider, ask: SimulatedRequest) -> SimulatedCall:
    """Ask, and leave after so many seconds."""
    answering = provider.start_call(ask)
    try:
        async with asyncio.timeout(seconds):
            await answering.wait_head()
            while await answering.next() is not None:
                pass
    except TimeoutError:
        pass
    finally:
        answering.close()
    return answering


async def hear_many(loop: SimLoop, provider: Provider, asks: list[tuple[float, SimulatedRequest]]) -> list[Heard]:
    """Ask each at its instant; the answers in the order of the asks."""
    async def one(at: float, ask: SimulatedRequest) -> Heard:
        await asyncio.sleep(at - loop.time())
        return await hear(provider, ask)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(at, ask)) for at, ask in asks]
    return [task.result() for task in tasks]
