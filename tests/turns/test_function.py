"""The function that a setting names: found, or an error with the correct form."""

import asyncio
import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from textwrap import dedent
from typing import Any

import pytest

from stayfast.compose.system import Observers, System, build
from stayfast.core.clock import SystemClock
from stayfast.core.types import EventsOptions
from stayfast.lab.simulated.settings import KINDS
from stayfast.pipeline.exchange import Arrival
from stayfast.settings import Settings, SettingsError, SettingsText, load_settings
from stayfast.turns.function import import_turn_function
from stayfast.turns.served import ServedTurn
from tests.flow.rig import chat, read, text_of

GOOD = "async def answer(asked):\n    return 'one'\n"
SETTINGS = "upstreams: {{desk: {{kind: turn, turn: '{turn}'{more}}}}}\nroutes: {{desk: [desk]}}\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder; the modules found in it are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]
    importlib.invalidate_caches()


def write(folder: Path, text: str, name: str = "desk_of_test.py") -> None:
    """A module, a second younger than before."""
    path = folder / name
    at = path.stat().st_mtime + 1 if path.exists() else 1_700_000_000
    path.write_text(dedent(text))
    os.utime(path, (at, at))
    importlib.invalidate_caches()


@pytest.mark.parametrize(("text", "writes", "yields"), [
    ("async def answer(asked): return ''", False, False),
    ("async def answer(asked, a): a.write('')", True, False),
    ("async def answer(asked, *, verbose=False): yield ''", False, True),
    ("async def answer(asked, a): yield ''", True, True),
    ("from functools import partial\nasync def f(n, asked, a): pass\nanswer = partial(f, 7)", True, False),
    ("class Desk:\n    async def __call__(self, asked, a): pass\nanswer = Desk()", True, False),
    ("class Desk:\n    async def answer(self, asked): return ''\ndesk = Desk()\nanswer = desk.answer", False, False),
])
def test_turn_function_shapes_are_accepted(folder: Path, text: str, writes: bool, yields: bool) -> None:
    write(folder, text)
    found = import_turn_function("desk_of_test:answer")
    assert (found.name, found.writes, found.yields) == ("desk_of_test:answer", writes, yields)


@pytest.mark.parametrize(("named", "text", "words"), [
    ("desk_of_test", GOOD, "write it as package.module:function"),
    ("desk-of-test:answer", GOOD, "write it as package.module:function"),
    ("no_such_desk:answer", GOOD, "there is no module no_such_desk in"),
    ("no.such.desk:answer", GOOD, "there is no module no.such.desk"),
    ("desk_of_test:anwser", GOOD, "module desk_of_test has no anwser; did you mean answer?"),
    ("desk_of_test:nothing", GOOD, "module desk_of_test has no nothing"),
    ("desk_of_test:answer", "answer = 7", "is a int, not a function: write `async def answer(request: TurnRequest) -> str`"),
    ("desk_of_test:answer", "class answer: pass", "is a class: name an async function"),
    ("desk_of_test:answer", "def answer(asked): return ''", "is a plain function, which cannot be cancelled"),
    ("desk_of_test:answer", "def answer(asked): yield ''", "is a plain function, which cannot be cancelled"),
    ("desk_of_test:answer", "async def answer(): return ''", "takes (): write `async def answer(request: TurnRequest)"),
    ("desk_of_test:answer", "async def answer(a, b, c): return ''", "takes (a, b, c): write"),
    ("desk_of_test:answer", "async def answer(asked, *, key): return ''", "takes (asked, *, key): write"),
    ("desk_of_test:answer", "import no_such_library", "it imports no_such_library, which was not found"),
    ("desk_of_test:answer", "1 / 0", "cannot be imported: ZeroDivisionError: division by zero"),
    ("desk_of_test:answer", "async def answer(:", "cannot be imported: SyntaxError"),
    ("desk_of_test:answer", "import sys\nsys.exit(4)", "cannot be imported: SystemExit: 4"),
    ("desk_of_test:answer", "raise KeyboardInterrupt", "cannot be imported: KeyboardInterrupt"),
])
def test_turn_function_wrong_shape_raises_with_the_correction(folder: Path, named: str, text: str, words: str) -> None:
    write(folder, text)
    with pytest.raises(ValueError, match="desk") as refused:
        import_turn_function(named)
    assert words in str(refused.value)


