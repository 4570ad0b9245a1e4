"""Upstreams that open a stream and stay silent: a role, comments and pings are no first token."""

import asyncio
from collections.abc import Mapping, Sequence

import msgspec
import pytest

from stayfast.core.deadline import Timeouts
from stayfast.core.errors import DeadlineExceeded, UpstreamFailed
from stayfast.core.events import AttemptDone
from stayfast.core.types import AnswerSummary, Api
from stayfast.lab.simulated import FaultKind, FaultRule, GapConfig, Mixture, ProviderConfig, Simulated
from stayfast.pipeline.attempts.hedge_plans import Hedging
from stayfast.policy.resilience.hedge import HedgeConfig
from stayfast.policy.resilience.retry import RetryConfig
from stayfast.testing import Script, ScriptedUpstream, SendBytes, SendText, SimLoop, Wait, run
from stayfast.upstreams.base import Call
from stayfast.upstreams.dialect import HttpStream
from stayfast.wire.errors import Secrets
from stayfast.wire.transcode import make_decoder, make_transcoder
from tests.flow.dialects import DIALECTS, ask, parse_answer
from tests.flow.rig import Rig, read

ROLE = b'data: {"id": "silent", "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}\n\n'
COMMENT = b": keep-alive\n\n"
SILENT: Script = [SendBytes(ROLE), *(Wait(3.0), SendBytes(COMMENT)) * 100]
RACE = HedgeConfig("race", race_after_s=2.0)
NEVER = RetryConfig(max_attempts=1)


def _rig(loop: SimLoop, *, is_native: bool, config: HedgeConfig = RACE, retry: RetryConfig = NEVER,
         timeouts: Timeouts | None = None) -> Rig:
    """Two upstreams, of which the first is silent. is_native: they have all dialects; else only chat."""
    if is_native:
        silent = FaultRule(FaultKind.SILENT, sends_role=True, comments_every_s=3.0)
        upstreams = [Simulated(name, ProviderConfig(ttft=Mixture(0.5), gaps=GapConfig(0.0, 0.0), fills_max_tokens=True,
                                                    faults=(silent,) if name == "up0" else ()), loop)
                     for name in ("up0", "up1")]
        rig = Rig(loop, upstreams=upstreams, in_turn=True, retry=retry, timeouts=timeouts)
    else:
        rig = Rig(loop, [SILENT], [[Wait(0.5), SendText("word")]], in_turn=True, retry=retry, timeouts=timeouts)
    rig.change_route(hedging=Hedging(config, retry))
    return rig


@pytest.mark.parametrize("is_native", [True, False])
@pytest.mark.parametrize("api", DIALECTS)
def test_silence_after_a_role_is_hedged_and_leaves_nothing_in_the_answer(api: Api, is_native: bool) -> None:
    """The head, role and comments of the silent call are held back, so that the other attempt replaces them."""
    async def main(loop: SimLoop) -> None:
        rig = _rig(loop, is_native=is_native)
        reply = await rig.serve(ask(api, stream=True))
        assert (reply.upstream, loop.now()) == ("up1", 2.5)
        body = await read(reply)
        answer = parse_answer(api, body, stream=True)
        assert answer.is_whole
        assert answer.text
        assert COMMENT not in body
        assert body.count(b"message_start") <= 2  # in the event's name and its data
        lost, won = rig.sink.facts_of(AttemptDone)
        assert (lost.upstream, lost.ttft_s, lost.is_lost, won.ttft_s) == ("up0", None, True, 0.5)

    run(main)


@pytest.mark.parametrize("api", DIALECTS)
def test_silence_of_a_whole_answer_is_hedged(api: Api) -> None:
    """A head without a body is no answer."""
    async def main(loop: SimLoop) -> None:
        rig = _rig(loop, is_native=True)
        reply = await rig.serve(ask(api, stream=False))
        assert (reply.upstream, loop.now()) == ("up1", 2.5)
        assert parse_answer(api, await read(reply), stream=False).text

    run(main)


@pytest.mark.parametrize("is_native", [True, False])
@pytest.mark.parametrize("api", DIALECTS)
def test_silence_without_hedges_ends_at_the_first_token_limit(api: Api, is_native: bool) -> None:
    """Comments buy no time; another attempt follows."""
    async def main(loop: SimLoop) -> None:
        rig = _rig(loop, is_native=is_native, config=HedgeConfig("off"), retry=RetryConfig(max_attempts=2),
                   timeouts=Timeouts(first_token_s=10.0, idle_s=1.0))
        reply = await rig.serve(ask(api, stream=True))
        assert reply.upstream == "up1"
        assert 10.5 <= loop.now() < 12.0  # the limit, a pause, and the first token
        assert parse_answer(api, await read(reply), stream=True).is_whole

    run(main)


@pytest.mark.parametrize("stream", [True, False])
def test_silence_of_the_only_upstream_fails_at_the_first_token_limit(stream: bool) -> None:
    """Also of a whole answer that is fetched as a stream."""
    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [SILENT], timeouts=Timeouts(first_token_s=10.0))
        with pytest.raises(UpstreamFailed) as failed:
            await rig.serve(ask(Api.CHAT, stream=stream))
        assert (failed.value.code, loop.now()) == ("first_token_s_exceeded", 10.0)

    run(main)


def _chat(delta: dict[str, object]) -> bytes:
    return msgspec.json.encode({"id": "c", "choices": [{"index": 0, "delta": delta}]})


def _event(**fields: object) -> bytes:
    return msgspec.json.encode(fields)


