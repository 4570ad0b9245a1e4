"""`stayfast warm FILE`: have tomorrow's questions answered tonight, so that caches know them.

    questions   each line of FILE is one for `--model`, or a request as JSON: {"model": ..., "messages": [...]}. A running
                gateway is asked
    documents   with `--embed` a line that is no JSON is a text for `--model` to embed: {"model": ..., "input": ...}
    rankings    with `--call MODULE:NAME` each line is what a `turns.Cached` of your own is called with: text, the one
                argument; or a JSON list of arguments, or a JSON object of named ones. What comes of it is kept in the store
                that this process shares with the application

They are asked as a batch would ask, slowly, at most so many at once, and until `--budget` tokens are spent. What is kept
already costs nothing; with `--fresh-for` what is older is asked again (without it a `turns.Cached` goes by its ttl_s).
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
from stayfast.cli.admin_client import BAD_URL, authorization, error_message
from stayfast.core.clock import Clock, SystemClock
from stayfast.core.errors import UpstreamFailed
from stayfast.core.events import Fanout
from stayfast.core.units import seconds_in
from stayfast.http.client.client import HttpClient, HttpConfig
from stayfast.http.client.response import WholeResponse
from stayfast.policy.cron import Cron, read_cron
from stayfast.turns.cached import CachedFunction
from stayfast.turns.function import import_turn_function

T = TypeVar("T")
N_TOLD = 3  # failures that are told in words
TIMEOUT_S = 600.0
MAX_BODY_BYTES = 16 * 1024 * 1024
PATHS = {"messages": "/v1/chat/completions", "input": "/v1/embeddings", "prompt": "/v1/completions"}
THERE = frozenset(("hit", "semantic", "coalesced"))
WHY_NOT = {  # in more words than `x-cache` has
    "": "its route has no cache: routes.NAME.cache",
    "temperature": "temperature: it is drawn anew each time. Say `temperature: 0` in its line, as JSON, or set the route's "
                   "cache.max_temperature: 1 where one good answer is as good as the next",
}


@dataclass(frozen=True, slots=True)
class WarmPace:
    """How quickly. `fresh_for_s`: None: whatever is kept will do."""

    per_s: float
    n_at_once: int
    fresh_for_s: float | None


@dataclass(slots=True)
class WarmRound:
    """What came of asking all of them once."""

    n_there: int = 0
    n_made: int = 0
    n_kept_out: int = 0  # answered, and not to be kept: `x-cache` says why
    n_failed: int = 0
    n_left_out: int = 0  # the budget was spent
    n_tokens: int = 0
    has_tokens: bool = True  # whether anybody counts them
    messages: list[str] = field(default_factory=list)

    def failed(self, why: str) -> None:
        """One more; of reasons the first N_TOLD are told."""
        self.n_failed += 1
        self.add_message(why)

    def add_message(self, what: str) -> None:
        if what not in self.messages and len(self.messages) < N_TOLD:
            self.messages.append(what)

    @property
    def is_for_nothing(self) -> bool:
        """Whether all were answered, and of no answer is anything kept."""
        return bool(self.n_kept_out) and not (self.n_there or self.n_made or self.n_failed or self.n_left_out)

    def __str__(self) -> str:
        left = f", {self.n_left_out} left out: the budget is spent" if self.n_left_out else ""
        out = f", {self.n_kept_out} that no cache may keep" if self.n_kept_out else ""
        cost = f" for {self.n_tokens} tokens" if self.has_tokens else ""
        return f"{self.n_there} were there, {self.n_made} made{cost}{out}, {self.n_failed} failed{left}"


@dataclass(frozen=True, slots=True)
class WarmQuestion:
    """One request, for one endpoint."""

    path: str
    body: bytes


def run(arguments: argparse.Namespace) -> int:
    """Ask; 0 when all were answered, 1 where one failed or was left out, 2 for wrong usage, 5 where no cache keeps any."""
    try:
        text = _text_of(arguments.file)
        every_s = seconds_in(arguments.every) if arguments.every else None
        cron = read_cron(arguments.cron) if arguments.cron else None
        fresh_for_s = seconds_in(arguments.fresh_for) if arguments.fresh_for else None
        if every_s == 0:
            raise ValueError("--every must be more than 0")
        if arguments.per_second <= 0 or arguments.at_once < 1:
            raise ValueError("--per-second and --at-once must be more than 0")
        pace = WarmPace(arguments.per_second, arguments.at_once, fresh_for_s)
        if arguments.call:
            if arguments.model or arguments.embed or arguments.budget is not None:
                raise ValueError("--call asks no gateway: --model, --embed and --budget are nothing to it")
            cached = find_cached(arguments.call)
            ask, close = partial(call_all, cached, read_arguments(text), pace), cached.aclose
        else:
            questions = read(text, arguments.model, embeds=arguments.embed)
            ask, close = partial(ask_all, questions, arguments.url, arguments.key_env, arguments.budget, pace), None
    except ValueError as error:
        print_message(f"stayfast warm: {error}")
        return 2
    try:
        return asyncio.run(_rounds(ask, close, every_s, cron, SystemClock()))
    except KeyboardInterrupt:
        return 0


def _text_of(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not in UTF-8 (byte {error.start})") from None
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Those that say something, with their numbers."""
    lines = ((number, line.strip()) for number, line in enumerate(text.splitlines(), 1))
    return ((number, content) for number, content in lines if content and not content.startswith("#"))


