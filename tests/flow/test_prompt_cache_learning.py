"""What a route learns of its providers' prompt caches: refused marks, floors by upstream, whose instructions move."""

import asyncio
from typing import Any

import pytest

from stayfast.compose.caching import UNKNOWN
from stayfast.core.events import PrefixFinding
from stayfast.core.types import Api, Usage
from stayfast.lab.simulated import PromptCacheModel
from stayfast.pipeline.prompt_cache.planner import PlannedPrompt, PromptCachePlanner
from stayfast.policy.admission.price import Price
from stayfast.policy.prompt_cache.breakpoints import PrefixConfig
from stayfast.policy.prompt_cache.rules import ModelRules
from stayfast.testing import RecordingSink, SimLoop
from stayfast.testing.simloop import run
from stayfast.wire.request_body import decode
from tests.flow.prefix_rig import AUTO, LONG, PrefixRig

SILENT = Usage(input_total=4000)
OTHER = "Be strict with all who come late, and say why. " * 300


def layout_of(of: PromptCachePlanner, system: str) -> tuple[bytes, PlannedPrompt]:
    """A request with these instructions, as it is laid out."""
    body = b'{"model":"m","max_tokens":3,"system":"%b","messages":[{"role":"user","content":"hi"}]}' % system.encode()
    request, layout = of.plan_prompt(decode(Api.MESSAGES, body))
    assert layout is not None
    return request.body, layout


def send(of: PromptCachePlanner, system: str, upstream: str = "a", usage: Usage | None = None,
         price: Price | None = None) -> bytes:
    """One request that an upstream answers with that usage: as it went out."""
    body, layout = layout_of(of, system)
    marker = layout.new_marker(upstream, "claude-sonnet-4-5", price)
    written = marker.write(body, Api.MESSAGES)
    marker.on_end(usage)
    return written


def test_prompt_cache_refused_mark_is_left_out() -> None:
    """The same request is sent again without the mark, once; later ones go without it, with their key, for an hour."""
    async def main(loop: SimLoop) -> None:
        rig = PrefixRig(loop, PrefixConfig("auto", models={"gpt-5*": ModelRules(breakpoints="openai")}),
                        model="gpt-5-2025-08-07",
                        cache=PromptCacheModel("automatic"))
        for n in range(3):
            await rig.request(LONG, f"question {n}", api=Api.CHAT)
        assert ["prompt_cache_breakpoint" in str(sent) for sent in rig.sent] == [True, False, False, False]
        assert ["prompt_cache_key" in sent for sent in rig.sent] == [True, False, True, True]
        (found,) = rig.state["findings"]
        assert found["what"] == "refused"
        assert found["detail"] == ("up0 rejects prompt_cache_breakpoint for gpt-5-2025-08-07; "
                                   "the field is left out for an hour")
        assert rig.state["requests"]["up0 refused"] == 1
        assert "stayfast_prefix_moving_tokens{" not in await rig.metrics()
        await asyncio.sleep(3601)
        await rig.request(LONG, "again", api=Api.CHAT)
        assert "prompt_cache_breakpoint" in str(rig.sent[-2])

    run(main)


def test_prompt_cache_minimum_length_is_learned_by_upstream() -> None:
    """The same model at two upstreams: each has a minimum of its own, at most four times that of the table."""
    async def main(loop: SimLoop) -> None:
        of = PromptCachePlanner("m", AUTO, loop, RecordingSink())
        for _ in range(3):
            send(of, LONG * 6, usage=SILENT)
        assert b"ephemeral" not in send(of, LONG)
        assert b"ephemeral" in send(of, LONG, "b")
        assert b"ephemeral" in send(of, LONG * 6)
        await asyncio.sleep(3601)
        assert b"ephemeral" in send(of, LONG)

    run(main)


def test_prompt_cache_compares_instructions_of_the_same_application() -> None:
    """Two applications alternate on a route without tools; the instructions of one of them change."""
    async def main(loop: SimLoop) -> None:
        of, price = PromptCachePlanner("m", AUTO, loop, RecordingSink()), Price(3.0, 15.0)
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


@pytest.mark.parametrize("between_s", [0.0, 5.0])
def test_prompt_cache_short_bursts_find_volatile_instructions(between_s: float) -> None:
    """Twenty requests each, all within seconds: the finding comes with the second burst. Marks stay for a minute, since a
    fleet that starts at once looks the same.
    """
    async def main(loop: SimLoop) -> None:
        sink = RecordingSink()
        of, found_after = PromptCachePlanner("m", AUTO, loop, sink), 0
        for n in range(60):
            sent = send(of, f"You are here since 2026-11-21 10:{n:02}. {LONG}")
            found_after = found_after or (n + 1 if sink.facts_of(PrefixFinding) else 0)
            if n % 20 == 19:
                await asyncio.sleep(between_s)
        (found,) = sink.facts_of(PrefixFinding)
        assert (found.what, found.where, found.word) == ("moves", "system", "a time")
        assert 20 < found_after <= 40
        assert b"ephemeral" in sent
        await asyncio.sleep(61)
        assert b"ephemeral" not in send(of, f"You are here since 2026-11-21 11:00. {LONG}")

    run(main)


def test_prompt_cache_repeated_instructions_in_a_burst_are_not_volatile() -> None:
    """Thirty applications that alternate; and different instructions that come once each."""
    async def main(loop: SimLoop) -> None:
        sink = RecordingSink()
        of = PromptCachePlanner("m", AUTO, loop, sink)
        for n in range(300):
            send(of, f"You are number {n % 30}. {LONG}")
        once = PromptCachePlanner("m", AUTO, loop, sink)
        for n in range(60):
            send(once, f"{n} ".join(str(n * at) for at in range(1500)))
        assert sink.facts == []

    run(main)


def test_prompt_cache_unmarked_prompt_is_not_reported_as_unread() -> None:
    """Instructions that seemed volatile and were sent without marks come back: the provider writes them then."""
    async def main(loop: SimLoop) -> None:
        sink = RecordingSink()
        of, written = PromptCachePlanner("m", AUTO, loop, sink), Usage(input_total=4000, cache_write_5m=3000)
        for n in range(20):
            send(of, f"You are number {n}. {LONG}", usage=written)
            await asyncio.sleep(7)
        bare = [f"You are number {n}. {LONG}" for n in range(20, 30)]
        assert not any(b"ephemeral" in send(of, system) for system in bare)
        assert all(b"ephemeral" in send(of, system, usage=written) for system in bare)
        assert not [fact for fact in sink.facts_of(PrefixFinding) if fact.what == "unread"]

    run(main)


def test_prompt_cache_unknown_model_behind_anthropic_protocol_is_marked() -> None:
    """With the highest minimum of the family; the state has the rule. Behind another protocol nothing is marked."""
    async def main(loop: SimLoop) -> None:
        rig = PrefixRig(loop, model="our-assistant-3")
        for n in range(2):
            await rig.request(LONG * 3, f"question {n}")
        await rig.request(LONG, "shorter than any model of the family keeps")
        assert ["ephemeral" in str(sent) for sent in rig.sent] == [True, True, False]
        (rule,) = rig.state["rules"].values()
        assert rule == "unknown name behind Anthropic's protocol: anthropic marks from 4096 tokens on"
        other = PrefixRig(loop, model="our-assistant-3")
        await other.request(LONG * 3, "question", api=Api.CHAT)
        assert "ephemeral" not in str(other.sent)
        assert other.state["rules"] == {"up0 our-assistant-3": UNKNOWN}

    run(main)
