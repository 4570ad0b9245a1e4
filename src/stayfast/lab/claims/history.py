"""Long chats get their first token as soon as short ones, and no damaged summary takes the place of their turns.

Chats grow turn by turn, like those of a client that sends its whole history each time. The provider is simulated: its first
token waits for each token of the prompt (`prefill_per_token`), and it has no prompt cache. A second simulated model makes
the summaries by copying (`lab.context.extracts`); the real checks decide about them. Both arms run the real pipeline in
virtual time; one has `history: {mode: off}`.

The second part runs such chats at the embedded engine (`lab.context.engine_chats`), and measures its CPU time.

The third part plants one damage each into good summaries of generated conversations, and counts what the checks find.

When wrong: a provider with a prompt cache computes only the new turns, so long chats gain less there. Real small models
write worse summaries, of which the checks refuse more; turns are then left out instead. Generated conversations are English.
"""

import asyncio
from dataclasses import dataclass
from math import inf
from random import Random
from statistics import fmean
from typing import Any, Final

import msgspec

from stayfast.core.context import TurnText
from stayfast.core.types import Api
from stayfast.lab.context.engine_chats import OFF, ON, EngineChats, find_engine_fault, run_engine_chats
from stayfast.lab.context.extracts import make_long_conversation, write_extract
from stayfast.lab.context.measure import measure_damage
from stayfast.lab.harness.claim import ClaimResult, Conditions, Extent, Figure, Sense, ratio
from stayfast.lab.harness.intervals import ratio_interval
from stayfast.lab.harness.processes import MODEL
from stayfast.lab.harness.virtual import read_body, run_virtual_in_thread
from stayfast.lab.load.stats import ExactDistribution
from stayfast.lab.load.virtual import build_virtual_system
from stayfast.lab.simulated import GapConfig, Mixture, ProviderConfig
from stayfast.lab.simulated.settings import SimulatedUpstream
from stayfast.lab.workloads.in_memory import BodyStream
from stayfast.pipeline.context.history_step import HistoryStep
from stayfast.pipeline.exchange import Arrival
from stayfast.policy.context.config import ContextConfig
from stayfast.policy.context.history import HistoryConfig
from stayfast.policy.resilience.hedge import HedgeConfig
from stayfast.settings import RouteSettings, Settings
from stayfast.testing.simloop import SimLoop
from stayfast.upstreams.base import AnswerStream, Call
from stayfast.wire.local_answers import render_text_answer
from stayfast.wire.request_body import decode

Json = dict[str, Any]
EARLY, LATE, LAST = 5, 50, 56  # turns
WITHIN: Final = 1.1
ENGINE_WITHIN: Final = 1.3  # its CPU rises faster than the tokens; a summary and two turns are the least that is sent
FOUND, FALSE_ALARMS, CHECK_MS = 0.99, 0.05, 5.0
PROVIDER, SMALL = "provider", "small"
SUMMARIZE: Final = HistoryConfig("summarize", allowance_tokens=800, raw_turns=2, summary_share=0.3, by=SMALL)
PREFILL_PER_TOKEN: Final = 0.01
SUMMARY_S: Final = 2.0
THINK_S: Final = 15.0
ENGINE_NOTE: Final = (
    f"The engine computes turns {EARLY} and {LATE} anew, as after other chats have used its slot. With its prompt cache it "
    "computes only what is new; a new summary, and all that follows it, are new.")
_TURN_CHARS: Final = 480  # of a turn, about 126 tokens with its JSON
_RULE: Final = "Answer with care, in the language of the user, and say what you know and what you only suppose. "
_SYSTEM: Final = _RULE * 38  # about 900 tokens
_FILLER: Final = ("Let me go through this step by step, so that we both see the same picture before anything is decided. ",
                  "There is more than one way to look at it, and each of them has its own charm and its own price. ",
                  "If you like, we can look at the details together, one after another, as slowly as you wish. ")


class ExtractUpstream:
    """The simulated small model."""

    name = SMALL
    kind = "simulated"
    always_streams = False

    def can_serve(self, api: Api) -> bool:
        return api is Api.CHAT

    async def open(self, call: Call) -> AnswerStream:
        await asyncio.sleep(SUMMARY_S)
        prompt = msgspec.json.decode(call.request.body)["messages"][-1]["content"]
        body = render_text_answer(call.request, write_extract(prompt), answer_id=call.request_id, created_at=0)
        return BodyStream(call, body, SMALL, source_streams=call.request.stream)

    def close(self) -> None:
        """Holds nothing."""


class ChatRun(msgspec.Struct):
    """All chats of one arm. ttft_s, n_tokens: by turn, one for each chat."""

    ttft_s: list[list[float]]
    n_tokens: list[list[int]]
    summaries: dict[str, int]
    requests: dict[str, int]


