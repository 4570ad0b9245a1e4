"""`stayfast warm FILE`: fill caches with answers to expected questions.

    questions   each line of FILE is a question for route `--model`, or a request as JSON: {"model": ..., "messages":
                [...]}, sent to a running gateway
    documents   with `--embed`, a line that is not JSON is a text to embed: {"model": ..., "input": ...}
    rankings    with `--call MODULE:NAME`, each line is the argument of a `turns.CachedFunction`: text, a JSON list of arguments, or
                a JSON object of keyword arguments. Results go to the store shared with the application

Requests have batch priority and are paced; a round ends after `--budget` tokens. Stored answers cost nothing; `--fresh-for`
refreshes older ones (default for a `turns.CachedFunction`: its ttl_s).
"""

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from stayfast.cli import EXIT_NOTHING_TO_DO, print_message
from stayfast.cli.admin_client import BAD_URL, authorization_header, error_message
from stayfast.core.clock import Clock, SystemClock
from stayfast.core.errors import UpstreamFailed
from stayfast.core.events import Fanout
from stayfast.core.units import parse_duration
from stayfast.http.client.client import HttpClient, HttpConfig
from stayfast.http.client.response import WholeResponse
from stayfast.policy.cron import Cron, parse_cron
from stayfast.turns.cached import CachedFunction
from stayfast.turns.function import import_turn_function

T = TypeVar("T")
MAX_MESSAGES = 3  # different failures shown
TIMEOUT_S = 600.0
MAX_BODY_BYTES = 16 * 1024 * 1024
PATHS = {"messages": "/v1/chat/completions", "input": "/v1/embeddings", "prompt": "/v1/completions"}
THERE = frozenset(("hit", "semantic", "coalesced"))
WHY_NOT = {  # explanations of the reason in `x-cache`
    "": "its route has no cache: routes.NAME.cache",
    "temperature": "temperature: answers are random. Set `temperature: 0` in the line's JSON, or cache.max_temperature: 1 "
                   "on a route where any good answer will do",
}


@dataclass(frozen=True, slots=True)
class WarmPace:
    """The request rate. `max_fresh_age_s`: the longest age of a stored answer; None: any."""

    per_s: float
    n_at_once: int
    fresh_for_s: float | None


@dataclass(slots=True)
class WarmRound:
    """The results of one round."""

    n_there: int = 0
    n_made: int = 0
    n_kept_out: int = 0  # answered but not cacheable; reason in `x-cache`
    n_failed: int = 0
    n_left_out: int = 0  # the budget was spent
    n_tokens: int = 0
    has_tokens: bool = True  # whether tokens are counted
    messages: list[str] = field(default_factory=list)

    def record_failure(self, why: str) -> None:
        self.n_failed += 1
        self.add_message(why)

    def add_message(self, what: str) -> None:
        if what not in self.messages and len(self.messages) < MAX_MESSAGES:
            self.messages.append(what)

    @property
    def warmed_nothing(self) -> bool:
        """Whether all requests succeeded but no answer is cacheable."""
        return bool(self.n_kept_out) and not (self.n_there or self.n_made or self.n_failed or self.n_left_out)

    def __str__(self) -> str:
        left = f", {self.n_left_out} skipped (budget spent)" if self.n_left_out else ""
        out = f", {self.n_kept_out} not cacheable" if self.n_kept_out else ""
        cost = f" for {self.n_tokens} tokens" if self.has_tokens else ""
        return f"{self.n_there} cached, {self.n_made} new{cost}{out}, {self.n_failed} failed{left}"


@dataclass(frozen=True, slots=True)
class WarmQuestion:
    path: str
    body: bytes


def run(arguments: argparse.Namespace) -> int:
    """Run the rounds. Exit status 1: a request failed or was skipped; 2: wrong usage; 5: no answer is cacheable."""
    try:
        text = _read_text(arguments.file)
        every_s = parse_duration(arguments.every) if arguments.every else None
        cron = parse_cron(arguments.cron) if arguments.cron else None
        fresh_for_s = parse_duration(arguments.fresh_for) if arguments.fresh_for else None
        if every_s == 0:
            raise ValueError("--every must be more than 0")
        if arguments.per_second <= 0 or arguments.at_once < 1:
            raise ValueError("--per-second and --at-once must be more than 0")
        pace = WarmPace(arguments.per_second, arguments.at_once, fresh_for_s)
        if arguments.call:
            if arguments.model or arguments.embed or arguments.budget is not None:
                raise ValueError("--call uses no gateway: --model, --embed and --budget do not apply")
            cached = find_cached(arguments.call)
            ask, close = partial(call_all, cached, read_arguments(text), pace), cached.aclose
        else:
            questions = read_questions(text, arguments.model, embeds=arguments.embed)
            ask, close = partial(ask_all, questions, arguments.url, arguments.key_env, arguments.budget, pace), None
    except ValueError as error:
        print_message(f"stayfast warm: {error}")
        return 2
    try:
        return asyncio.run(_run_rounds(ask, close, every_s, cron, SystemClock()))
    except KeyboardInterrupt:
        return 0


