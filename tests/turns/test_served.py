"""Turns that are served as models: any dialect, one deadline, clear errors, and nothing that outlives its client."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from stayfast.core.errors import DeadlineExceeded, Rejected, UpstreamFailed
from stayfast.core.types import Api, Outcome
from stayfast.testing import SimLoop, run
from stayfast.turns import Answer, TurnRefused, TurnRequest, budget, charge, current_budget, step
from stayfast.turns.threads import running_threads
from stayfast.wire.errors import encode_error
from stayfast.wire.request_body import decode
from tests.flow.rig import chat, read, text_of
from tests.turns.served_rig import SECRET, Serving, breaks, quiet, some, three
from tests.unit.upstreams.simulated_rig import request

IN_WORDS = (Api.CHAT, Api.COMPLETIONS, Api.RESPONSES, Api.MESSAGES)


@pytest.mark.parametrize("api", IN_WORDS)
@pytest.mark.parametrize("stream", [True, False])
def test_served_turn_answers_every_api(api: Api, stream: bool) -> None:
    async def main(loop: SimLoop) -> tuple[bytes, Serving]:
        serving = Serving(loop, three)
        return await read(await serving.ask(request(api, stream=stream))), serving

    body, serving = run(main)
    text = body.decode()
    if stream:
        assert text.index("One ") < text.index("two ") < text.index("three")
    else:
        assert "One two three" in text
    (attempt,) = serving.attempts
    assert (attempt.outcome, attempt.kind, attempt.finish_reason) == (Outcome.SUCCESS, "turn", "stop")
    assert attempt.usage is not None
    assert attempt.usage.output >= 3
    assert attempt.usage.input_total > 0
    assert attempt.ttft_s == pytest.approx(0.0)
    assert serving.rig.n_in_flight == 0


def test_served_turn_counts_tokens_and_rejects_embeddings() -> None:
    async def main(loop: SimLoop) -> bytes:
        serving = Serving(loop, three)
        with pytest.raises(Rejected) as refused:
            await serving.ask(request(Api.EMBEDDINGS, stream=False))
        assert refused.value.code == "unsupported_api"
        return await read(await serving.ask(request(Api.COUNT_TOKENS, stream=False)))

    assert msgspec.json.decode(run(main))["input_tokens"] > 0


@pytest.mark.parametrize("how", ["returns", "yields", "writes", "writes and returns", "yields with an answer", "object"])
def test_served_turn_function_shapes(how: str) -> None:
    async def returns(asked: TurnRequest) -> str:
        return asked.text

    async def yields(asked: TurnRequest) -> AsyncIterator[str]:
        for word in asked.text.split("l"):
            yield word + "l"

    async def writes(asked: TurnRequest, a: Answer) -> None:
        a.write(asked.text)

    async def both(asked: TurnRequest, a: Answer) -> str:
        a.write_prefix("hel")
        return "lo"

    async def yields_with(asked: TurnRequest, a: Answer) -> AsyncIterator[str]:
        a.write_prefix("hel")
        yield "lo"

    class Desk:
        async def __call__(self, asked: TurnRequest) -> str:
            return asked.text

    shapes: dict[str, Any] = {"returns": returns, "yields": yields, "writes": writes, "writes and returns": both,
                              "yields with an answer": yields_with, "object": Desk()}

    async def main(loop: SimLoop) -> str:
        return text_of(await read(await Serving(loop, shapes[how]).ask()))

    assert run(main).startswith("hello" if how != "yields" else "hellol"[:4])


def test_turn_request_has_messages_and_headers() -> None:
    seen: list[TurnRequest] = []

    async def look(asked: TurnRequest) -> str:
        seen.append(asked)
        return "ok"

    async def main(loop: SimLoop) -> None:
        body = {"model": "m", "max_tokens": 9, "messages": [
            {"role": "system", "content": "Be brief."}, {"role": "user", "content": "first"},
            {"role": "assistant", "content": "yes?"}, {"role": "user", "content": "last"}]}
        asked = decode(Api.CHAT, msgspec.json.encode(body))
        await read(await Serving(loop, look).ask(asked, tenant="acme", headers=(("x-session-id", "s1"),)))

    run(main)
    (asked,) = seen
    assert (asked.text, asked.system, asked.model, asked.max_tokens, asked.stream) == ("last", "Be brief.", "m", 9, False)
    assert (asked.tenant, asked.request_id, asked.headers) == ("acme", "req_1", {"x-session-id": "s1"})
    assert [message.text for message in asked.messages] == ["first", "yes?", "last"]
    assert [message["role"] for message in asked.chat_messages()] == ["system", "user", "assistant", "user"]


@pytest.mark.parametrize(("fields", "param"), [({"n": 2}, "n"), ({"logprobs": True}, "logprobs")])
def test_served_turn_unsupported_field_is_400(fields: dict[str, Any], param: str) -> None:
    """The function does not run."""
    async def main(loop: SimLoop) -> Rejected:
        serving = Serving(loop, three)
        with pytest.raises(Rejected) as refused:
            await serving.ask(chat(**fields))
        assert serving.served.n_running == 0
        return refused.value

    refused = run(main)
    assert (refused.status, refused.param) == (400, param)


def test_served_turn_hanging_step_is_cut_before_the_deadline() -> None:
    async def desk(asked: TurnRequest, a: Answer) -> None:
        a.write(await current_budget().run(hang, name="search", fallback="nothing found"))

    async def hang() -> str:
        await asyncio.sleep(99)
        return "found"

    async def main(loop: SimLoop) -> tuple[str, float, Serving]:
        serving = Serving(loop, desk)
        text = text_of(await read(await serving.ask()))
        return text, loop.now(), serving

    text, ended_at, serving = run(main)
    assert text == "nothing found"
    assert 1.9 < ended_at < 2.0
    (search,) = serving.attempts[0].steps
    assert (search.name, search.outcome, search.broke_budget) == ("search", "timeout", True)


def test_served_turn_hanging_outside_of_steps_is_cancelled() -> None:
    async def desk(asked: TurnRequest) -> str:
        await asyncio.sleep(99)
        return "never"

    async def main(loop: SimLoop) -> tuple[Exception, float, int]:
        serving = Serving(loop, desk)
        with pytest.raises((UpstreamFailed, DeadlineExceeded)) as failed:
            await serving.ask()
        ended_at = loop.now()
        await quiet()
        return failed.value, ended_at, serving.served.n_running

    failed, ended_at, n_running = run(main)
    assert (getattr(failed, "status", 0), n_running) == (504, 0)
    assert ended_at <= 2.0 + 1e-6


def test_served_turn_disconnect_cancels_it_at_once() -> None:
    """It is not a failure."""
    ended: list[str] = []

    async def hang(name: str) -> None:
        try:
            await asyncio.sleep(99)
        finally:
            ended.append(name)

    async def desk(asked: TurnRequest, a: Answer) -> None:
        a.write_prefix("Let me see. ")
        await current_budget().gather(kb=hang("kb"), web=hang("web"))

    async def main(loop: SimLoop) -> tuple[float, Serving]:
        serving = Serving(loop, desk)
        reply = await serving.ask()
        await some(reply, 1)
        await asyncio.sleep(0.3)
        reply.close()
        await quiet()
        return loop.now(), serving

    at, serving = run(main)
    assert at == pytest.approx(0.3)
    assert sorted(ended) == ["kb", "web"]
    assert (serving.served.n_running, serving.rig.n_in_flight, serving.failures) == (0, 0, [])
    assert [(row.name, row.outcome) for row in serving.attempts[0].steps] == [("kb", "cancelled"), ("web", "cancelled")]
    assert running_threads() == []


def test_served_turn_cancelled_before_its_first_event() -> None:
    async def desk(asked: TurnRequest) -> str:
        await asyncio.sleep(99)
        return "never"

    async def main(loop: SimLoop) -> tuple[float, int]:
        serving = Serving(loop, desk)
        async with asyncio.TaskGroup() as group:
            asking = group.create_task(serving.ask())
            await asyncio.sleep(0.2)
            assert serving.served.n_running == 1
            asking.cancel()
        await quiet()
        return loop.now(), serving.served.n_running

    at, n_running = run(main)
    assert at == pytest.approx(0.2)
    assert n_running == 0


@pytest.mark.parametrize("stream", [True, False])
def test_served_turn_exception_is_502_with_its_class(stream: bool) -> None:
    """The log has the location; SDKs do not retry."""
    async def main(loop: SimLoop) -> tuple[UpstreamFailed, Serving]:
        serving = Serving(loop, breaks, n_attempts=3)
        with pytest.raises(UpstreamFailed) as failed:
            await serving.ask(chat(stream=stream))
        return failed.value, serving

    failed, serving = run(main)
    assert (failed.status, failed.code) == (502, "upstream_raised")
    assert "KeyError" in failed.message
    assert SECRET not in failed.message
    assert ("x-should-retry", "false") in encode_error(failed, Api.CHAT, "r")[1]
    assert len(serving.attempts) == 1
    assert (serving.attempts[0].outcome, serving.attempts[0].fault) == (Outcome.DROPPED, "raised")
    (told_of,) = serving.failures
    assert (told_of.upstream, told_of.request_id, told_of.error) == ("desk", "req_1", "KeyError")
    assert told_of.where.endswith("breaks")
    assert "served_rig.py:" in told_of.where
    assert SECRET not in repr(told_of)


def test_served_turn_exception_after_the_first_text_ends_the_stream_with_an_error() -> None:
    async def main(loop: SimLoop) -> tuple[bytes, UpstreamFailed]:
        body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "midway"}]}
        reply = await Serving(loop, breaks).ask(decode(Api.CHAT, msgspec.json.encode(body)))
        first = await some(reply, 1)
        with pytest.raises(UpstreamFailed) as failed:
            await read(reply)
        return first, failed.value

    first, failed = run(main)
    assert b"One " in first
    assert failed.code == "upstream_raised"


@pytest.mark.parametrize(("made", "words"), [
    (None, "returned nothing: return its text"), ("", "returned nothing"), (7, "returned a int: it must be text"),
])
def test_served_turn_without_answer_raises_with_the_correction(made: Any, words: str) -> None:
    async def desk(asked: TurnRequest) -> Any:
        return made

    async def main(loop: SimLoop) -> tuple[UpstreamFailed, Serving]:
        serving = Serving(loop, desk)
        with pytest.raises(UpstreamFailed) as failed:
            await serving.ask()
        return failed.value, serving

    failed, serving = run(main)
    assert [told_of.where for told_of in serving.failures] == [failed.message]
    assert (failed.status, failed.code) == (502, "turn_without_answer")
    assert "desk:answer" in failed.message
    assert words in failed.message


def test_served_turn_refused_is_400_and_no_failure_of_the_upstream() -> None:
    async def desk(asked: TurnRequest) -> str:
        raise TurnRefused("Ask me about orders.")

    async def main(loop: SimLoop) -> tuple[UpstreamFailed, Serving]:
        serving = Serving(loop, desk)
        with pytest.raises(UpstreamFailed) as failed:
            await serving.ask()
        return failed.value, serving

    failed, serving = run(main)
    assert (failed.status, failed.message, failed.code) == (400, "Ask me about orders.", "turn_refused")
    assert (serving.attempts[0].outcome, serving.failures) == (Outcome.IGNORED, [])


def test_served_turn_step_timeout_is_504_with_the_step() -> None:
    async def desk(asked: TurnRequest) -> str:
        async with budget(0.5) as b:
            answer: str = await b.run(asyncio.sleep, 9, "late", name="search")
            return answer

    async def main(loop: SimLoop) -> tuple[UpstreamFailed, float]:
        with pytest.raises(UpstreamFailed) as failed:
            await Serving(loop, desk).ask()
        return failed.value, loop.now()

    failed, at = run(main)
    assert (failed.status, failed.code) == (504, "turn_out_of_time")
    assert failed.message.endswith("in its step search")
    assert at == pytest.approx(0.5, abs=0.01)


def test_served_turn_504_names_a_step_of_an_inner_budget() -> None:
    async def outer() -> str:
        async with budget(0.3) as b:
            answer: str = await b.run(asyncio.sleep, 9, "late", name="crm")
            return answer

    async def desk(asked: TurnRequest) -> str:
        async with budget(1.0) as b:
            return await b.run(outer)

    async def main(loop: SimLoop) -> UpstreamFailed:
        with pytest.raises(UpstreamFailed) as failed:
            await Serving(loop, desk).ask()
        return failed.value

    failed = run(main)
    assert (failed.code, failed.message.endswith("in its step crm")) == ("turn_out_of_time", True)


@pytest.mark.parametrize(("is_idempotent", "n_runs"), [(False, 1), (True, 2)])
def test_served_turn_is_retried_only_if_idempotent(is_idempotent: bool, n_runs: int) -> None:
    runs: list[float] = []

    async def desk(asked: TurnRequest) -> str:
        runs.append(1)
        if len(runs) == 1:
            raise OSError("away")
        return "ok"

    async def main(loop: SimLoop) -> str:
        serving = Serving(loop, desk, n_attempts=2, is_idempotent=is_idempotent)
        try:
            return text_of(await read(await serving.ask()))
        except UpstreamFailed as failed:
            return failed.code

    assert run(main) == ("ok" if is_idempotent else "upstream_raised")
    assert len(runs) == n_runs


def test_served_turn_reports_steps_with_costs_and_parents() -> None:
    """Also in Server-Timing."""
    async def inner() -> str:
        charge(0.002)
        async with budget() as b:
            return await b.run(asyncio.sleep, 0.1, "x", name="inner")

    async def desk(asked: TurnRequest, a: Answer) -> None:
        async with budget(1.0) as b:
            await b.gather(kb=step(inner), web=step(asyncio.sleep, 9, cap=0.2))
            a.write("first")
            charge(0.001)
            await b.run(asyncio.sleep, 0.1, name="an answer")
            a.write("last")

    async def main(loop: SimLoop) -> tuple[str, str, Serving]:
        serving = Serving(loop, desk)
        reply = await serving.ask()
        await some(reply, 1)
        early = reply.server_timing()
        await read(reply)
        return early, reply.server_timing(), serving

    early, timing, serving = run(main)
    (attempt,) = serving.attempts
    assert [(row.name, row.outcome, row.parent) for row in attempt.steps] == [
        ("kb", "ok", -1), ("inner", "ok", 0), ("web", "timeout", -1), ("an answer", "ok", -1)]
    assert [row.allowance_s for row in attempt.steps] == pytest.approx([1.0, 1.0, 0.2, 0.8], abs=0.01)
    assert attempt.steps[2].is_capped
    assert attempt.steps[0].cost_usd == 0.002
    assert attempt.cost_usd == pytest.approx(0.003)
    assert 'turn.kb;dur=100.00;desc="ok, limit 1000 ms", turn.inner' in early
    assert 'turn.web;dur=200.00;desc="timeout, limit 200 ms"' in early
    assert "turn.an_answer;dur=100.00" in timing