@dataclass(frozen=True, slots=True)
class HistoryClaim:
    """n of an extent: simulated chats. The damage part has 20 times as many conversations. n_rounds: chats at the engine."""

    full: Extent = Extent(40, n_rounds=10)
    quick: Extent = Extent(6, n_rounds=4)
    history: HistoryConfig = SUMMARIZE

    name = "history"
    statement = (f"In growing chats of {LAST} turns, the first token of turn {LATE} takes at most {WITHIN:g} times as long "
                 f"as that of turn {EARLY}, on a simulated provider that computes each prompt anew, and {ENGINE_WITHIN:g} "
                 f"times on the embedded engine (CPU time). The checks find "
                 f"{FOUND:.0%} of the damage planted in summaries and reject at most {FALSE_ALARMS:.0%} of good ones, in at "
                 f"most {CHECK_MS:g} ms of CPU a kilobyte.")

    async def run(self, conditions: Conditions) -> ClaimResult:
        extent, seed = conditions.choose(self.full, self.quick), conditions.seed
        n = extent.n
        conditions.report_progress(f"twice {n} chats of {LAST} turns")
        off = await run_virtual_in_thread(run_chats, HistoryConfig(), n, seed)
        on = await run_virtual_in_thread(run_chats, self.history, n, seed)
        fault, engine = find_engine_fault(), list[Figure]()
        if not fault:
            chats = await run_engine_chats(lambda number: make_parts(seed, number, LAST), _SYSTEM, (EARLY, LATE),
                                           extent.n_rounds, conditions.report_progress)
            engine = list_engine_figures(chats)
        conditions.report_progress(f"damage in summaries of {20 * n} conversations")
        damage = await asyncio.to_thread(_list_damage_figures, seed, 20 * n)
        return ClaimResult((*_list_chat_figures(off, on, n), *engine, *damage), (ENGINE_NOTE,) if engine else (),
                           f"the part on the embedded engine was not run: {fault}" if fault else None)


async def run_chats(loop: SimLoop, history: HistoryConfig, n_chats: int, seed: int) -> ChatRun:
    """All chats side by side, at one gateway."""
    provider = ProviderConfig(seed=seed, ttft=Mixture(0.02, 0.05), gaps=GapConfig(0.001, 0.0), fills_max_tokens=True,
                              prefill_per_token=PREFILL_PER_TOKEN)
    settings = Settings(
        upstreams={PROVIDER: SimulatedUpstream(provider=provider, probe=False), SMALL: SimulatedUpstream(probe=False)},
        routes={MODEL: RouteSettings((PROVIDER,), context=ContextConfig(history=history), hedge=HedgeConfig("off")),
                SMALL: RouteSettings((SMALL,))})
    system = build_virtual_system(settings, loop, seed)
    system.registry[SMALL].upstream = ExtractUpstream()
    found = ChatRun([[] for _ in range(LAST + 1)], [[] for _ in range(LAST + 1)], {}, {})

    async def run_chat(number: int) -> None:
        rng = Random(f"{seed} {number} pauses")
        messages: list[Json] = [{"role": "system", "content": _SYSTEM}]
        for turn, (question, answer) in enumerate(make_parts(seed, number, LAST), 1):
            messages = [*messages, *question]
            body = {"model": MODEL, "messages": messages, "stream": True, "stream_options": {"include_usage": True},
                    "max_tokens": 8}
            began_at = loop.now()
            request = decode(Api.CHAT, msgspec.json.encode(body))
            reply = await system.gateway.serve(request, Arrival(f"{number}_{turn}", began_at))
            found.ttft_s[turn].append(loop.now() - began_at)
            await read_body(reply)
            usage = reply.summary.usage
            found.n_tokens[turn].append(usage.input_total if usage is not None else 0)
            messages = [*messages, *answer]
            await asyncio.sleep(rng.expovariate(1 / THINK_S) + 2 * SUMMARY_S)

    async with asyncio.TaskGroup() as group:
        for number in range(n_chats):
            group.create_task(run_chat(number))
    for step in system.gateway.router.routes[MODEL].policy.context:
        if isinstance(step, HistoryStep):
            found.summaries, found.requests = dict(step.state.summaries), dict(step.state.requests)
    return found


def make_parts(seed: int, number: int, n_turns: int) -> list[tuple[list[Json], list[Json]]]:
    """By turn of a chat, the user's message and what follows it."""
    rng = Random(f"{seed} {number}")
    return [_as_messages(texts, rng) for texts in make_long_conversation(seed * 1000 + number, n_turns)]


