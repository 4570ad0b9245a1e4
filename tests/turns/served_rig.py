"""A function served as a model behind a gateway, in virtual time."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from stayfast.core.events import AttemptDone, TurnFailed
from stayfast.core.types import EventsOptions, Request
from stayfast.pipeline.exchange import Arrival
from stayfast.pipeline.stages.relay import Reply
from stayfast.policy.resilience.retry import RetryConfig
from stayfast.testing import RecordingSink, SimLoop
from stayfast.turns import Answer, TurnRequest
from stayfast.turns.function import check_turn_function
from stayfast.turns.served import ServedTurn
from tests.flow.rig import Rig, chat

TOTAL_S = 2.0
SECRET = "what the user said"


class Serving:
    """One function, its upstream and its gateway."""

    def __init__(self, loop: SimLoop, function: Callable[..., Any], *, n_attempts: int = 1, **options: Any) -> None:
        self._told = RecordingSink()
        self.served = ServedTurn("desk", check_turn_function("desk:answer", function), loop, self._told, **options)
        self.rig = Rig(loop, upstreams=[self.served], retry=RetryConfig(max_attempts=n_attempts))
        self.member = self.rig.registry["desk"]
        self.member.is_not_idempotent = not options.get("is_idempotent", False)
        self.loop = loop

    async def ask(self, request: Request | None = None, *, total_s: float = TOTAL_S, tenant: str | None = None,
                  events: EventsOptions | None = None, headers: tuple[tuple[str, str], ...] = (),
                  request_id: str = "req_1") -> Reply:
        """One request that arrives now."""
        return await self.rig.gateway.serve(request or chat(), Arrival(
            request_id, self.loop.now(), tenant, headers, total_s=total_s, events=events))

    @property
    def attempts(self) -> list[AttemptDone]:
        """What was told of attempts."""
        return self.rig.sink.facts_of(AttemptDone)

    @property
    def failures(self) -> list[TurnFailed]:
        """What was told of turns that raised."""
        return self._told.facts_of(TurnFailed)


def told(body: bytes) -> list[tuple[int, str, Any]]:
    """The typed events of a body: id, name, data."""
    found = []
    for block in body.decode().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if ": " in line and not line.startswith(":"))
        if "id" in fields:
            found.append((int(fields["id"]), fields["event"], msgspec.json.decode(fields["data"])))
    return found


async def some(reply: Reply, n: int) -> bytes:
    """The first chunks of a body that hold something."""
    parts: list[bytes] = []
    while len(parts) < n:
        chunk = await reply.next()
        assert chunk is not None
        if chunk.data:
            parts.append(chunk.data)
    return b"".join(parts)


async def quiet() -> None:
    """A few turns of the loop: what was cancelled is over."""
    for _ in range(5):
        await asyncio.sleep(0)


async def three(asked: TurnRequest, a: Answer) -> None:
    """Three words, a tenth of a second each, and metadata between them."""
    a.write_prefix("One ")
    for word in ("two ", "three"):
        a.report_progress("writing", word)
        await asyncio.sleep(0.1)
        a.write(word)


async def breaks(asked: TurnRequest, a: Answer) -> None:
    """Raises, after a word where that is asked for."""
    if asked.text == "midway":
        a.write("One ")
    raise KeyError(SECRET)
