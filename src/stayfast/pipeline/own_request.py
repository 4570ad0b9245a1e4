"""Requests that the gateway itself makes to one of its routes: judgements of answers, summaries of conversations."""

from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any, Final, Protocol

import msgspec

from stayfast.core.clock import Clock
from stayfast.core.errors import StayfastError
from stayfast.core.types import Api, Chunk, Request
from stayfast.pipeline.exchange import Arrival
from stayfast.policy.admission.priority import Urgency
from stayfast.wire.request_body import decode
from stayfast.wire.stored_answer import read_stored_text

_UNFIT: Final = frozenset((400, 422))  # statuses: the model refuses this form of request
_THINKING_TOKENS: Final = 4096


class ServedReply(Protocol):
    """The part of `stages.relay.Reply` that a reader of the whole answer needs."""

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


class BackgroundModel:
    """The model of a route, for prompts of the gateway itself in the background. As batch requests they are rejected first;
    those with the role SUMMARY are looked up in no cache, have no hedges and use up no client's quota.
    """

    __slots__ = ("_clock", "_has_thoughts", "_role", "_route", "_serve", "_timeout_s")

    def __init__(self, route: str, role: str, serve: Serve, clock: Clock, timeout_s: float) -> None:
        """timeout_s: of one request."""
        self._route = route
        self._role = role
        self._serve = serve
        self._clock = clock
        self._timeout_s = timeout_s
        self._has_thoughts = False  # the model refuses a temperature and `max_tokens`

    async def answer(self, prompt: str, n_output: int) -> str:
        """The answer to a prompt, of at most n_output tokens. Raises StayfastError."""
        try:
            return await self._send(prompt, n_output)
        except StayfastError as error:
            if error.status not in _UNFIT:
                raise
            self._has_thoughts = not self._has_thoughts
            return await self._send(prompt, n_output)

    async def _send(self, prompt: str, n_output: int) -> str:
        form: dict[str, Any] = {"temperature": 0, "max_tokens": n_output}
        if self._has_thoughts:
            form = {"max_completion_tokens": n_output + _THINKING_TOKENS}
        request = decode(Api.CHAT, msgspec.json.encode({"model": self._route, **form,
                                                        "messages": [{"role": "user", "content": prompt}]}))
        arrival = Arrival(self._role, self._clock.now(), total_s=self._timeout_s, urgency=Urgency.BATCH, role=self._role)
        return await fetch_text(self._serve, request, arrival)

    def __repr__(self) -> str:
        return f"<BackgroundModel of {self._route} for {self._role}>"
