"""`stayfast warm FILE --call MODULE:NAME`: call a `turns.Cached` with each line, so that its store knows what comes of it.

What a turn looks up (passages found, ranked) is kept where the application keeps it: in a store that this process shares
with it. A line is text, the one argument; or a JSON list of arguments, or a JSON object of named ones. What is kept and no
older than `--fresh-for` (without it: no older than its ttl_s) is left as it is.
"""

import asyncio
from typing import Any, NamedTuple

import msgspec

from stayfast.cli.warm import Pace, Round
from stayfast.turns.cached import Cached
from stayfast.turns.function import find


class Arguments(NamedTuple):
    """Of one call."""

    in_order: tuple[Any, ...]
    by_name: dict[str, Any]


def named(name: str) -> Cached[..., Any]:
    """The cache of this name. Raises ValueError for what is none, and for one that nobody shares."""
    found = find(name).of
    cached = found if isinstance(found, Cached) else None
    if cached is None:
        raise ValueError(f"{name} keeps nothing: it must be a stayfast.turns.Cached")
    if not cached.is_shared:
        raise ValueError(f"{name} keeps what it finds in its own process only: give it a store, as in "
                         "Cached(..., store=store_at(\"found.db\"), name=\"search\")")
    return cached


def read(text: str) -> list[Arguments]:
    """The lines of a file. Raises ValueError, which names the line."""
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        said = line.strip()
        if not said or said.startswith("#"):
            continue
        try:
            value = msgspec.json.decode(said) if said.startswith(("{", "[")) else said
        except msgspec.DecodeError as error:
            raise ValueError(f"line {number} is no JSON: {error}") from None
        if isinstance(value, dict):
            found.append(Arguments((), value))
        else:
            found.append(Arguments(tuple(value) if isinstance(value, list) else (value,), {}))
    if not found:
        raise ValueError("there is nothing to call with in this file")
    return found


async def call_all(cached: Cached[..., Any], lines: list[Arguments], pace: Pace) -> Round:
    """All of them, once."""
    came, places = Round(has_tokens=False), asyncio.Semaphore(pace.n_at_once)
    async with asyncio.TaskGroup() as group:
        for number, line in enumerate(lines):
            if number:
                await asyncio.sleep(1 / pace.per_s)
            await places.acquire()
            task = group.create_task(_call_one(cached, line, pace.fresh_for_s, came))
            task.add_done_callback(lambda _: places.release())
    return came


async def _call_one(cached: Cached[..., Any], line: Arguments, fresh_for_s: float | None, came: Round) -> None:
    (is_made,) = await asyncio.gather(_renewed(cached, line, fresh_for_s), return_exceptions=True)  # the others go on
    if isinstance(is_made, BaseException):
        came.failed(f"{cached.__name__} failed: {type(is_made).__name__}")
    else:
        came.n_made += is_made
        came.n_there += not is_made


async def _renewed(cached: Cached[..., Any], line: Arguments, fresh_for_s: float | None) -> bool:
    """Whether it had to be."""
    age_s = await cached.age_s(*line.in_order, **line.by_name)
    if age_s is not None and age_s <= (cached.ttl_s if fresh_for_s is None else fresh_for_s):
        return False
    await cached.renew(*line.in_order, **line.by_name)
    return True
