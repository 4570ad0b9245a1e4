"""A simulated provider's cache of prompts, held to the rules that providers publish."""

import asyncio
from typing import Any

import msgspec
import pytest

from stayfast.core.types import Api
from stayfast.lab.simulated import (
    GapConfig,
    Mixture,
    PromptCacheModel,
    Provider,
    ProviderConfig,
    Tariff,
    to_simulated_request,
)
from stayfast.testing import SimLoop
from stayfast.testing.simloop import run
from stayfast.wire.request_body import decode
from tests.unit.upstreams.simulated_rig import Heard, hear

LONG = "word " * 1500
MARK = {"type": "ephemeral"}
ANTHROPIC = PromptCacheModel("anthropic")
POINTS = PromptCacheModel("breakpoints", ttl_s=1800.0)
AUTOMATIC = PromptCacheModel("automatic", write_factor=1.0)


def text(words: str, *, mark: Any = None, name: str = "cache_control", kind: str = "text") -> dict[str, Any]:
    """A text part."""
    return {"type": kind, "text": words} | ({name: mark} if mark is not None else {})


def messages(*turns: Any, system: Any = None, **fields: Any) -> bytes:
    """A messages request; turns are contents, the user's first."""
    roles = ("user", "assistant") * len(turns)
    said = [{"role": role, "content": content} for role, content in zip(roles, turns, strict=False)]
    return msgspec.json.encode({"model": "m", "max_tokens": 3, "messages": said, "system": system or [], **fields})


def chat(*contents: Any, **fields: Any) -> bytes:
    """A chat request: instructions, then turns."""
    roles = ("system", *("user", "assistant") * len(contents))
    said = [{"role": role, "content": content} for role, content in zip(roles, contents, strict=False)]
    return msgspec.json.encode({"model": "m", "max_tokens": 3, "messages": said, **fields})


class Rig:
    """A provider with a cache."""

    def __init__(self, loop: SimLoop, cache: PromptCacheModel) -> None:
        config = ProviderConfig(ttft=Mixture(1.0), gaps=GapConfig(0.0, 0.0), prefill_per_token=0.001, prompt_cache=cache,
                                tariff=Tariff(1.0, 0.0))
        self.provider = Provider("p", config, loop)
        self.rules = cache.rules
        self.api = Api.MESSAGES if cache.rules == "anthropic" else Api.CHAT

    async def hear(self, body: bytes) -> Heard:
        """Ask, and listen to the end."""
        return await hear(self.provider, to_simulated_request(decode(self.api, body), cache_rules=self.rules))

    async def usage(self, body: bytes) -> tuple[int, int, int]:
        """Tokens read, written, and in all, as the answer says in its own dialect."""
        heard = await self.hear(body)
        assert heard.head is not None
        assert heard.head.body is not None
        assert heard.head.status == 200, heard.head.body
        said = msgspec.json.decode(heard.head.body)["usage"]
        if self.api is Api.MESSAGES:
            read, written = said["cache_read_input_tokens"], said["cache_creation_input_tokens"]
            return read, written, said["input_tokens"] + read + written
        details = said["prompt_tokens_details"]
        return details["cached_tokens"], details["cache_write_tokens"], said["prompt_tokens"]

    async def refusal(self, body: bytes) -> str:
        """What a 400 says."""
        heard = await self.hear(body)
        assert heard.head is not None
        assert heard.head.status == 400
        return str(msgspec.json.decode(heard.head.body or b"")["error"]["message"])


def test_simulated_anthropic_cache_reads_marked_prefix_only() -> None:
    """Unmarked prompts are plain; the marked beginning is written once and read by whoever begins alike."""
    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, ANTHROPIC)
        assert (await rig.usage(messages("hi", system=LONG)))[:2] == (0, 0)
        marked = [text(LONG, mark=MARK)]
        assert (await rig.usage(messages("hi", system=marked)))[:2] == (0, 1501)
        assert await rig.usage(messages("ho", system=marked)) == (1501, 0, 1502)
        assert (await rig.usage(messages("ho", system=[text(LONG + "x", mark=MARK)])))[:2] == (0, 1501)
        assert rig.provider.counts.n_tokens_cached == 1501

    run(main)


def test_simulated_anthropic_cache_needs_minimum_length_and_expires() -> None:
    """Under the floor in silence; after five minutes from the last use, or an hour."""
    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, ANTHROPIC)
        short = messages("hi", system=[text("word " * 500, mark=MARK)])
        assert [(await rig.usage(short))[:2] for _ in range(2)] == [(0, 0)] * 2
        body = messages("hi", system=[text(LONG, mark=MARK)])
        await rig.usage(body)
        for _ in range(2):
            await asyncio.sleep(290)
            assert (await rig.usage(body))[0] == 1501
        await asyncio.sleep(301)
        assert (await rig.usage(body))[0] == 0
        hour = messages("hi", system=[text("an " + LONG, mark=MARK | {"ttl": "1h"})])
        await rig.usage(hour)
        await asyncio.sleep(3000)
        assert (await rig.usage(hour))[0] == 1502

    run(main)


