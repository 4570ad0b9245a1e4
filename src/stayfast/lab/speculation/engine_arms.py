"""The arms of a real embedded engine, measured in turn through a gateway: constant ones, and the controller's choice.

One gateway with an upstream for each constant arm, and one for the controller; each upstream has engine processes of its
own. In each round, each upstream answers a block of requests, in an order that changes with the round. Of a constant arm the
first answers of a block do not count: its process was idle. Speeds are the engine's own, of decoding alone.
"""

import asyncio
import http.client
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Final, TypeVar

from stayfast.lab.harness.claim import SetUpFailed
from stayfast.lab.harness.processes import ServerProcess
from stayfast.observe.metrics.definitions import SPECULATION_ANSWERS, SPECULATION_DECODE_S, SPECULATION_TOKENS
from stayfast.policy.speculation.config import AUTO, DRAFT, NGRAM, OFF

T = TypeVar("T")
CONSTANT: Final = (OFF, NGRAM, DRAFT)
N_WARM: Final = 2
LEARNING: Final = 400  # requests of a route, in which the controller's allowance is spent: 16 tries, 13 requests apart
QUESTIONS: Final = ("What is time to first token?", "How does batching change latency?", "What is a KV cache?",
                    "Why is p99 more important than the mean?", "What is speculative decoding?",
                    "How do I reduce tail latency?")
TEXTS: Final = (
    "Speculation drafts a few tokens with a small model.", "The queue of a full server grows without a bound.",
    "A cached prefix of a long prompt is not computed again.")
N_COPIES: Final = 4
_SAMPLE = re.compile(r'^(\w+)\{upstream="auto",route="(\w+)",arm="(\w+)"(?:,why="(\w+)")?\} (\S+)$', re.MULTILINE)


def question_bodies() -> list[dict[str, Any]]:
    """Ordinary prompts."""
    return [{"messages": [{"role": "user", "content": text}], "max_tokens": 96} for text in QUESTIONS]


def copy_bodies() -> list[dict[str, Any]]:
    """Answers that repeat a text of the prompt, word by word: a schema with a constant makes even a small model copy."""
    return [{"messages": [{"role": "user", "content": f"Copy: {text}"}], "max_tokens": 256,
             "response_format": {"type": "json_schema", "json_schema": {
                 "name": "copies", "schema": {"const": " ".join([text] * N_COPIES)}}}} for text in TEXTS]


def arm_settings(workloads: Sequence[str]) -> dict[str, Any]:
    """A gateway with a route for each constant arm and workload, such as `copy-ngram`; that of `auto` is named `copy`."""
    upstreams = {mode: {"kind": "embedded", "n_threads": 1, "n_slots": 4, "speculation": {"mode": mode}}
                 for mode in (*CONSTANT, AUTO)}
    return {"upstreams": upstreams, "log": {"requests": False},
            "routes": {route_of(workload, mode): {"upstreams": [mode], "hedge": {"mode": "off"}}
                       for workload in workloads for mode in upstreams}}


def route_of(workload: str, mode: str) -> str:
    return workload if mode == AUTO else f"{workload}-{mode}"


@dataclass(slots=True)
class ArmRounds:
    """Of one workload. speeds: tokens a second by upstream, the median of each round's answers, as other work on the machine
    slows some of them down. drafts: accepted and guessed tokens."""

    speeds: dict[str, list[float]] = field(default_factory=lambda: {mode: [] for mode in (*CONSTANT, AUTO)})
    drafts: dict[str, tuple[int, int]] = field(default_factory=dict)
    answers: dict[int, set[str]] = field(default_factory=dict)  # by prompt

    @property
    def n_differing(self) -> int:
        """Prompts whose greedy answers were not all equal."""
        return sum(len(texts) > 1 for texts in self.answers.values())


