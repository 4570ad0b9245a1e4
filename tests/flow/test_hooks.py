"""Hooks around a call, on virtual time: what they see and change, and what happens when they fail."""

import asyncio
import re
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import msgspec
import pytest

from stayfast.core.clock import Clock
from stayfast.core.errors import HookFailed, Rejected, StayfastError
from stayfast.core.events import RequestDone
from stayfast.core.types import JUDGE
from stayfast.pipeline.exchange import Arrival
from stayfast.pipeline.hooks import HookAnswer, HookRefused, HookRequest
from stayfast.pipeline.hooks.config import HooksConfig
from stayfast.pipeline.hooks.hook import check_hook
from stayfast.pipeline.hooks.route_hooks import RouteHooks
from stayfast.policy.cache.freshness import CacheConfig
from stayfast.testing import Script, ScriptedUpstream, SendText, SimLoop, run
from stayfast.turns.threads import start_thread
from stayfast.upstreams.base import AnswerStream, Call
from tests.flow.rig import MODEL, Rig, chat, read

ADDRESS = re.compile(r"[\w.]+@[\w.]+\w")
ANSWER = [SendText("Write to <address-0> today")]


class Redaction:
    """Takes addresses out before the call, and puts them back after it."""

    def before(self, request: HookRequest) -> None:
        found: list[str] = request.state.setdefault("addresses", [])

        def take(match: re.Match[str]) -> str:
            found.append(match[0])
            return f"<address-{len(found) - 1}>"

        for message in request.body["messages"]:
            message["content"] = ADDRESS.sub(take, message["content"])

    async def after(self, request: HookRequest, answer: HookAnswer) -> dict[str, Any]:
        text = msgspec.json.encode(answer.body).decode()
        for n, address in enumerate(request.state["addresses"]):
            text = text.replace(f"<address-{n}>", address)
        changed: dict[str, Any] = msgspec.json.decode(text)
        return changed


class Listener(ScriptedUpstream):
    """Remembers the bodies that it is sent."""

    def __init__(self, name: str, scripts: Sequence[Script], clock: Clock) -> None:
        super().__init__(name, scripts, clock)
        self.bodies: list[bytes] = []

    async def open(self, call: Call) -> AnswerStream:
        self.bodies.append(call.request.body)
        return await super().open(call)


def hooked(loop: SimLoop, *values: Any, cache: CacheConfig | None = None, start: Callable[..., Future[Any]] = start_thread,
           **config: Any) -> Rig:
    """A gateway whose route has hooks."""
    rig = Rig(loop, upstreams=[Listener("up", [ANSWER], loop)], cache=cache)
    hooks = tuple(check_hook(f"mine:hook{n}", value) for n, value in enumerate(values))
    rig.change_policy(hooks=RouteHooks(hooks, HooksConfig(**config), loop, start))
    return rig


def asks(text: str, *, stream: bool = False) -> Any:
    return chat(stream=stream, temperature=0, messages=[{"role": "user", "content": text}])


async def answer_to(rig: Rig, text: str) -> str:
    whole = msgspec.json.decode(await read(await rig.serve(asks(text))))
    return str(whole["choices"][0]["message"]["content"])


def sent(rig: Rig) -> list[bytes]:
    [member] = rig.registry
    assert isinstance(member.upstream, Listener)
    return member.upstream.bodies


def test_address_is_redacted_before_the_call_and_restored_after_it() -> None:
    async def main(loop: SimLoop) -> None:
        rig = hooked(loop, Redaction())
        assert await answer_to(rig, "Ask ann@example.org") == "Write to ann@example.org today"
        assert b"ann@" not in sent(rig)[0]
        assert b"Ask <address-0>" in sent(rig)[0]
        assert (rig.n_in_flight, rig.n_open) == (0, 0)
    run(main)


def test_cache_sees_the_changed_request_and_keeps_no_restored_answer() -> None:
    """Two people ask the same about themselves: one call, and each has the own address in the answer."""
    async def main(loop: SimLoop) -> None:
        rig = hooked(loop, Redaction(), cache=CacheConfig(mode="exact"))
        assert await answer_to(rig, "Ask ann@example.org") == "Write to ann@example.org today"
        assert await answer_to(rig, "Ask bob@example.org") == "Write to bob@example.org today"
        assert len(sent(rig)) == 1
    run(main)


def test_stream_sees_the_changed_request_and_is_not_rewritten() -> None:
    async def main(loop: SimLoop) -> None:
        rig = hooked(loop, Redaction())
        body = await read(await rig.serve(asks("Ask ann@example.org", stream=True)))
        assert b"ann@" not in sent(rig)[0]
        assert b"ann@" not in body
    run(main)


def test_hooks_run_in_order_and_back() -> None:
    async def main(loop: SimLoop) -> None:
        seen = []

        class Named:
            def __init__(self, name: str) -> None:
                self.name = name

            async def before(self, request: HookRequest) -> dict[str, Any]:
                await asyncio.sleep(0.01)
                seen.append(f"before {self.name} {request.route} {request.api} {request.tenant} {request.remaining_s > 1}")
                return {**request.body, "user": request.body.get("user", "") + self.name}

            def after(self, request: HookRequest, answer: HookAnswer) -> None:
                seen.append(f"after {self.name}")

        rig = hooked(loop, Named("a"), Named("b"))
        await answer_to(rig, "hi")
        assert seen == [f"before a {MODEL} chat None True", f"before b {MODEL} chat None True", "after b", "after a"]
        assert msgspec.json.decode(sent(rig)[0])["user"] == "ab"
        [done] = rig.sink.facts_of(RequestDone)
        assert [stage.spent_s for stage in done.stages if stage.stage == "cache"] == pytest.approx([0.02])
    run(main)