def read(text: str, model: str | None, *, embeds: bool = False) -> list[WarmQuestion]:
    """The lines of a file. Raises ValueError, which names the line."""
    found = []
    for number, content in _lines(text):
        if content.startswith("{"):
            found.append(_request(content, number))
        elif model is None:
            raise ValueError(f"line {number} is a question: say with --model which route to ask")
        elif embeds:
            found.append(WarmQuestion(PATHS["input"], msgspec.json.encode({"model": model, "input": content})))
        else:
            body = {"model": model, "messages": [{"role": "user", "content": content}]}
            found.append(WarmQuestion(PATHS["messages"], msgspec.json.encode(body)))
    if not found:
        raise ValueError("there is no question in this file")
    return found


def _request(text: str, number: int) -> WarmQuestion:
    try:
        body = msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise ValueError(f"line {number} is no JSON object: {error}") from None
    path = next((path for name, path in PATHS.items() if name in body), None)
    if path is None or "model" not in body:
        raise ValueError(f"line {number} needs a model, and messages, input or prompt")
    return WarmQuestion(path, msgspec.json.encode({**body, "stream": False} if path != PATHS["input"] else body))


async def _rounds(ask: Callable[[], Awaitable[WarmRound]], close: Callable[[], Awaitable[None]] | None,
                  every_s: float | None,
                  cron: Cron | None, clock: Clock) -> int:
    try:
        return await _again(ask, every_s, cron, clock)
    finally:
        if close is not None:
            await close()


async def _again(ask: Callable[[], Awaitable[WarmRound]], every_s: float | None, cron: Cron | None, clock: Clock) -> int:
    if cron is not None:
        await asyncio.sleep(_until(cron, clock))
    while True:
        began_at = clock.now()
        came = await ask()
        for message in came.messages:
            print_message(f"stayfast warm: {message}")
        sys.stdout.write(f"{came}\n")
        sys.stdout.flush()
        if came.is_for_nothing:
            print_message("stayfast warm: nothing is warm by this: no cache keeps any of these answers")
        if cron is not None:
            await asyncio.sleep(_until(cron, clock))
        elif every_s is not None:
            await asyncio.sleep(max(0.0, began_at + every_s - clock.now()))
        else:
            return EXIT_NOTHING_TO_DO if came.is_for_nothing else int(bool(came.n_failed or came.n_left_out))


def _until(cron: Cron, clock: Clock) -> float:
    now = datetime.fromtimestamp(clock.wall()).astimezone()
    return max(0.0, (cron.next_after(now) - now).total_seconds())


