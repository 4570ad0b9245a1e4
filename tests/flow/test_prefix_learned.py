"""What a route learns of its providers' prompt caches: refused marks, floors by upstream, whose instructions move."""

import asyncio
from typing import Any

from stayfast.core.types import Api, Usage
from stayfast.lab.simulated import PromptCacheModel
from stayfast.pipeline.prompt_cache.planner import Layout, Prefixing
from stayfast.policy.admission.price import Price
from stayfast.policy.prompt_cache.breakpoints import PrefixConfig
from stayfast.policy.prompt_cache.rules import ModelRules
from stayfast.testing import RecordingSink, SimLoop
from stayfast.testing.simloop import run
from stayfast.wire.json_input import decode
from tests.flow.prefix_rig import AUTO, LONG, PrefixRig

SILENT = Usage(input_total=4000)
OTHER = "Be strict with all who come late, and say why. " * 300


def layout_of(of: Prefixing, system: str) -> tuple[bytes, Layout]:
    """A request with these instructions, as it is laid out."""
    body = b'{"model":"m","max_tokens":3,"system":"%b","messages":[{"role":"user","content":"hi"}]}' % system.encode()
    request, layout = of.lay(decode(Api.MESSAGES, body))
    assert layout is not None
    return request.body, layout


def send(of: Prefixing, system: str, upstream: str = "a", usage: Usage | None = None, price: Price | None = None) -> bytes:
    """One request that an upstream answers with that usage: as it went out."""
    body, layout = layout_of(of, system)
    marker = layout.marker(upstream, "claude-sonnet-4-5", price)
    written = marker.write(body, Api.MESSAGES)
    marker.ended(usage)
    return written


def test_a_refused_mark_is_left_out_and_nobody_sees_the_refusal() -> None:
    """The same request goes again without it, once; later ones go without it at once, with their key."""
    async def main(loop: SimLoop) -> None:
        rig = PrefixRig(loop, PrefixConfig("auto", models={"gpt-5*": ModelRules(marks="openai")}), model="gpt-5-2025-08-07",
                        cache=PromptCacheModel("automatic"))
        for n in range(3):
            await rig.ask(LONG, f"question {n}", api=Api.CHAT)
        assert ["prompt_cache_breakpoint" in str(sent) for sent in rig.sent] == [True, False, False, False]
        assert ["prompt_cache_key" in sent for sent in rig.sent] == [True, False, True, True]
        (found,) = rig.state["findings"]
        assert found["what"] == "refused"
        assert found["detail"] == "up0 refuses prompt_cache_breakpoint for gpt-5-2025-08-07: left out for an hour"
        assert rig.state["requests"]["up0 refused"] == 1
        assert "stayfast_prefix_moving_tokens{" not in await rig.metrics()
        await asyncio.sleep(3601)
        await rig.ask(LONG, "again", api=Api.CHAT)
        assert "prompt_cache_breakpoint" in str(rig.sent[-2])

    run(main)


def test_silence_of_one_upstream_does_not_keep_another_from_being_marked() -> None:
    """The same model at two of them: each has a floor of its own, and four times the table's is the highest."""
    async def main(loop: SimLoop) -> None:
        of = Prefixing("m", AUTO, loop, RecordingSink())
        for _ in range(3):
            send(of, LONG * 6, usage=SILENT)
        assert b"ephemeral" not in send(of, LONG)
        assert b"ephemeral" in send(of, LONG, "b")
        assert b"ephemeral" in send(of, LONG * 6)
        await asyncio.sleep(3601)
        assert b"ephemeral" in send(of, LONG)

    run(main)


def test_instructions_are_compared_with_those_of_the_same_application() -> None:
    """Two of them take turns on a route without tools; only one of them moves."""
    async def main(loop: SimLoop) -> None:
        of, price = Prefixing("m", AUTO, loop, RecordingSink()), Price(3.0, 15.0)
        for n in range(90):
            send(of, f"It is now 2026-11-21 10:{n // 6:02}:{n % 6}1. {LONG}", price=price)
            send(of, OTHER, price=price)
            await asyncio.sleep(2)
        found: list[Any] = [one for _, one in of.findings.all.values()]
        assert [(one.what, one.where, one.word) for one in found] == [("moves", "system", "a time")]
        assert found[0].at_byte > 20
        assert found[0].usd_a_day is None  # for two minutes: what is that a day?
        assert of.findings.moving_tokens(loop.now())["a"] > 2000

    run(main)
