"""The steps of the context stage, on the real stages."""

import msgspec

from stayfast.core.events import RequestDone
from stayfast.core.types import Request
from stayfast.pipeline.context.step import ContextFacts
from stayfast.pipeline.exchange import Arrival
from stayfast.testing import ScriptedUpstream, SendText, SimLoop, run
from stayfast.upstreams.base import AnswerStream, Call
from tests.flow.rig import Rig, chat, read


class Replace:
    """Replaces a text of the body, and records what it saw."""

    def __init__(self, old: bytes, new: bytes) -> None:
        self.old, self.new = old, new
        self.facts: list[ContextFacts] = []

    async def apply(self, request: Request, facts: ContextFacts) -> Request:
        self.facts.append(facts)
        facts.note(f"replaced {len(self.old)} bytes")
        return msgspec.structs.replace(request, body=request.body.replace(self.old, self.new))


class BodyLog(ScriptedUpstream):
    """Remembers the bodies that it is sent."""

    bodies: tuple[bytes, ...] = ()

    async def open(self, call: Call) -> AnswerStream:
        self.bodies = (*self.bodies, call.request.body)
        return await super().open(call)


def test_steps_of_a_route_run_in_order_on_what_is_sent() -> None:
    """The upstream sees what the last step left; each step knows the tenant and the session, and its notes are recorded."""
    async def main(loop: SimLoop) -> None:
        upstream = BodyLog("up", [[SendText("fine")]], loop)
        rig = Rig(loop, upstreams=[upstream])
        first, second = Replace(b"hello", b"goodbye"), Replace(b"goodbye", b"so long")
        rig.change_policy(context=(first, second))
        reply = await rig.gateway.serve(chat(), Arrival("req_1", loop.now(), "acme", (("x-session-id", "s-1"),)))
        await read(reply)
        assert b"so long" in upstream.bodies[0]
        assert b"hello" not in upstream.bodies[0]
        assert (first.facts[0].tenant, first.facts[0].session, first.facts[0].route) == ("acme", b"s-1", "m")
        assert [*rig.sink.facts_of(RequestDone)[0].notes[:2]] == ["replaced 5 bytes", "replaced 7 bytes"]
        assert rig.n_in_flight == 0
    run(main)
