"""A request's life on virtual time: what comes out, when, and what is left behind."""

import asyncio

import msgspec
import pytest

from stayfast.core.errors import Fault, Rejected, UpstreamFailed
from stayfast.core.events import AttemptDone, RequestDone
from stayfast.core.types import Outcome, Stage
from stayfast.policy.resilience.retry import RetryConfig
from stayfast.testing import Cut, Fail, Script, SendBytes, SendText, SimLoop, Wait, run
from tests.flow.rig import Rig, chat, read, text_of

HELLO: Script = [Wait(0.25), SendText("Hel"), Wait(0.1), SendText("lo")]


def test_serve_returns_at_the_first_content_token() -> None:
    """The rest follows at its own pace."""

    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [HELLO])
        reply = await rig.serve()
        assert loop.now() == 0.25
        assert text_of(await read(reply)) == "Hello"
        assert loop.now() == 0.35
        assert rig.n_in_flight == 0
        assert rig.n_open == 0

    run(main)


@pytest.mark.parametrize("leaves", [False, True])
def test_serve_records_the_first_token_after_it_is_sent(*, leaves: bool) -> None:
    """In the next turn of the loop, or at the end if that is sooner: with the instant at which it came."""

    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [HELLO])
        (member,) = rig.registry
        reply = await rig.serve()
        (place,) = member.pending
        assert (place.took_s, len(member.pending)) == (None, 1)
        if leaves:
            reply.close()
        else:
            await asyncio.sleep(0)
        assert (place.took_s, len(member.pending)) == (0.25, 0)
        reply.close()

    run(main)


def test_ledger_stages_add_up_to_the_whole() -> None:
    """Every stage is there once."""

    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [HELLO])
        await read(await rig.serve())
        (done,) = rig.sink.facts_of(RequestDone)
        assert [stage.stage for stage in done.stages] == list(Stage)
        assert sum(stage.spent_s for stage in done.stages) == pytest.approx(done.ended_at - done.accepted_at)
        spent = {stage.stage: stage.spent_s for stage in done.stages}
        assert spent[Stage.CALL] == 0.25
        assert spent[Stage.RELAY] == pytest.approx(0.1)
        allowed = {stage.stage: stage.allowance_s for stage in done.stages}
        assert allowed[Stage.ADMIT] == 300.0
        assert allowed[Stage.CALL] == 300.0  # `first_token_s` limits each attempt, not the stage
        assert allowed[Stage.RELAY] == 300.0 - 0.25  # what the stages before left over
        assert done.ttft_s == 0.25
        assert (done.status, done.finish_reason, done.n_attempts) == (200, "stop", 1)
        assert done.usage is not None
        assert done.usage.output == 2

    run(main)


def test_serve_collects_a_stream_for_a_client_that_does_not_stream() -> None:
    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [HELLO])
        body = await read(await rig.serve(chat(stream=False)))
        answer = msgspec.json.decode(body)
        assert answer["choices"][0]["message"]["content"] == "Hello"
        assert answer["choices"][0]["finish_reason"] == "stop"

    run(main)


def test_scripted_upstream_stops_at_max_tokens() -> None:
    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [HELLO])
        answer = msgspec.json.decode(await read(await rig.serve(chat(stream=False, max_tokens=1))))
        assert answer["choices"][0]["message"]["content"] == "Hel"
        assert answer["choices"][0]["finish_reason"] == "length"

    run(main)


def test_serve_holds_a_role_only_chunk_back_until_content() -> None:
    """A role is no first token: the attempt may be replaced after it."""
    role = SendBytes(b'data: {"id":"x","object":"chat.completion.chunk","created":1,"model":"m","choices":'
               b'[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}\n\n')

    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [[role, Wait(0.5), Fail()], HELLO], retry=RetryConfig(max_attempts=2))
        reply = await rig.serve()
        body = await read(reply)
        assert text_of(body) == "Hello"
        assert b'"id":"x"' not in body
        assert reply.n_attempts == 2

    run(main)


def test_serve_unknown_model_is_a_404() -> None:
    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [HELLO])
        with pytest.raises(Rejected) as rejected:
            await rig.serve(chat(model="nope"))
        assert (rejected.value.status, rejected.value.param) == (404, "model")
        (done,) = rig.sink.facts_of(RequestDone)
        assert (done.status, done.route, done.error) == (404, None, "model_not_found")
        assert not rig.sink.facts_of(AttemptDone)

    run(main)


