"""Chats at the embedded engine: how much of their prompts it reads from its slots, and how long the first token takes.

Some chats have the same long instructions and grow turn by turn; their turns come in random order, two at a time. Three arms
run the same chats, each on an engine of its own: slots by prefix (the default), the engine's own choice of slots with its
prompt caches (`slots_by_prefix: false`, the strongest alternative), and no cache at all (`cache_prompt: false`). The tokens
read from the cache are those that the engine counts in `usage`.

When wrong: the first request of a chat is computed in whole, by all arms, so chats of few turns gain less, and the slowest
first tokens are no faster. With no instructions in common, or instructions far longer than the histories, the engine's own
choice is nearly as good; with more chats than slots, both depend on the cache in RAM.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any, Final

import msgspec

from stayfast.lab.context.engine_chats import find_engine_fault, write_chat_model
from stayfast.lab.harness.claim import ClaimResult, Conditions, Extent, Figure, Sense, SetUpFailed, ratio
from stayfast.lab.harness.engine_client import EngineAnswer, stream_answer
from stayfast.lab.harness.intervals import ratio_interval
from stayfast.lab.harness.processes import MODEL, Processes
from stayfast.lab.load.stats import ExactDistribution

HIT_SHARE, CUT, FEWER = 0.80, 0.60, 0.25
BY_PREFIX, OWN_CHOICE, NO_CACHE = "slots by prefix", "the engine's own choice", "no cache"
N_CHATS: Final = 6
N_SLOTS: Final = 8
_CTX: Final = 4096
_N_OUTPUT: Final = 24
_N_WORDS: Final = 48  # of a question
_AT_A_TIME: Final = 2
_RULE: Final = "Answer with care, in the language of the user, and say what you know and what you only suppose. "
_INSTRUCTIONS: Final = _RULE * 30  # about 700 tokens
_WORDS: Final = ("order", "invoice", "parcel", "refund", "address", "account", "window", "garden", "station", "winter",
                 "letter", "number", "colour", "return", "weight", "basket")


@dataclass(frozen=True, slots=True)
class PrefixChatClaim:
    """n of an extent: turns of each chat. by_prefix: of the first arm; false: as a gateway that does not choose slots."""

    full: Extent = Extent(n=12, n_rounds=3)
    quick: Extent = Extent(n=8)
    by_prefix: bool = True

    name = "prefix-chat"
    statement = ("In chats with common instructions, whose histories grow longer than these, the embedded engine reads at "
                 f"least {HIT_SHARE:.0%} of its prompt tokens from its slots, and computes at least {FEWER:.0%} fewer than "
                 f"with its own choice of slots. The median first token comes at least {CUT:.0%} sooner than without a "
                 "cache.")

    async def run(self, conditions: Conditions) -> ClaimResult:
        if fault := find_engine_fault():
            raise SetUpFailed(fault)
        extent = conditions.choose(self.full, self.quick)
        found: dict[str, list[EngineAnswer]] = {arm: [] for arm in (BY_PREFIX, OWN_CHOICE, NO_CACHE)}
        with TemporaryDirectory(prefix="stayfast-engine-") as folder:
            model = Path(folder) / "chats.gguf"
            await asyncio.to_thread(write_chat_model, model)
            for number in range(extent.n_rounds):
                for arm in found:
                    conditions.report_progress(f"round {number + 1} of {extent.n_rounds}: {arm}")
                    found[arm] += await _run_arm(
                        arm, model, extent.n, conditions.seed + number, by_prefix=self.by_prefix and arm == BY_PREFIX)
        return ClaimResult(tuple(_figures(found)), (
            "Both arms with a cache have the same slots, the same memory and llama.cpp's cache in RAM.",))


async def _run_arm(arm: str, model: Path, n_turns: int, seed: int, *, by_prefix: bool) -> list[EngineAnswer]:
    """All requests of the chats, in the order of their schedule, on an engine of their own."""
    async with Processes() as processes:
        gateway = await processes.start_gateway({
            "upstreams": {"engine": {"kind": "embedded", "model": str(model), "n_slots": N_SLOTS, "ctx_per_slot": _CTX,
                                     "slots_by_prefix": by_prefix, "limit": {"mode": "off"}}},
            "routes": {MODEL: {"upstreams": ["engine"], "hedge": {"mode": "off"}, "deadline": 120.0}}})
        return await _ChatLoad(gateway.url, n_turns, seed, {} if arm != NO_CACHE else {"cache_prompt": False}).run()


class _ChatLoad:
    """The chats of one arm. A chat has one request at a time."""

    def __init__(self, url: str, n_turns: int, seed: int, more: Mapping[str, Any]) -> None:
        rng = Random(seed)
        self._url = url
        self._more = more
        self._chats: list[list[dict[str, str]]] = [[{"role": "system", "content": _INSTRUCTIONS}] for _ in range(N_CHATS)]
        self._questions = [[" ".join(rng.choices(_WORDS, k=_N_WORDS)) for _ in range(n_turns)] for _ in range(N_CHATS)]
        self._schedule = [chat for _ in range(n_turns) for chat in rng.sample(range(N_CHATS), N_CHATS)]
        self._busy: set[int] = set()
        self._answers: list[EngineAnswer] = []

    async def run(self) -> list[EngineAnswer]:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(_AT_A_TIME):
                tasks.create_task(self._work())
        return self._answers

    async def _work(self) -> None:
        while (place := next((n for n, chat in enumerate(self._schedule) if chat not in self._busy), None)) is not None:
            number = self._schedule.pop(place)
            self._busy.add(number)
            chat = self._chats[number]
            chat.append({"role": "user", "content": self._questions[number].pop()})
            body = {"model": MODEL, "stream": True, "stream_options": {"include_usage": True}, "max_tokens": _N_OUTPUT,
                    "temperature": 0, "ignore_eos": True, "messages": chat, **self._more}
            answer = await stream_answer(self._url, msgspec.json.encode(body))
            chat.append({"role": "assistant", "content": msgspec.json.decode(b'"%b"' % answer.text)})
            self._answers.append(answer)
            self._busy.discard(number)


def _figures(found: Mapping[str, list[EngineAnswer]]) -> list[Figure]:
    shares = {arm: ratio(sum(one.n_cached for one in answers), sum(one.n_prompt for one in answers))
              for arm, answers in found.items()}
    waits_s = {arm: [one.ttft_s for one in answers] for arm, answers in found.items()}
    figures = [Figure.exact(f"prompt tokens read from the cache, {BY_PREFIX}", 100 * shares[BY_PREFIX], "%", 100 * HIT_SHARE,
                            Sense.AT_LEAST)]
    computed = {arm: sum(one.n_prompt - one.n_cached for one in answers) for arm, answers in found.items()}
    figures.append(Figure.exact(f"prompt tokens computed, fewer than with {OWN_CHOICE}",
                                100 * (1 - ratio(computed[BY_PREFIX], computed[OWN_CHOICE])), "%", 100 * FEWER,
                                Sense.AT_LEAST))
    for arm, goal in ((OWN_CHOICE, None), (NO_CACHE, CUT)):
        medians = [ExactDistribution(waits_s[one]).quantile(0.5) for one in (BY_PREFIX, arm)]
        low, high = ratio_interval(waits_s[BY_PREFIX], waits_s[arm], 0.5, is_paired=False)
        figures.append(Figure.percent(f"TTFT p50, less than with {arm}", 1 - medians[0] / medians[1], goal, Sense.AT_LEAST,
                                      (1 - high, 1 - low)))
    figures += [Figure.exact(f"prompt tokens read from the cache, {OWN_CHOICE}", 100 * shares[OWN_CHOICE], "%")]
    for arm, waits in waits_s.items():
        figures += [Figure.quantile_s(f"TTFT p50, {arm}", waits, 0.5), Figure.exact(f"TTFT mean, {arm}", fmean(waits), "s"),
                    Figure.exact(f"TTFT p99, {arm}", ExactDistribution(waits).quantile(0.99), "s")]
    return figures