class ArmMeter:
    """Measures one workload, round by round. bodies: of its requests, without a model."""

    def __init__(self, gateway: ServerProcess, workload: str, bodies: Sequence[Mapping[str, Any]]) -> None:
        self.rounds = ArmRounds()
        self._gateway = gateway
        self._workload = workload
        self._bodies = bodies

    async def run_round(self, number: int, *, n_auto: int, n_constant: int) -> None:
        """One block of each upstream. n_auto, n_constant: requests of a block that count."""
        modes = (*CONSTANT, AUTO)
        for place in range(len(modes)):
            mode = modes[(place + number) % len(modes)]
            n_warm, n = (0, n_auto) if mode == AUTO else (N_WARM, n_constant)
            await asyncio.to_thread(self._run_block, mode, n_warm, n, number)

    def _run_block(self, mode: str, n_warm: int, n: int, number: int) -> None:
        rounds, connection = self.rounds, self._gateway.connect()
        speeds = []
        accepted, guessed = rounds.drafts.get(mode, (0, 0))
        try:
            for index in range(n_warm + n):
                which = (index + number) % len(self._bodies)
                text, timings = _call(connection, {**self._bodies[which], "model": route_of(self._workload, mode)})
                rounds.answers.setdefault(which, set()).add(text)
                if index >= n_warm:
                    speeds.append(timings["predicted_n"] / timings["predicted_ms"] * 1e3)
                    accepted, guessed = accepted + timings.get("draft_n_accepted", 0), guessed + timings.get("draft_n", 0)
        finally:
            connection.close()
        rounds.speeds[mode].append(median(speeds))
        rounds.drafts[mode] = accepted, guessed


def _call(connection: http.client.HTTPConnection, body: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The text of a greedy answer, and the engine's timings. Raises SetUpFailed."""
    connection.request("POST", "/v1/chat/completions", json.dumps(
        {**body, "temperature": 0, "stream": True, "stream_options": {"include_usage": True}}),
        {"content-type": "application/json"})
    answer = connection.getresponse()
    content = answer.read()
    if answer.status != 200:
        raise SetUpFailed(f"the engine answered {answer.status}: {content[:200].decode(errors='replace')}")
    text, timings = "", None
    for line in content.split(b"\n"):
        if line.startswith(b"data: {"):
            event = json.loads(line[len(b"data: "):])
            text += "".join(choice["delta"].get("content") or "" for choice in event["choices"])
            timings = event.get("timings") or timings
    if timings is None:
        raise SetUpFailed("the answer ended without the engine's timings")
    return text, timings


@dataclass(frozen=True, slots=True)
class ArmTotals:
    """What the controller of the gateway has done on one route. by arm; `chosen` by arm and reason."""

    chosen: Mapping[tuple[str, str], float]
    tokens: Mapping[str, float]
    decode_s: Mapping[str, float]

    @property
    def n_tried(self) -> int:
        return int(sum(n for (_, why), n in self.chosen.items() if why == "tried"))

    @property
    def n(self) -> int:
        return int(sum(self.chosen.values()))

    @property
    def used(self) -> str:
        """The arm that most requests had without a try."""
        plain = {key: n for key, n in self.chosen.items() if key[1] != "tried"}
        return max(plain, key=plain.__getitem__)[0]

    def since(self, before: "ArmTotals") -> "ArmTotals":
        return ArmTotals(subtract(self.chosen, before.chosen), subtract(self.tokens, before.tokens),
                         subtract(self.decode_s, before.decode_s))

    @property
    def speed_with_tries(self) -> float:
        """Tokens a second of all answers, over those of the arm in use."""
        seconds = sum(self.decode_s.values())
        return sum(self.tokens.values()) / seconds / (self.tokens[self.used] / self.decode_s[self.used])


def subtract(counts: Mapping[T, float], before: Mapping[T, float]) -> dict[T, float]:
    return {key: value - before.get(key, 0.0) for key, value in counts.items()}


async def read_totals(gateway: ServerProcess, workload: str) -> ArmTotals:
    """From the gateway's metrics."""
    page = (await gateway.read("/metrics")).decode()
    chosen: dict[tuple[str, str], float] = {}
    tokens: dict[str, float] = {}
    decode_s: dict[str, float] = {}
    for name, route, arm, why, value in _SAMPLE.findall(page):
        if route != workload:
            continue
        if name == SPECULATION_ANSWERS.name:
            chosen[arm, why] = float(value)
        elif name in (SPECULATION_TOKENS.name, SPECULATION_DECODE_S.name):
            (tokens if name == SPECULATION_TOKENS.name else decode_s)[arm] = float(value)
    return ArmTotals(chosen, tokens, decode_s)
