"""Streams that open and stay silent, waits with comments, and models of one provider with timings of their own."""

import asyncio

import msgspec
import pytest

from stayfast.core.types import Api
from stayfast.lab.simulated import (
    FaultKind,
    FaultRule,
    GapConfig,
    Mixture,
    ModelTiming,
    Provider,
    ProviderConfig,
    SimulatedRequest,
)
from stayfast.testing import SimLoop, run
from tests.unit.upstreams.simulated_rig import hear

SILENT = FaultRule(FaultKind.SILENT, sends_role=True, comments_every_s=5.0)
COMMENT = b": keep-alive\n\n"
PING = b'event: ping\ndata: {"type":"ping"}\n\n'
OPENINGS = {Api.CHAT: b'"delta":{"role":"assistant","content":""', Api.MESSAGES: b"event: message_start",
            Api.RESPONSES: b"event: response.created"}


async def _read_silence(loop: SimLoop, config: ProviderConfig, api: Api, *, n: int) -> list[tuple[float, bytes]]:
    """The first n reads of a stream, with their instants."""
    call = Provider("p", config, loop).start_call(SimulatedRequest(api, "m", True, n_output=4))
    await call.wait_head()
    found = []
    for _ in range(n):
        data = await call.next()
        assert data is not None
        found.append((loop.now(), data))
    call.close()
    assert call.outcome == FaultKind.SILENT.value
    return found


@pytest.mark.parametrize("api", OPENINGS)
def test_fault_silent_sends_role_and_comments_and_no_content(api: Api) -> None:
    """In Anthropic's dialect the comments are pings."""
    config = ProviderConfig(ttft=Mixture(1.0), faults=(SILENT,))
    first, *rest = run(lambda loop: _read_silence(loop, config, api, n=4))
    assert first[0] == 1.0
    assert OPENINGS[api] in first[1]
    assert b"_delta" not in first[1]
    assert rest == [(at, PING if api is Api.MESSAGES else COMMENT) for at in (6.0, 11.0, 16.0)]


def test_fault_silent_without_a_role_sends_comments_only() -> None:
    config = ProviderConfig(faults=(FaultRule(FaultKind.SILENT, comments_every_s=2.0),))
    assert run(lambda loop: _read_silence(loop, config, Api.CHAT, n=2)) == [(2.0, COMMENT), (4.0, COMMENT)]


def test_fault_silent_whole_answer_sends_nothing() -> None:
    """A JSON body has no comments."""
    async def main(loop: SimLoop) -> None:
        call = Provider("p", ProviderConfig(faults=(SILENT,)), loop).start_call(SimulatedRequest(Api.CHAT, "m", n_output=4))
        assert (await call.wait_head()).body is None
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1000):
                await call.next()
        call.close()

    run(main)


def test_simulated_wait_for_the_first_token_has_comments() -> None:
    """An honest wait of 12 s looks like a silent call until its first token."""
    config = ProviderConfig(ttft=Mixture(12.0), gaps=GapConfig(0.0, 0.0), head_share=0.0, comments_every_s=5.0)
    heard = run(lambda loop: hear(Provider("p", config, loop), SimulatedRequest(Api.CHAT, "m", True, n_output=1)))
    assert [at for at, _ in heard.parts] == [0.0, 5.0, 10.0, 12.0]
    assert [data for _, data in heard.parts[1:3]] == [COMMENT, COMMENT]
    assert OPENINGS[Api.CHAT] in heard.parts[0][1]


def test_simulated_models_have_timings_of_their_own() -> None:
    config = ProviderConfig(ttft=Mixture(0.3), gaps=GapConfig(0.0, 0.0), by_model={
        "reasoning": ModelTiming(ttft=Mixture(20.0)), "paced": ModelTiming(gaps=GapConfig(0.1, 0.0))})

    async def main(loop: SimLoop) -> list[float]:
        provider = Provider("p", config, loop)
        return [(await hear(provider, SimulatedRequest(Api.CHAT, model, True, n_output=3))).took_s
                for model in ("other", "reasoning", "paced")]

    assert run(main) == pytest.approx([0.3, 20.0, 0.5])


def test_fault_rule_of_a_silent_stream_is_decoded() -> None:
    """As `POST /_sim/faults` has it."""
    rule = msgspec.json.decode(b'{"kind": "silent", "sends_role": true, "comments_every_s": 5}', type=FaultRule)
    assert rule == SILENT