def _as_messages(texts: list[TurnText], rng: Random) -> tuple[list[Json], list[Json]]:
    """The user's message of a turn, and what follows it: tool calls, their results, the answer."""
    question = [{"role": "user", "content": text.text} for text in texts if text.role == "user"]
    answer: list[Json] = []
    size, n_calls = sum(len(text.text) for text in texts), 0
    for text in texts:
        if text.role == "tool":
            n_calls += 1
            function = _read_call(answer.pop()["content"])
            call = {"id": f"call_{text.turn}_{n_calls}", "type": "function", "function": function}
            answer += [{"role": "assistant", "content": None, "tool_calls": [call]},
                         {"role": "tool", "tool_call_id": call["id"], "content": text.text}]
        elif text.role == "assistant":
            answer.append({"role": "assistant", "content": text.text})
    while size < _TURN_CHARS and answer[-1]["role"] == "assistant":
        filler = rng.choice(_FILLER)
        size += len(filler)
        answer[-1]["content"] += f" {filler.strip()}"
    return question, answer


def _read_call(text: str) -> Json:
    name, _, arguments = text.partition("(")
    return {"name": name, "arguments": arguments.removesuffix(")")}


def _list_chat_figures(off: ChatRun, on: ChatRun, n_chats: int) -> list[Figure]:
    figures = []
    for name, run in (("without", off), ("with", on)):
        early, late = run.ttft_s[EARLY], run.ttft_s[LATE]
        low, high = ratio_interval(late, early, 0.5, n_blocks=n_chats)
        times = _median(late) / _median(early)
        figures += [
            Figure(f"{name} summaries: TTFT p50 of turn {EARLY}", _median(early), "s"),
            Figure(f"{name} summaries: TTFT p50 of turn {LATE}", _median(late), "s"),
            Figure(f"{name} summaries: prompt tokens of turn {LATE}, median",
                   ExactDistribution([float(n) for n in run.n_tokens[LATE]]).quantile(0.5), ""),
            Figure(f"{name} summaries: turn {LATE} takes, times turn {EARLY}", times, "",
                   WITHIN if run is on else None, Sense.AT_MOST, low, high)]
    worst = max(_median(on.ttft_s[turn]) for turn in range(LATE - 9, LAST + 1)) / _median(on.ttft_s[EARLY])
    n_made = sum(on.summaries.values())
    return [*figures, Figure(f"the slowest of turns {LATE - 9} to {LAST}, times turn {EARLY}", worst, ""),
            Figure.percent("summaries adopted", ratio(on.summaries.get("adopted", 0), n_made)),
            Figure.percent("long requests with turns left out",
                           ratio(on.requests.get("trimmed", 0), sum(on.requests.values())))]


def list_engine_figures(chats: EngineChats) -> list[Figure]:
    """The CPU of the engine for the early and the late turn, with and without summaries."""
    figures = []
    for name, route in (("without", OFF), ("with", ON)):
        early, late = chats.list_engine_s(route, EARLY), chats.list_engine_s(route, LATE)
        measured = [chat[turn] for chat in chats.turns[route] for turn in (EARLY, LATE)]
        cached = [chat[turn].engine_s for chat in chats.turns[route] for turn in range(LATE + 1, LAST + 1)]
        times = [ratio(*pair) for pair in zip(late, early, strict=True)]
        figures += [
            Figure(f"engine, {name} summaries: CPU to the first token, turn {EARLY}", _median(early), "s"),
            Figure(f"engine, {name} summaries: CPU to the first token, turn {LATE}", _median(late), "s"),
            Figure(f"engine, {name} summaries: prompt tokens of turn {LATE}, median",
                   _median([float(chat[LATE].n_tokens) for chat in chats.turns[route]]), ""),
            Figure.mean(f"engine, {name} summaries: turn {LATE} takes, times turn {EARLY}, mean", times, "",
                        ENGINE_WITHIN if route == ON else None),
            Figure(f"engine, {name} summaries: TTFT p50 of turn {LATE}",
                   _median([chat[LATE].ttft_s for chat in chats.turns[route]]), "s"),
            Figure(f"engine with its prompt cache, {name} summaries: CPU of turns {LATE + 1} to {LAST}, mean",
                   fmean(cached), "s"),
            Figure.count(f"engine, {name} summaries: cached tokens of the measured turns, most in one",
                         max(turn.n_cached for turn in measured))]
    return [*figures, Figure.percent("engine: summaries adopted",
                                     ratio(chats.summaries.get("adopted", 0), sum(chats.summaries.values())))]


def _list_damage_figures(seed: int, n: int) -> list[Figure]:
    result = measure_damage(seed, n)
    n_found = sum(found for found, _ in result.by_kind.values())
    n_planted = sum(planted for _, planted in result.by_kind.values())
    kinds = [Figure.share(f"found: {kind}", found, planted) for kind, (found, planted) in result.by_kind.items()]
    return [*kinds, Figure.share("planted damage found", n_found, n_planted, FOUND, Sense.AT_LEAST),
            Figure.share("good summaries rejected", result.n_false_alarms, result.n_good, FALSE_ALARMS),
            Figure.exact("CPU of the checks a kilobyte, p99", result.quantile_ms(0.99), "ms", CHECK_MS)]


def _median(values: list[float]) -> float:
    return ExactDistribution(values).quantile(0.5) if values else inf
