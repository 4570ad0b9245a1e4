"""Served turns that misbehave: they exit the process, do not end, block the loop, or write more than is read."""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from stayfast.core.errors import DeadlineExceeded, UpstreamFailed
from stayfast.core.types import EventsOptions
from stayfast.testing import SimLoop, run
from stayfast.turns import Answer, TurnRefused, TurnRequest, current_budget
from stayfast.turns.served import CANCEL_WAIT_S
from tests.clients.gateway import started
from tests.flow.rig import chat, read, text_of
from tests.turns.served_rig import Serving, quiet, some, told

WORDS = "".join(f"{n} " for n in range(3000))


async def at_once(asked: TurnRequest, a: Answer) -> None:
    """Writes far more events than are kept, before anybody can read."""
    for n in range(3000):
        a.write(f"{n} ")
        if n % 100 == 0:
            a.report_progress("writing", str(n))


async def in_bursts(asked: TurnRequest, a: Answer) -> None:
    """The same, in three parts."""
    for n in range(3000):
        a.write(f"{n} ")
        if n % 1000 == 999:
            await asyncio.sleep(0.1)


async def yields(asked: TurnRequest) -> AsyncIterator[str]:
    """The same, and awaits nothing."""
    for n in range(3000):
        yield f"{n} "


@pytest.mark.parametrize("function", [at_once, in_bursts, yields])
@pytest.mark.parametrize("stream", [True, False])
def test_plain_client_gets_every_character_once(function: Callable[..., Any], stream: bool) -> None:
    async def main(loop: SimLoop) -> str:
        body = await read(await Serving(loop, function).ask(chat(stream=stream)))
        return text_of(body) if stream else str(msgspec.json.decode(body)["choices"][0]["message"]["content"])

    assert run(main) == WORDS


def test_plain_client_that_pauses_gets_every_character() -> None:
    async def main(loop: SimLoop) -> str:
        reply = await Serving(loop, in_bursts).ask()
        parts = [await some(reply, 3)]
        await asyncio.sleep(0.15)
        parts.append(await some(reply, 2))
        await asyncio.sleep(1)
        parts.append(await read(reply))
        return text_of(b"".join(parts))

    assert run(main) == WORDS


def test_generator_that_never_awaits_does_not_block_the_loop() -> None:
    async def main(loop: SimLoop) -> tuple[str, float, float]:
        async def endless(asked: TurnRequest) -> AsyncIterator[str]:
            if asked.request_id == "other":
                yield "hello"
                return
            while True:
                loop.stall(0.001)
                yield "x"

        serving = Serving(loop, endless)
        async with asyncio.TaskGroup() as group:
            asking = group.create_task(fails(serving))
            await asyncio.sleep(0.5)
            answer = text_of(await read(await serving.ask(request_id="other")))
            answered_at = loop.now()
        assert asking.result() in ("turn_out_of_time", "deadline_exceeded")
        await quiet()
        assert serving.served.n_running == 0
        return answer, answered_at, loop.now()

    answer, answered_at, ended_at = run(main)
    assert answer == "hello"
    assert answered_at < 0.6
    assert ended_at == pytest.approx(2.0, abs=0.05)


async def fails(serving: Serving, **given: Any) -> str:
    """The code of the error that a request ends in."""
    with pytest.raises((UpstreamFailed, DeadlineExceeded)) as failed:
        await read(await serving.ask(**given))
    return failed.value.code


async def exits(asked: TurnRequest) -> str:
    """Ends the process, or so it thinks."""
    sys.exit(3)


async def interrupts(asked: TurnRequest) -> str:
    """The same."""
    raise KeyboardInterrupt


async def exits_in_a_step(asked: TurnRequest) -> str:
    """The same, in a Task of its own."""
    async def leave() -> str:
        sys.exit(3)

    return await current_budget().run(leave, name="leaves")


async def cancels_itself(asked: TurnRequest) -> str:
    """Nobody has cancelled it."""
    raise asyncio.CancelledError


@pytest.mark.parametrize(("function", "kind"), [
    (exits, "SystemExit"), (interrupts, "KeyboardInterrupt"), (exits_in_a_step, "SystemExit"),
    (cancels_itself, "CancelledError")])
def test_served_turn_system_exit_ends_the_turn_only(function: Callable[..., Any], kind: str) -> None:
    async def main(loop: SimLoop) -> tuple[UpstreamFailed, Serving]:
        serving = Serving(loop, function)
        with pytest.raises(UpstreamFailed) as failed:
            await serving.ask()
        assert await fails(serving, request_id="req_2") == "upstream_raised"
        return failed.value, serving

    failed, serving = run(main)
    assert (failed.status, failed.code) == (502, "upstream_raised")
    assert f"failed with {kind};" in failed.message
    first, _ = serving.failures
    assert (first.error, "test_served_hostile.py:" in first.where) == (kind, True)