async def _paced(items: Sequence[T], call: Callable[[T], Coroutine[Any, Any, None]], pace: WarmPace, came: WarmRound, *,
                 n_tokens: int | None = None) -> None:
    """Call with each, as quickly as `pace` says, until `n_tokens` are spent. None: no bound."""
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
        headers = {"content-type": "application/json", "x-stayfast-priority": "batch", **authorization(key_env)}
        client = _client(url)
    except ValueError as error:
        came.failed(f"{url} cannot be asked: {error}")
        came.n_failed = len(questions)
        return came
    if pace.fresh_for_s is not None:
        headers["cache-control"] = f"max-age={pace.fresh_for_s:.0f}"
    ask = partial(_ask, url=url, client=client, headers=list(headers.items()), came=came)
    try:
        await _paced(questions, ask, pace, came, n_tokens=n_tokens)
    finally:
        client.close()
    return came


def _client(url: str) -> HttpClient:
    try:
        config = HttpConfig(url, max_connections=0, http="1.1")
    except ValueError:
        raise ValueError(BAD_URL) from None
    return HttpClient("gateway", config, sink=Fanout(), clock=SystemClock())


async def _ask(question: WarmQuestion, url: str, client: HttpClient, headers: list[tuple[str, str]],
               came: WarmRound) -> None:
    try:
        answer = await client.fetch("POST", client.base_path + question.path, headers, question.body, timeout_s=TIMEOUT_S,
                                    max_body_bytes=MAX_BODY_BYTES)
    except UpstreamFailed as error:
        came.failed(f"{url} cannot be asked: {error}")
        return
    if answer.status != 200:
        came.failed(error_message(answer.status, answer.body))
        return
    _answered(answer, came)


def _answered(answer: WholeResponse, came: WarmRound) -> None:
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
        came.add_message(f"no cache keeps this: "
                         f"{WHY_NOT.get(why, f'{why} (docs/concepts/cache.md, never answered from a cache)')}")


class Arguments(NamedTuple):
    """Of one call."""

    in_order: tuple[Any, ...]
    by_name: dict[str, Any]


def find_cached(name: str) -> CachedFunction[..., Any]:
    """The cache of this name. Raises ValueError for what is none, and for one that nobody shares."""
    found = import_turn_function(name).call
    cached = found if isinstance(found, CachedFunction) else None
    if cached is None:
        raise ValueError(f"{name} keeps nothing: it must be a stayfast.turns.CachedFunction")
    if not cached.is_shared:
        raise ValueError(f"{name} keeps what it finds in its own process only: give it a store, as in "
                         "CachedFunction(..., store=open_shared_store(\"found.db\"), name=\"search\")")
    return cached


def read_arguments(text: str) -> list[Arguments]:
    """The lines of a file. Raises ValueError, which names the line."""
    found = []
    for number, content in _lines(text):
        try:
            value = msgspec.json.decode(content) if content.startswith(("{", "[")) else content
        except msgspec.DecodeError as error:
            raise ValueError(f"line {number} is no JSON: {error}") from None
        if isinstance(value, dict):
            found.append(Arguments((), value))
        else:
            found.append(Arguments(tuple(value) if isinstance(value, list) else (value,), {}))
    if not found:
        raise ValueError("there is nothing to call with in this file")
    return found


async def call_all(cached: CachedFunction[..., Any], lines: Sequence[Arguments], pace: WarmPace) -> WarmRound:
    came = WarmRound(has_tokens=False)
    await _paced(lines, lambda line: _call_one(cached, line, pace.fresh_for_s, came), pace, came)
    return came


async def _call_one(cached: CachedFunction[..., Any], line: Arguments, fresh_for_s: float | None, came: WarmRound) -> None:
    (is_made,) = await asyncio.gather(_renewed(cached, line, fresh_for_s), return_exceptions=True)  # the others go on
    if isinstance(is_made, BaseException):
        came.failed(f"{cached.__name__} failed: {type(is_made).__name__}")
    else:
        came.n_made += is_made
        came.n_there += not is_made


async def _renewed(cached: CachedFunction[..., Any], line: Arguments, fresh_for_s: float | None) -> bool:
    """Whether it had to be."""
    age_s = await cached.age_s(*line.in_order, **line.by_name)
    if age_s is not None and age_s <= (cached.ttl_s if fresh_for_s is None else fresh_for_s):
        return False
    await cached.refresh(*line.in_order, **line.by_name)
    return True