def test_refusal_reaches_the_client_with_its_status() -> None:
    async def main(loop: SimLoop) -> None:
        def refuse(request: HookRequest) -> None:
            raise HookRefused("no addresses here", 422)

        rig = hooked(loop, refuse, on_error="skip")  # a refusal is no error
        with pytest.raises(Rejected, match="no addresses here") as refused:
            await rig.serve(asks("hi"))
        assert (refused.value.status, refused.value.code) == (422, "refused_by_hook")
        assert sent(rig) == []
    run(main)


async def hang(request: HookRequest) -> None:
    await asyncio.sleep(100)


def explode(request: HookRequest) -> None:
    raise KeyError("marker: the prompt")


def return_text(request: HookRequest) -> str:
    return "nonsense"


def change_model(request: HookRequest) -> None:
    request.body["model"] = "other"


def spoil(request: HookRequest) -> None:
    request.body["messages"] = 5


def add_object(request: HookRequest) -> None:
    request.body["user"] = threading.Lock()



WRONG = [(hang, "did not end in 0.5 s"), (explode, "raised KeyError"), (return_text, "returned a str"),
         (change_model, "changed model"), (spoil, "invalid request"), (add_object, "JSON cannot hold")]


@pytest.mark.parametrize(("hook", "why"), WRONG)
@pytest.mark.parametrize("on_error", ["fail", "skip"])
def test_failing_hook_fails_the_request_or_is_skipped(hook: Callable[..., Any], why: str, on_error: str) -> None:
    async def main(loop: SimLoop) -> None:
        rig = hooked(loop, hook, on_error=on_error)
        if on_error == "fail":
            with pytest.raises(HookFailed, match=f"hook mine:hook0.*{why}") as failed:
                await rig.serve(asks("hi"))
            assert (failed.value.status, failed.value.code) == (500, "hook_failed")
            assert "marker" not in str(failed.value)
            assert sent(rig) == []
        else:
            assert "Write to" in await answer_to(rig, "hi")
            assert [why in note for note in rig.sink.facts_of(RequestDone)[0].notes] == [True]
            assert msgspec.json.decode(sent(rig)[0])["messages"] == [{"role": "user", "content": "hi"}]
        assert (rig.n_in_flight, rig.n_open, loop.now() <= 0.5) == (0, 0, True)
    run(main)


@pytest.mark.parametrize("on_error", ["fail", "skip"])
def test_failing_after_hook_releases_the_call(on_error: str) -> None:
    class Broken:
        def after(self, request: HookRequest, answer: HookAnswer) -> None:
            answer.body["choices"] = {1, 2}
            raise ValueError

    async def main(loop: SimLoop) -> None:
        rig = hooked(loop, Broken(), on_error=on_error)
        if on_error == "fail":
            with pytest.raises(HookFailed, match="raised ValueError"):
                await rig.serve(asks("hi"))
        else:
            assert await answer_to(rig, "hi") == "Write to <address-0> today"
        assert (rig.n_in_flight, rig.n_open) == (0, 0)
    run(main)


def test_hook_has_no_more_time_than_its_request() -> None:
    async def main(loop: SimLoop) -> None:
        rig = hooked(loop, hang, timeout_s=60.0)
        with pytest.raises(StayfastError):
            await rig.serve(asks("hi"), total_s=2.0)
        assert loop.now() <= 2.0
    run(main)


def test_calls_of_the_gateway_itself_have_no_hooks() -> None:
    """Its own requests are about texts that hooks have changed already."""
    async def main(loop: SimLoop) -> None:
        rig = hooked(loop, explode)
        await read(await rig.gateway.serve(asks("hi"), Arrival("req_1", loop.now(), role=JUDGE)))
        assert len(sent(rig)) == 1
    run(main)


def test_plain_hook_runs_in_a_thread_if_declared() -> None:
    async def main(loop: SimLoop) -> None:
        started = []

        def start(name: str, call: Callable[[], Any]) -> Future[Any]:
            started.append(name)
            future: Future[Any] = Future()
            future.set_result(call())
            return future

        rig = hooked(loop, lambda request: None, hang, start=start, thread=True, on_error="skip")
        await answer_to(rig, "hi")
        assert started == ["hook"]
    run(main)


class Empty:
    """No part of a hook."""

    before = 5


def needs_two(request: HookRequest, other: object) -> None:
    """Takes too much."""


@pytest.mark.parametrize(("value", "complaint"), [(Redaction, "is a class"), (5, "has no before that can be called"),
                                                  (Empty(), "has no before"), (needs_two, r"takes \(request")])
def test_hook_of_another_shape_is_refused(value: object, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        check_hook("mine:it", value)


def test_refusal_needs_a_status_of_the_client() -> None:
    with pytest.raises(ValueError, match="from 400 to 499"):
        HookRefused("no", 503)
