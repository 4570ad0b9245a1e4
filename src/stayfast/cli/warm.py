"""`stayfast warm FILE`: have a running gateway answer tomorrow's questions tonight, so that its caches know them.

Each line of FILE is a question for `--model`, or a request as JSON: {"model": ..., "messages": [...]}, or for embeddings
{"model": ..., "input": ...}. They are asked as a batch would ask, slowly, at most so many at once, and until `--budget`
tokens are spent. What is kept already costs nothing; with `--fresh-for` what is older is asked again.
"""

import argparse
import asyncio
import sys
from dataclasses import dataclass, field
from datetime import datetime
from http.client import HTTPException
from pathlib import Path
from typing import Any

import msgspec

from stayfast.bench.durations import seconds_in
from stayfast.cli import say
from stayfast.cli.asked import Answer, ask, reason
from stayfast.core.clock import Clock, SystemClock
from stayfast.policy.cron import Cron, read_cron

TIMEOUT_S = 600.0
N_TOLD = 3  # failures that are told in words
PATHS = {"messages": "/v1/chat/completions", "input": "/v1/embeddings", "prompt": "/v1/completions"}
THERE = frozenset(("hit", "semantic", "coalesced"))


@dataclass(frozen=True, slots=True)
class Question:
    """One request, for one endpoint."""

    path: str
    body: bytes


@dataclass(frozen=True, slots=True)
class Way:
    """How they are asked. `fresh_for_s`: None: whatever is kept will do. `n_tokens`: None: no bound."""

    url: str
    key_env: str | None
    per_s: float
    n_at_once: int
    n_tokens: int | None
    fresh_for_s: float | None


@dataclass(slots=True)
class Round:
    """What came of asking all of them once."""

    n_there: int = 0
    n_made: int = 0
    n_kept_out: int = 0  # answered, and not to be kept: `x-cache` says why
    n_failed: int = 0
    n_left_out: int = 0  # the budget was spent
    n_tokens: int = 0
    told: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        left = f", {self.n_left_out} left out: the budget is spent" if self.n_left_out else ""
        out = f", {self.n_kept_out} that no cache may keep" if self.n_kept_out else ""
        return (f"{self.n_there} were there, {self.n_made} made for {self.n_tokens} tokens{out}, "
                f"{self.n_failed} failed{left}")


def run(arguments: argparse.Namespace) -> int:
    """Ask; 0 when all were answered, 1 where one failed or was left out, 2 for wrong usage."""
    try:
        questions = read(_text_of(arguments.file), arguments.model)
        every_s = seconds_in(arguments.every) if arguments.every else None
        cron = read_cron(arguments.cron) if arguments.cron else None
        fresh_for_s = seconds_in(arguments.fresh_for) if arguments.fresh_for else None
        if every_s == 0:
            raise ValueError("--every must be more than 0")
        if arguments.per_second <= 0 or arguments.at_once < 1:
            raise ValueError("--per-second and --at-once must be more than 0")
    except ValueError as error:
        say(f"stayfast warm: {error}")
        return 2
    way = Way(arguments.url, arguments.key_env, arguments.per_second, arguments.at_once, arguments.budget, fresh_for_s)
    try:
        return asyncio.run(_rounds(questions, way, every_s, cron, SystemClock()))
    except KeyboardInterrupt:
        return 0


def _text_of(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not in UTF-8 (byte {error.start})") from None
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None


def read(text: str, model: str | None) -> list[Question]:
    """The lines of a file. Raises ValueError, which names the line."""
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        said = line.strip()
        if not said or said.startswith("#"):
            continue
        if said.startswith("{"):
            found.append(_request(said, number))
        elif model is None:
            raise ValueError(f"line {number} is a question: say with --model which route to ask")
        else:
            body = {"model": model, "messages": [{"role": "user", "content": said}]}
            found.append(Question(PATHS["messages"], msgspec.json.encode(body)))
    if not found:
        raise ValueError("there is no question in this file")
    return found


def _request(said: str, number: int) -> Question:
    try:
        body = msgspec.json.decode(said, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise ValueError(f"line {number} is no JSON object: {error}") from None
    path = next((path for name, path in PATHS.items() if name in body), None)
    if path is None or "model" not in body:
        raise ValueError(f"line {number} needs a model, and messages, input or prompt")
    return Question(path, msgspec.json.encode({**body, "stream": False} if path != PATHS["input"] else body))


async def _rounds(questions: list[Question], way: Way, every_s: float | None, cron: Cron | None, clock: Clock) -> int:
    """Once, or again and again."""
    if cron is not None:
        await asyncio.sleep(_until(cron, clock))
    while True:
        began_at = clock.now()
        came = await ask_all(questions, way)
        for told in came.told:
            say(f"stayfast warm: {told}")
        sys.stdout.write(f"{came}\n")
        sys.stdout.flush()
        if cron is not None:
            await asyncio.sleep(_until(cron, clock))
        elif every_s is not None:
            await asyncio.sleep(max(0.0, began_at + every_s - clock.now()))
        else:
            return 1 if came.n_failed or came.n_left_out else 0


def _until(cron: Cron, clock: Clock) -> float:
    now = datetime.fromtimestamp(clock.wall()).astimezone()
    return max(0.0, (cron.next_after(now) - now).total_seconds())


async def ask_all(questions: list[Question], way: Way) -> Round:
    """All of them, once."""
    came, places = Round(), asyncio.Semaphore(way.n_at_once)
    async with asyncio.TaskGroup() as group:
        for number, question in enumerate(questions):
            if number:
                await asyncio.sleep(1 / way.per_s)
            await places.acquire()
            if way.n_tokens is not None and came.n_tokens >= way.n_tokens:
                came.n_left_out = len(questions) - number
                return came
            task = group.create_task(_one(question, way, came))
            task.add_done_callback(lambda _: places.release())
    return came


async def _one(question: Question, way: Way, came: Round) -> None:
    headers = {"x-stayfast-priority": "batch"}
    if way.fresh_for_s is not None:
        headers["cache-control"] = f"max-age={way.fresh_for_s:.0f}"
    try:
        answer = await asyncio.to_thread(ask, way.url, "POST", question.path, key_env=way.key_env, body=question.body,
                                         headers=headers, timeout_s=TIMEOUT_S)
    except (OSError, HTTPException, ValueError) as error:
        _failed(came, f"{way.url} cannot be asked: {error}")
        return
    if answer.status != 200:
        _failed(came, reason(answer.status, answer.body))
        return
    _answered(answer, came)


def _answered(answer: Answer, came: Round) -> None:
    result = answer.cache.split(";")[0]
    if result in THERE:
        came.n_there += 1
        return
    usage = msgspec.json.decode(answer.body).get("usage") or {}
    came.n_tokens += usage.get("total_tokens") or 0
    if result in ("miss", "stale"):
        came.n_made += 1
    else:
        came.n_kept_out += 1
        _tell(came, f"no cache keeps this: {answer.cache or 'its route has none'}")


def _failed(came: Round, why: str) -> None:
    came.n_failed += 1
    _tell(came, why)


def _tell(came: Round, what: str) -> None:
    if what not in came.told and len(came.told) < N_TOLD:
        came.told.append(what)