def test_turn_function_changed_module_is_loaded_again(folder: Path) -> None:
    """Holders of the old function keep it; an unchanged module stays."""
    write(folder, GOOD + "kept = []\n")
    first = import_turn_function("desk_of_test:answer")
    assert import_turn_function("desk_of_test:answer").call is first.call
    write(folder, GOOD.replace("one", "two") + "kept = []\n")
    second = import_turn_function("desk_of_test:answer")
    assert second.call is not first.call
    assert first.call.__globals__["kept"] is not second.call.__globals__["kept"]
    assert import_turn_function("desk_of_test:answer").call is second.call


def test_turn_function_broken_change_keeps_the_old_module(folder: Path) -> None:
    write(folder, GOOD)
    first = import_turn_function("desk_of_test:answer")
    write(folder, "async def answer(asked:")
    with pytest.raises(ValueError, match="SyntaxError"):
        import_turn_function("desk_of_test:answer")
    assert sys.modules["desk_of_test"].answer is first.call


def settings(turn: str = "desk_of_test:answer", more: str = "") -> Settings:
    """A gateway that serves one turn."""
    return load_settings(SettingsText("stayfast.yaml", SETTINGS.format(turn=turn, more=more)), {}, kinds=KINDS)


@pytest.mark.parametrize(("turn", "words"), [
    ("desk_of_test:no", "upstreams.desk.turn: module desk_of_test has no no"),
    ("desk_of_test", "upstreams.desk.turn"),
])
def test_turn_settings_errors_name_the_field(folder: Path, turn: str, words: str) -> None:
    write(folder, GOOD)
    with pytest.raises(SettingsError) as refused:
        settings(turn)
    assert words in str(refused.value)


def test_turn_upstream_is_not_retried_hedged_or_probed_by_default(folder: Path) -> None:
    write(folder, GOOD)
    system = built(settings())
    route, member = system.gateway.router.routes["desk"], system.registry["desk"]
    assert (route.hedging.is_on, member.is_not_idempotent, system.unready()) == (False, True, None)
    system = built(settings(more=", idempotent: true"))
    route, member = system.gateway.router.routes["desk"], system.registry["desk"]
    assert (route.hedging.is_on, member.is_not_idempotent) == (True, False)


def test_reload_replaces_the_function_and_keeps_learned_state(folder: Path) -> None:
    write(folder, GOOD)
    observers = Observers(settings(), SystemClock())
    old = built(settings(), observers)
    write(folder, GOOD.replace("one", "three"))
    new = built(settings(), observers, old)
    assert new.registry["desk"] is old.registry["desk"]
    assert upstream(new).function.call.__code__.co_consts[-1] == "three"
    newer = built(settings(more=", resume_s: 3"), observers, new)
    assert upstream(newer) is not upstream(new)
    assert upstream(newer).resumable is upstream(new).resumable


COUNTING = """
n_runs = 0
async def answer(asked):
    global n_runs
    n_runs += 1
    return f"answer {n_runs}"
"""


def test_turn_answers_can_be_cached_by_the_route(folder: Path) -> None:
    """Not for clients of typed events."""
    write(folder, COUNTING)
    text = SETTINGS.format(turn="desk_of_test:answer", more="")
    text = text.replace("[desk]", "{upstreams: [desk], cache: {mode: exact}}")
    system = built(load_settings(SettingsText("stayfast.yaml", text), {}, kinds=KINDS))

    async def ask(events: EventsOptions | None = None) -> tuple[str, str | None]:
        clock = system.gateway.timers.clock
        reply = await system.gateway.serve(chat(model="desk", temperature=0), Arrival("r", clock.now(), events=events))
        body = await read(reply)
        return text_of(body) if events is None else body.decode(), (reply.cache or "").partition(";")[0]

    async def main() -> None:
        assert await ask() == ("answer 1", "miss")
        async with asyncio.timeout(20):
            while (second := await ask()) == ("answer 1", "coalesced"):  # until the first one is put away
                await asyncio.sleep(0)
        assert second == ("answer 1", "hit")
        typed, cached = await ask(EventsOptions())
        assert (cached, "answer 2" in typed) == ("bypass", True)

    asyncio.run(main())


def built(its: Settings, observers: Observers | None = None, old: System | None = None) -> System:
    """The system of these settings."""
    return build(its, observers or Observers(its, SystemClock()), {}, SystemClock(), Random(1), old=old)


def upstream(system: System) -> ServedTurn:
    """The served function."""
    found: Any = system.registry["desk"].upstream
    assert isinstance(found, ServedTurn)
    return found
