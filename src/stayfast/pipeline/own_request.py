"""Requests that the gateway itself makes to one of its routes: judgements of answers, summaries of conversations."""

from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Protocol

from stayfast.core.types import Chunk, Request
from stayfast.pipeline.exchange import Arrival
from stayfast.wire.stored_answer import read_stored_text


class ServedReply(Protocol):
    """As `stages.relay.StoreReply`."""

    async def next(self) -> Chunk | None:
        """The next part; None after the last."""

    async def aclose(self) -> None:
        """Release it."""


Serve = Callable[[Request, Arrival], Awaitable[ServedReply]]


async def fetch_text(serve: Serve, request: Request, arrival: Arrival) -> str:
    """The text of the whole reply. Raises StayfastError."""
    parts = []
    async with aclosing(await serve(request, arrival)) as reply:
        while (chunk := await reply.next()) is not None:
            parts.append(chunk.data)
    return read_stored_text(request, b"".join(parts))