def test_serve_cut_stream_is_an_error() -> None:
    """After all that came before the cut was delivered."""

    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [[SendText("Hel"), Cut()]])
        reply = await rig.serve()
        first = await reply.next()
        assert first is not None
        assert b"[DONE]" not in first.data
        with pytest.raises(UpstreamFailed) as cut:
            await read(reply)
        assert cut.value.fault is Fault.TRUNCATED
        (attempt,) = rig.sink.facts_of(AttemptDone)
        assert (attempt.outcome, attempt.fault) == (Outcome.DROPPED, "truncated")
        assert rig.n_in_flight == rig.n_open == 0

    run(main)


def test_serve_error_event_before_content_is_retried_elsewhere() -> None:
    """An error event in a 200 is a failed attempt."""
    in_band = SendBytes(b'data: {"error":{"message":"overloaded","type":"server_error","param":null,"code":null}}\n\n')

    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [[in_band]], [HELLO], retry=RetryConfig(max_attempts=2))
        for _ in range(5):  # whichever of the two is drawn first
            assert text_of(await read(await rig.serve())) == "Hello"
        faults = {attempt.fault for attempt in rig.sink.facts_of(AttemptDone)}
        assert faults == {None, "in_band"}

    run(main)


def test_serve_final_error_is_not_retried() -> None:
    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [[Fail(Fault.STATUS)]], retry=RetryConfig(max_attempts=3))
        failed = UpstreamFailed("up0", Fault.STATUS, "no", upstream_status=400, is_final=True)

        async def refuse(_: object) -> None:
            raise failed

        rig.scripted[0].open = refuse  # type: ignore[assignment, method-assign]
        with pytest.raises(UpstreamFailed):
            await rig.serve()
        assert len(rig.sink.facts_of(AttemptDone)) == 1
        assert rig.sink.facts_of(AttemptDone)[0].outcome is Outcome.IGNORED

    run(main)


def test_serve_pick_order_uses_the_second_upstream_for_failures_only() -> None:
    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [HELLO, HELLO, [Fail(Fault.RESET)]], [HELLO], retry=RetryConfig(max_attempts=2), in_turn=True)
        asked = [(await rig.serve()) for _ in range(6)]
        assert [reply.upstream for reply in asked] == ["up0", "up0", "up1", "up0", "up0", "up1"]
        for reply in asked:
            reply.close()

    run(main)


@pytest.mark.parametrize(("status", "after_s", "goes_back"), [(503, 30, False), (503, 73, True), (429, 1, True)])
def test_serve_failed_upstream_is_used_again_after_a_minute(status: int, after_s: float, goes_back: bool) -> None:
    """After five failures in a row; a 429 is no failure."""

    async def main(loop: SimLoop) -> None:
        bad: Script = [Fail(Fault.STATUS, status=status)]
        rig = Rig(loop, [*[bad] * 5, HELLO], [HELLO], retry=RetryConfig(max_attempts=2), in_turn=True)
        for _ in range(5):
            assert (await rig.serve()).upstream == "up1"
        await asyncio.sleep(after_s)
        assert ((await rig.serve()).upstream == "up0") == goes_back

    run(main)


def test_serve_error_has_the_time_of_each_stage() -> None:
    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [[Wait(1.5), Fail(Fault.RESET)]])
        with pytest.raises(UpstreamFailed) as failed:
            await rig.serve()
        assert failed.value.server_timing is not None
        assert "call;dur=1500.00" in failed.value.server_timing

    run(main)


def test_serve_refused_credentials_are_retried_only_elsewhere() -> None:
    async def main(loop: SimLoop) -> None:
        refused: Script = [Fail(Fault.STATUS, status=401)]
        rig = Rig(loop, [refused], retry=RetryConfig(max_attempts=3))
        with pytest.raises(UpstreamFailed):
            await rig.serve()
        assert rig.scripted[0].n_calls == 1
        rig = Rig(loop, [refused], [HELLO], retry=RetryConfig(max_attempts=3))
        for _ in range(5):
            assert text_of(await read(await rig.serve())) == "Hello"

    run(main)


def test_serve_stateful_request_is_not_repeated_after_a_reset() -> None:
    """It may have been executed. A refused connection is retried."""

    async def main(loop: SimLoop) -> None:
        for fault, n_attempts in ((Fault.RESET, 1), (Fault.CONNECT, 3)):
            rig = Rig(loop, [[Fail(fault)]], retry=RetryConfig(max_attempts=3))
            with pytest.raises(UpstreamFailed):
                await rig.serve(chat(store=True))
            assert len(rig.sink.facts_of(AttemptDone)) == n_attempts

    run(main)
