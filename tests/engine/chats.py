"""Chats with common instructions at an engine on random weights, whose tokens are bytes."""

import json
from typing import Any

from stayfast.core.clock import SystemClock
from stayfast.core.deadline import Deadline
from stayfast.core.types import Api, Request, Usage
from stayfast.upstreams.base import Call
from stayfast.upstreams.embedded import LocalUpstream
from tests.engine.rig import BOUND_S

HEAD = "answer with care. " * 40  # instructions that all conversations have
CLOCK = SystemClock()


async def answer(upstream: LocalUpstream, messages: list[dict[str, Any]], n_tokens: int = 4, more: str = "") -> Usage:
    """The counts of one answer. more: JSON members of the body."""
    body = json.dumps({"model": "m", "messages": messages, "max_tokens": n_tokens, "stream": True, "temperature": 0,
                       "stream_options": {"include_usage": True}}).encode()
    body = body[:-1] + more.encode() + b"}"
    stream = await upstream.open(Call(Request(Api.CHAT, "m", stream=True, body=body, include_usage=True), "m", "r",
                                      Deadline(CLOCK.now() + BOUND_S), 5.0))
    try:
        while await stream.next() is not None:
            pass
        assert stream.summary.usage is not None
        return stream.summary.usage
    finally:
        stream.close()


def chat(name: str, n_turns: int = 1) -> list[dict[str, Any]]:
    """A conversation: common instructions and turns of its own."""
    turns = [{"role": "user", "content": f"{name} {turn} " + f"{name} " * 60} for turn in range(n_turns)]
    return [{"role": "system", "content": HEAD}, *turns]
