"""Probes: an upstream is proven by a real token, and a failing probe says why, once."""

import asyncio
from random import Random

from stayfast.core.errors import Fault
from stayfast.core.events import AttemptDone, ProbeFailed
from stayfast.core.types import Outcome
from stayfast.pipeline.attempts.readiness import ProbeConfig, Prober
from stayfast.testing import Fail, RecordingSink, Script, ScriptedUpstream, SendText, SimLoop, Wait, run
from stayfast.upstreams.state.permit import acquire_permit
from stayfast.upstreams.state.upstream_state import UpstreamState

WELL: Script = [Wait(0.1), SendText("ok"), Wait(5), SendText("never read")]


async def probe_for(loop: SimLoop, scripts: list[Script], seconds: float) -> tuple[UpstreamState, Prober, RecordingSink,
                                                                                ScriptedUpstream]:
    """One member, probed for some virtual seconds."""
    sink = RecordingSink()
    upstream = ScriptedUpstream("up", scripts, loop)
    member = UpstreamState(upstream)
    prober = Prober([(member, "m")], ProbeConfig(), loop, Random(1), sink)
    task = loop.create_task(prober.run())
    await asyncio.sleep(seconds)
    task.cancel()
    await asyncio.wait([task])
    return member, prober, sink, upstream


def test_probe_first_token_proves_the_upstream() -> None:
    """The stream is closed at its first token, and no other probe follows."""

    async def main(loop: SimLoop) -> None:
        member, prober, sink, upstream = await probe_for(loop, [WELL], 60)
        assert member.is_proven
        assert (upstream.n_calls, upstream.n_cancelled, upstream.n_open, member.n_in_flight) == (1, 1, 0, 0)
        assert upstream.last_closed_at == 0.1
        assert prober.complaints == {}
        assert not sink.facts_of(ProbeFailed)

    run(main)


def test_probe_failures_are_reported_when_they_change() -> None:
    """Many attempts with back-off; a fact for each new reason, and none is left after a success."""

    async def main(loop: SimLoop) -> None:
        down: Script = [Fail(Fault.CONNECT)]
        busy: Script = [Fail(Fault.STATUS, status=503)]
        member, prober, sink, upstream = await probe_for(loop, [down, down, down, busy, down, WELL], 600)
        assert member.is_proven
        assert upstream.n_calls == 6
        assert [fact.code for fact in sink.facts_of(ProbeFailed)] == ["upstream_connect", "upstream_status",
                                                                      "upstream_connect"]
        assert [fact.upstream_status for fact in sink.facts_of(AttemptDone)] == [None, None, None, 503, None, None]
        assert prober.complaints == {}

    run(main)


def test_probe_silence_is_a_failure() -> None:
    """The upstream is probed again, and its socket closed."""

    async def main(loop: SimLoop) -> None:
        member, prober, _, upstream = await probe_for(loop, [[Wait(1e6)]], 21)
        assert not member.is_proven
        assert prober.complaints == {"up": "upstream_timeout"}
        assert upstream.n_cancelled >= 1

    run(main)


def test_probe_starts_again_after_many_failures() -> None:
    """Ten failures in a row of real traffic."""

    async def main(loop: SimLoop) -> None:
        sink = RecordingSink()
        upstream = ScriptedUpstream("up", [WELL], loop)
        member = UpstreamState(upstream)
        prober = Prober([(member, "m")], ProbeConfig(), loop, Random(1), sink)
        task = loop.create_task(prober.run())
        await asyncio.sleep(1)
        for _ in range(10):
            acquire_permit(member, member.baselines.baseline_for("m", 1, False), loop.now()).release(Outcome.DROPPED,
                                                                                                     loop.now())
        was_proven = member.is_proven
        await asyncio.sleep(10)
        assert (was_proven, member.is_proven, upstream.n_calls) == (False, True, 2)
        task.cancel()
        await asyncio.wait([task])

    run(main)