def _delta(kind: str, **fields: object) -> bytes:
    return _event(type="content_block_delta", index=0, delta={"type": kind, **fields})


NOTHING = (
    (Api.CHAT, _chat({"role": "assistant", "content": ""})), (Api.CHAT, _chat({"role": "assistant", "content": None})),
    (Api.CHAT, _chat({"reasoning_content": ""})), (Api.CHAT, _chat({})), (Api.CHAT, b'{"id": "c", "choices": []}'),
    (Api.MESSAGES, _event(type="message_start", message={"id": "m", "content": [], "usage": {"input_tokens": 5}})),
    (Api.MESSAGES, _event(type="ping")),
    (Api.RESPONSES, _event(type="response.created", response={"id": "r"}, sequence_number=0)),
    (Api.RESPONSES, _event(type="response.in_progress", response={"id": "r"}, sequence_number=1)),
    (Api.RESPONSES, _event(type="keepalive", sequence_number=2)),
    (Api.RESPONSES, _event(type="response.output_text.delta", delta="")))
PROGRESS = (
    (Api.MESSAGES, _event(type="content_block_start", index=0, content_block={"type": "thinking", "thinking": ""})),
    (Api.MESSAGES, _delta("signature_delta", signature="c2lnbmVk")),
    (Api.RESPONSES, _event(type="response.output_item.added", output_index=0, item={"type": "message", "id": "i"})),
    (Api.RESPONSES, _event(type="response.web_search_call.searching", output_index=0)))
CONTENT = (
    (Api.CHAT, _chat({"content": "a"})), (Api.CHAT, _chat({"reasoning_content": "hm"})),
    (Api.CHAT, _chat({"reasoning": "hm"})),
    (Api.CHAT, _chat({"tool_calls": [{"index": 0, "id": "t", "function": {"name": "f", "arguments": ""}}]})),
    (Api.MESSAGES, _delta("thinking_delta", thinking="hm")), (Api.MESSAGES, _delta("text_delta", text="a")),
    (Api.MESSAGES, _delta("input_json_delta", partial_json="")),
    (Api.RESPONSES, _event(type="response.reasoning_summary_text.delta", delta="hm")),
    (Api.RESPONSES, _event(type="response.reasoning_text.delta", delta="hm")),
    (Api.RESPONSES, _event(type="response.function_call_arguments.delta", delta="{")))


@pytest.mark.parametrize(("api", "data", "n_content", "n_progress"), [
    *((*case, 0, 0) for case in NOTHING), *((*case, 0, 1) for case in PROGRESS), *((*case, 1, 0) for case in CONTENT)])
def test_decoder_event_is_content_progress_or_nothing(api: Api, data: bytes, n_content: int, n_progress: int) -> None:
    """Reasoning is content; a role and a ping are nothing; blocks, items and tools are progress."""
    summary = AnswerSummary()
    name = msgspec.json.decode(data).get("type", "").encode()
    assert make_decoder(api, ask(api, stream=True), "up", summary).read_event(data, name) == n_content
    assert (summary.n_content, summary.n_progress) == (n_content, n_progress)


class _ScriptedBody:
    """The body of an HTTP answer: waits in seconds, and bytes."""

    status = 200
    headers: Mapping[str, str] = {}

    def __init__(self, steps: Sequence[float | bytes]) -> None:
        self._steps = list(steps)

    async def read(self) -> bytes:
        while self._steps:
            step = self._steps.pop(0)
            if isinstance(step, bytes):
                return step
            await asyncio.sleep(step)
        return b""

    def close(self) -> None:
        """Nothing to close."""

    def release(self) -> None:
        """Nothing to release."""


class _MessagesUpstream(ScriptedUpstream):
    """An upstream that speaks Anthropic's dialect."""

    def __init__(self, steps: Sequence[float | bytes], loop: SimLoop) -> None:
        super().__init__("up0", [SILENT], loop)
        self._body = steps

    def can_serve(self, api: Api) -> bool:
        return True

    async def open(self, call: Call) -> HttpStream:
        translated = make_transcoder(Api.MESSAGES, call.request, source_streams=True, upstream=self.name)
        return HttpStream(_ScriptedBody(self._body), translated, translated.summary, Secrets(()))


def _block(data: bytes) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (msgspec.json.decode(data)["type"].encode(), data)


@pytest.mark.parametrize(("between", "ends"), [(_event(type="ping"), True), (PROGRESS[1][1], False)])
def test_idle_limit_counts_from_progress(between: bytes, ends: bool) -> None:
    """A block that begins or is signed shows that an answer is being written."""
    start = _event(type="message_start", message={"id": "m", "model": "m", "content": [], "usage": {"input_tokens": 5}})
    begins = [start, PROGRESS[0][1], _delta("thinking_delta", thinking="a")]
    ends_with = [_delta("thinking_delta", thinking="b"), _event(type="content_block_stop", index=0),
                 _event(type="message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 2}),
                 _event(type="message_stop")]
    steps: list[float | bytes] = [*map(_block, begins), *(2.0, _block(between)) * 3, 2.0, *map(_block, ends_with)]

    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, upstreams=[_MessagesUpstream(steps, loop)], timeouts=Timeouts(idle_s=3.0))
        reply = await rig.serve(ask(Api.MESSAGES, stream=True))
        if ends:
            with pytest.raises(DeadlineExceeded):
                await read(reply)
            assert loop.now() == 3.0
        else:
            assert b"message_stop" in await read(reply)
            assert loop.now() == 8.0

    run(main)
