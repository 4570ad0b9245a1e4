"""A gateway of upstreams that speak one text and can continue it, on virtual time."""

from collections.abc import Sequence
from dataclasses import replace

import msgspec

from stayfast.core.deadline import Timeouts
from stayfast.pipeline.plan import OnStall
from stayfast.policy.resilience.retry import RetryConfig
from stayfast.policy.resilience.stall import TokenFlow
from stayfast.testing import SendText, SimLoop, Wait
from stayfast.upstreams.base import AnswerStream, Call
from stayfast.upstreams.scripted import ScriptedUpstream, Step
from tests.flow.rig import MODEL, Rig

TEXT = ("Average latency is a lie, for what users feel is the tail. One slow answer in a hundred is the one they will "
        "remember, and a page that asks ten models waits for the slowest.\n\nSo: stop waiting. ")
GAP_S, TTFT_S = 0.02, 0.3
HALT = [Wait(1000.0)]


class ContinuingUpstream(ScriptedUpstream):
    """Says TEXT, a word a gap; `halts` with these steps after so many words. Asked to go on it does, unless it `fails`."""

    def __init__(self, name: str, loop: SimLoop, halts: dict[int, Sequence[Step]] | None = None,
                 fails: Step | None = None) -> None:
        super().__init__(name, [[]], loop)
        self.halts = halts or {}
        self.fails = fails
        self.prefixes: list[str] = []

    async def open(self, call: Call) -> AnswerStream:
        """Answer, or go on with the last message."""
        last = msgspec.json.decode(call.request.body)["messages"][-1]
        text, halts = TEXT, self.halts
        if call.is_continuation:
            assert last["role"] == "assistant"
            self.prefixes.append(last["content"])
            assert TEXT.startswith(last["content"])
            text = TEXT[len(last["content"]):]
            n_said = last["content"].count(" ") + 1
            halts = {n - n_said + 1: steps for n, steps in halts.items() if n > n_said}  # the first word is a blank
        words = [word for word in text.replace(" ", " \0").split("\0") if word]
        steps: list[Step] = [Wait(TTFT_S)]
        if call.is_continuation and self.fails is not None:
            steps.append(self.fails)
        for n, word in enumerate(words):
            steps += [*halts.get(n, ()), SendText(word), Wait(GAP_S)]
        self.scripts = [steps]
        return await super().open(call)


def failover_rig(loop: SimLoop, *speakers: ContinuingUpstream, on_stall: OnStall = "rescue",
                 timeouts: Timeouts | None = None,
           partial: bool = False, knows_gaps: bool = True) -> Rig:
    """A rig whose route does something about stalls, and that knows the gaps of its upstreams."""
    rig = Rig(loop, upstreams=speakers, in_turn=True, timeouts=timeouts, partial=partial,
              retry=RetryConfig(max_attempts=1))
    rig.scripted = list(speakers)
    rig.change_route(on_stall=on_stall, targets=tuple(
        replace(target, continues=True) for target in rig.router.routes[MODEL].targets))
    for member in rig.registry:
        if knows_gaps:
            member.flow = TokenFlow()
            for _ in range(10):
                member.flow.add_gaps([GAP_S] * 30, loop.now())
    return rig