def test_served_turn_refused_without_message_has_a_default() -> None:
    async def desk(asked: TurnRequest) -> str:
        raise TurnRefused

    async def main(loop: SimLoop) -> UpstreamFailed:
        with pytest.raises(UpstreamFailed) as failed:
            await Serving(loop, desk).ask()
        return failed.value

    failed = run(main)
    assert (failed.status, failed.code, failed.message) == (400, "turn_refused", "this turn does not answer that")


def test_served_turn_that_suppresses_cancellation_is_logged_as_abandoned() -> None:
    """Once, and not if it only needs a moment."""
    async def stubborn(asked: TurnRequest, a: Answer) -> None:
        a.write("one ")
        try:
            await asyncio.sleep(99)
        except asyncio.CancelledError:
            await asyncio.sleep(5 if asked.request_id == "stubborn" else CANCEL_WAIT_S / 2)
            raise

    async def main(loop: SimLoop) -> Serving:
        serving = Serving(loop, stubborn)
        for request_id in ("stubborn", "tidy"):
            reply = await serving.ask(request_id=request_id, total_s=60)
            await some(reply, 1)
            reply.close()
        await asyncio.sleep(CANCEL_WAIT_S * 0.9)
        assert serving.failures == []
        await asyncio.sleep(CANCEL_WAIT_S)
        assert serving.served.n_running == 1
        await asyncio.sleep(9)
        assert serving.served.n_running == 0
        return serving

    (told_of,) = run(main).failures
    assert (told_of.request_id, told_of.error) == ("stubborn", "abandoned")
    assert "desk:answer was cancelled but still runs" in told_of.where


def test_typed_client_gets_final_event_then_error() -> None:
    async def desk(asked: TurnRequest, a: Answer) -> None:
        a.write("one ")
        await asyncio.sleep(0.1)
        sys.exit(3)

    async def main(loop: SimLoop) -> list[str]:
        reply = await Serving(loop, desk).ask(events=EventsOptions())
        names = [f"{name} {data.get('outcome', '')}{data.get('detail', '')}" for _, name, data in told(await some(reply, 2))]
        with pytest.raises(UpstreamFailed, match="SystemExit"):
            await read(reply)
        return names

    assert run(main) == ["delta ", "final failedSystemExit"]


MODULE = """
import asyncio, sys
from stayfast.turns import current_budget

async def answer(asked, a):
    match asked.text:
        case "exit":
            sys.exit(3)
        case "exit in a thread":
            await current_budget().run(sys.exit, 3, name="leaves")
        case "refuse":
            a.write("one ")
            while True:
                try:
                    await asyncio.sleep(60)
                except BaseException:
                    pass
        case _:
            a.write("hello")
"""
SETTINGS = """
server: {host: 127.0.0.1, drain_s: 1, drain_grace_s: 0}
upstreams: {desk: {kind: turn, turn: "hostile_desk:answer"}}
routes: {desk: {upstreams: [desk], deadline: 10}}
"""


@pytest.mark.sockets
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_process_ends_by_a_signal_despite_a_turn_that_never_ends(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "hostile_desk.py").write_text(MODULE)
    settings = tmp_path / "stayfast.yaml"
    settings.write_text(SETTINGS)
    log = tmp_path / "stdout.txt"
    with started(settings, tmp_path) as gateway, httpx.Client(base_url=gateway.openai_url, timeout=9) as client:
        for text in ("exit", "exit in a thread"):
            failed = client.post("/chat/completions", json=body(text))
            assert (failed.status_code, "SystemExit" in failed.text) == (502, True)
        (tmp_path / "hostile_desk.py").write_text("import sys\nsys.exit(4)\n" + MODULE)
        os.kill(gateway.pid, signal.SIGHUP)
        until(lambda: "reload_refused" in log.read_text())
        (refused,) = [json.loads(line) for line in log.read_text().splitlines() if "reload_refused" in line]
        assert "cannot be imported: SystemExit: 4" in refused["detail"]
        assert "hello" in client.post("/chat/completions", json=body("hello")).text
        typed = {"x-stayfast-events": "typed"}  # it may come back, so nobody has cancelled the turn by then
        with client.stream("POST", "/chat/completions", json=body("refuse", stream=True), headers=typed) as answer:
            next(answer.iter_bytes())
        os.kill(gateway.pid, number)
        until(lambda: os.waitid(os.P_PID, gateway.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None)
    assert "cannot be imported: SystemExit: 4" in gateway.errors.read_text()
    assert [line for line in log.read_text().splitlines() if '"abandoned"' in line and "hostile_desk:answer" in line]


def body(text: str, *, stream: bool = False) -> dict[str, Any]:
    """What a client sends."""
    return {"model": "desk", "stream": stream, "messages": [{"role": "user", "content": text}]}


def until(has_come: Callable[[], bool]) -> None:
    """Wait for it."""
    give_up_at = time.monotonic() + 20
    while not has_come():
        assert time.monotonic() < give_up_at
        time.sleep(0.02)