@pytest.mark.parametrize(("n_between", "is_read"), [(18, True), (20, False)])
def test_simulated_anthropic_cache_looks_back_twenty_blocks(n_between: int, is_read: bool) -> None:
    """From each mark; what was kept further back is lost."""
    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, ANTHROPIC)
        await rig.usage(messages([text(LONG, mark=MARK)]))
        parts = [text(f"part {n}") for n in range(n_between)]
        read, _, _ = await rig.usage(messages([text(LONG), *parts, text("end", mark=MARK)]))
        assert bool(read) is is_read

    run(main)


def test_simulated_anthropic_cache_is_readable_from_first_token() -> None:
    """Two at once both write; a third one after them reads."""
    async def main(loop: SimLoop) -> None:
        rig, body = Rig(loop, ANTHROPIC), messages("hi", system=[text(LONG, mark=MARK)])
        both = await asyncio.gather(rig.usage(body), rig.usage(body))
        assert [said[:2] for said in both] == [(0, 1501)] * 2
        assert (await rig.usage(body))[0] == 1501

    run(main)


@pytest.mark.parametrize(("body", "words"), [
    (messages([text(str(n), mark=MARK) for n in range(5)]), "maximum of 4"),
    (messages([text(str(n), mark=MARK) for n in range(4)], cache_control=MARK), "Found 5"),
    (messages([text("a", mark=MARK), text("b", mark=MARK | {"ttl": "1h"})]), "must not come after"),
    (messages("a", [{"type": "thinking", "thinking": "t", "signature": "s", "cache_control": MARK}], "b"), "thinking"),
    (messages([text("a"), text("", mark=MARK)]), "empty text"),
])
def test_simulated_anthropic_refuses_invalid_breakpoints(body: bytes, words: str) -> None:
    """400, as the provider does."""
    async def main(loop: SimLoop) -> None:
        assert words in await Rig(loop, ANTHROPIC).refusal(body)

    run(main)


def test_simulated_openai_without_breakpoint_reads_nothing_for_other_question() -> None:
    """OpenAI from 5.6 on keeps up to the latest message; with a mark after the instructions they are read."""
    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, POINTS)
        assert (await rig.usage(chat(LONG, "one")))[:2] == (0, 1502)
        assert (await rig.usage(chat(LONG, "two")))[0] == 0
        marked = [text(LONG, mark={"mode": "explicit"}, name="prompt_cache_breakpoint")]
        await rig.usage(chat(marked, "three"))
        assert (await rig.usage(chat(marked, "four")))[:2] == (1501, 1)
        assert (await rig.usage(chat(marked, "four", "yes", "and five")))[0] == 1502

    run(main)


def test_simulated_automatic_cache_counts_in_steps_and_refuses_breakpoints() -> None:
    """OpenAI before 5.6: from 1024 tokens on, in steps of 128, whatever follows."""
    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, AUTOMATIC)
        assert (await rig.usage(chat(LONG, "one")))[:2] == (0, 0)
        read, written, _ = await rig.usage(chat(LONG, "two"))
        assert (read % 128, written) == (0, 0)
        assert 1200 < read <= 1500
        assert (await rig.usage(chat("word " * 700, "two")))[0] == 0
        assert (await rig.usage(chat(LONG, "two", prompt_cache_key="other")))[0] == 0
        marked = [text(LONG, mark={"mode": "explicit"}, name="prompt_cache_breakpoint")]
        assert "prompt_cache_breakpoint" in await rig.refusal(chat(marked, "x"))

    run(main)


def test_simulated_cache_overloaded_machine_passes_to_cold_one() -> None:
    """The sixteenth in a minute."""
    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, AUTOMATIC)
        reads = [(await rig.usage(chat(LONG, "x", prompt_cache_key="k")))[0] > 0 for _ in range(17)]
        assert reads == [False, *[True] * 14, False, True]

    run(main)


def test_simulated_cache_reads_are_cheaper_and_faster() -> None:
    """A tenth of the price, and no wait for its part of the prompt."""
    async def main(loop: SimLoop) -> None:
        rig, body = Rig(loop, ANTHROPIC), messages("hi", system=[text(LONG, mark=MARK)])
        first = await rig.hear(body)
        usd = rig.provider.counts.cost_usd
        second = await rig.hear(body)
        assert first.head_at == pytest.approx(2.502)
        assert second.head_at == pytest.approx(1.001)
        assert usd == pytest.approx((1501 * 1.25 + 1) / 1e6)
        assert rig.provider.counts.cost_usd - usd == pytest.approx((1501 * 0.1 + 1) / 1e6)

    run(main)