def _read_text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 (byte {error.start})") from None
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines that are not empty or comments, with their numbers."""
    lines = ((number, line.strip()) for number, line in enumerate(text.splitlines(), 1))
    return ((number, content) for number, content in lines if content and not content.startswith("#"))


def read_questions(text: str, model: str | None, *, embeds: bool = False) -> list[WarmQuestion]:
    """The lines of a file. Raises ValueError, which names the line."""
    found = []
    for number, content in _lines(text):
        if content.startswith("{"):
            found.append(_parse_request(content, number))
        elif model is None:
            raise ValueError(f"line {number} is a question: --model must name a route")
        elif embeds:
            found.append(WarmQuestion(PATHS["input"], msgspec.json.encode({"model": model, "input": content})))
        else:
            body = {"model": model, "messages": [{"role": "user", "content": content}]}
            found.append(WarmQuestion(PATHS["messages"], msgspec.json.encode(body)))
    if not found:
        raise ValueError("no questions in this file")
    return found


def _parse_request(text: str, number: int) -> WarmQuestion:
    try:
        body = msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise ValueError(f"line {number} is not a JSON object: {error}") from None
    path = next((path for name, path in PATHS.items() if name in body), None)
    if path is None or "model" not in body:
        raise ValueError(f"line {number} needs a model, and messages, input or prompt")
    return WarmQuestion(path, msgspec.json.encode({**body, "stream": False} if path != PATHS["input"] else body))


async def _run_rounds(ask: Callable[[], Awaitable[WarmRound]], close: Callable[[], Awaitable[None]] | None,
                  every_s: float | None,
                  cron: Cron | None, clock: Clock) -> int:
    try:
        return await _repeat(ask, every_s, cron, clock)
    finally:
        if close is not None:
            await close()


async def _repeat(ask: Callable[[], Awaitable[WarmRound]], every_s: float | None, cron: Cron | None, clock: Clock) -> int:
    if cron is not None:
        await asyncio.sleep(_seconds_until(cron, clock))
    while True:
        began_at = clock.now()
        came = await ask()
        for message in came.messages:
            print_message(f"stayfast warm: {message}")
        sys.stdout.write(f"{came}\n")
        sys.stdout.flush()
        if came.warmed_nothing:
            print_message("stayfast warm: no answer is cacheable")
        if cron is not None:
            await asyncio.sleep(_seconds_until(cron, clock))
        elif every_s is not None:
            await asyncio.sleep(max(0.0, began_at + every_s - clock.now()))
        else:
            return EXIT_NOTHING_TO_DO if came.warmed_nothing else int(bool(came.n_failed or came.n_left_out))


def _seconds_until(cron: Cron, clock: Clock) -> float:
    now = datetime.fromtimestamp(clock.wall()).astimezone()
    return max(0.0, (cron.next_after(now) - now).total_seconds())


async def _run_paced(items: Sequence[T], call: Callable[[T], Coroutine[Any, Any, None]], pace: WarmPace, came: WarmRound, *,
                 n_tokens: int | None = None) -> None:
    """Call with each item at the rate of `pace`, until `n_tokens` are spent (None: unlimited)."""
    places = asyncio.Semaphore(pace.n_at_once)
    async with asyncio.TaskGroup() as group:
        for number, item in enumerate(items):
            if number:
                await asyncio.sleep(1 / pace.per_s)
            await places.acquire()
            if n_tokens is not None and came.n_tokens >= n_tokens:
                came.n_left_out = len(items) - number
                break
            group.create_task(call(item)).add_done_callback(lambda _: places.release())


async def ask_all(questions: Sequence[WarmQuestion], url: str, key_env: str | None, n_tokens: int | None,
                  pace: WarmPace) -> WarmRound:
    came = WarmRound()
    try:
        headers = {"content-type": "application/json", "x-stayfast-priority": "batch", **authorization_header(key_env)}
        client = _new_client(url)
    except ValueError as error:
        came.record_failure(f"cannot reach {url}: {error}")
        came.n_failed = len(questions)
        return came
    if pace.fresh_for_s is not None:
        headers["cache-control"] = f"max-age={pace.fresh_for_s:.0f}"
    ask = partial(_send, url=url, client=client, headers=list(headers.items()), came=came)
    try:
        await _run_paced(questions, ask, pace, came, n_tokens=n_tokens)
    finally:
        client.close()
    return came


def _new_client(url: str) -> HttpClient:
    try:
        config = HttpConfig(url, max_connections=0, http="1.1")
    except ValueError:
        raise ValueError(BAD_URL) from None
    return HttpClient("gateway", config, sink=Fanout(), clock=SystemClock())


async def _send(question: WarmQuestion, url: str, client: HttpClient, headers: list[tuple[str, str]],
               came: WarmRound) -> None:
    try:
        answer = await client.fetch("POST", client.base_path + question.path, headers, question.body, timeout_s=TIMEOUT_S,
                                    max_body_bytes=MAX_BODY_BYTES)
    except UpstreamFailed as error:
        came.record_failure(f"cannot reach {url}: {error}")
        return
    if answer.status != 200:
        came.record_failure(error_message(answer.status, answer.body))
        return
    _count_answer(answer, came)


def _count_answer(answer: WholeResponse, came: WarmRound) -> None:
    cache = answer.headers.get("x-cache", "")
    result = cache.split(";")[0]
    if result in THERE:
        came.n_there += 1
        return
    usage = msgspec.json.decode(answer.body).get("usage") or {}
    came.n_tokens += usage.get("total_tokens") or 0
    if result in ("miss", "stale"):
        came.n_made += 1
    else:
        came.n_kept_out += 1
        why = cache.partition("why=")[2]
        came.add_message("not cacheable: "
                         f"{WHY_NOT.get(why, f'{why} (docs/concepts/cache.md)')}")


class CallArguments(NamedTuple):
    """The arguments of one call."""

    in_order: tuple[Any, ...]
    by_name: dict[str, Any]


def find_cached(name: str) -> CachedFunction[..., Any]:
    """The `turns.CachedFunction` at MODULE:NAME. Raises ValueError if it is not one, or has no shared store."""
    found = import_turn_function(name).call
    cached = found if isinstance(found, CachedFunction) else None
    if cached is None:
        raise ValueError(f"{name} must be a stayfast.turns.CachedFunction")
    if not cached.is_shared:
        raise ValueError(f"{name} has no shared store: use "
                         "CachedFunction(..., store=open_shared_store(\"found.db\"), name=\"search\")")
    return cached


def read_arguments(text: str) -> list[CallArguments]:
    """The lines of a file. Raises ValueError, which names the line."""
    found = []
    for number, content in _lines(text):
        try:
            value = msgspec.json.decode(content) if content.startswith(("{", "[")) else content
        except msgspec.DecodeError as error:
            raise ValueError(f"line {number} is not JSON: {error}") from None
        if isinstance(value, dict):
            found.append(CallArguments((), value))
        else:
            found.append(CallArguments(tuple(value) if isinstance(value, list) else (value,), {}))
    if not found:
        raise ValueError("no arguments in this file")
    return found


async def call_all(cached: CachedFunction[..., Any], lines: Sequence[CallArguments], pace: WarmPace) -> WarmRound:
    came = WarmRound(has_tokens=False)
    await _run_paced(lines, lambda line: _call_one(cached, line, pace.fresh_for_s, came), pace, came)
    return came


async def _call_one(cached: CachedFunction[..., Any], line: CallArguments, fresh_for_s: float | None,
                    came: WarmRound) -> None:
    # an error must not cancel the other calls
    (is_made,) = await asyncio.gather(_refresh(cached, line, fresh_for_s), return_exceptions=True)
    if isinstance(is_made, BaseException):
        came.record_failure(f"{cached.__name__} failed: {type(is_made).__name__}")
    else:
        came.n_made += is_made
        came.n_there += not is_made


async def _refresh(cached: CachedFunction[..., Any], line: CallArguments, fresh_for_s: float | None) -> bool:
    """Refresh one entry if it is missing or too old; returns whether it was."""
    age_s = await cached.age_s(*line.in_order, **line.by_name)
    if age_s is not None and age_s <= (cached.ttl_s if fresh_for_s is None else fresh_for_s):
        return False
    await cached.refresh(*line.in_order, **line.by_name)
    return True
