"""The function that serves a turn: how a setting names it, what it may look like, and what it is given.

    async def answer(request: TurnRequest, a: Answer) -> None:          # named "package.module:answer"

What is wrong with a function is told before the first request for it. A module whose file has changed is loaded anew, beside
the old one: turns that run end with the code that they began with, and caches and breakers beside a function that did not
change keep what they know. When wrong: only that module is loaded anew, not what it imports.
"""

import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from stayfast.core.conversation import Conversation, Message
from stayfast.turns.budget import Budget
from stayfast.wire.chat import request as chat

_STAMP = "__stayfast_file__"  # of the module: what its file was when it was loaded
_SHAPES = ("write `async def {name}(request: TurnRequest) -> str`, the same that yields pieces of text, or "
           "`async def {name}(request: TurnRequest, a: Answer) -> None` that writes into the answer")


@dataclass(frozen=True, slots=True)
class TurnFunction:
    """One that can be served. `of` is called with what is asked, and with the answer where it `writes` that itself."""

    name: str  # as in the setting
    call: Callable[..., Any]
    writes: bool
    yields: bool


@dataclass(frozen=True, slots=True)
class TurnRequest:
    """One request. `model`: the name that this turn is asked for. `stream`: whether its client reads along. `tenant`: whose
    key it is, None without keys. `headers`: those of the client that may go on to others, lower-case, and the trace context.
    `conversation`: all that was said, tools and sampling included. `late`: the budget that stragglers may go on under, once
    the answer is final, as in `b.gather(..., late=asked.late)`; it ends with the request's deadline.
    """

    model: str
    conversation: Conversation
    late: Budget
    stream: bool
    request_id: str
    tenant: str | None
    headers: Mapping[str, str]

    @property
    def text(self) -> str:
        """What the user said last; empty where that was no text."""
        return next((message.text for message in reversed(self.conversation.messages) if message.role == "user"), "")

    @property
    def messages(self) -> tuple[Message, ...]:
        """What was said before, and last, in its order; without the instructions."""
        return self.conversation.messages

    @property
    def system(self) -> str:
        """The instructions that stand in front."""
        return "\n\n".join(self.conversation.system)

    @property
    def max_tokens(self) -> int | None:
        """How long the answer may be, where the client says so."""
        return self.conversation.max_output_tokens

    def chat_messages(self) -> list[dict[str, Any]]:
        """All of it as OpenAI's chat API says it, to be sent on. Raises Rejected for what that cannot say."""
        messages: list[dict[str, Any]] = chat.body(self.conversation, self.model, stream=False)["messages"]
        return messages


class TurnRefused(Exception):
    """For turns that are served to raise: what the client asks for cannot be answered. It is told so, in these words."""


def import_turn_function(named: str) -> TurnFunction:
    """The function of that name. Raises ValueError, which says what to write instead."""
    module_name, _, name = named.partition(":")
    if not all(part.isidentifier() for part in (*module_name.split("."), *name.split("."))):
        raise ValueError(f"{named!r} names no function: write it as package.module:function")
    found: Any = _import_module(module_name)
    for part in name.split("."):
        if not hasattr(found, part):
            meant = get_close_matches(part, [known for known in vars(found) if callable(getattr(found, known))], 1)
            hint = f"; did you mean {meant[0]}?" if meant else ""
            raise ValueError(f"module {module_name} has no {name}{hint}")
        found = getattr(found, part)
    return check_turn_function(named, found)


def file_state(named: str) -> str:
    """What the file of a function that was found is like: another text where `find` would load it anew."""
    return str(_file_stamp(sys.modules[named.partition(":")[0]]))


def check_turn_function(named: str, found: Any) -> TurnFunction:
    """The same of one that is at hand; `named`: how it is called in errors, as in a setting."""
    name = named.rpartition(":")[2]
    shapes = _SHAPES.format(name=name.rpartition(".")[2])
    is_callable = callable(found)
    if not is_callable:
        raise ValueError(f"{named} is a {type(found).__name__}, no function: {shapes}")
    if inspect.isclass(found):
        raise ValueError(f"{named} is a class: name an async function, or an object that is called like one")
    call = type(found).__call__
    yields = inspect.isasyncgenfunction(found) or inspect.isasyncgenfunction(call)
    if not yields and not inspect.iscoroutinefunction(found) and not inspect.iscoroutinefunction(call):
        raise ValueError(f"{named} is a plain function, which nobody can end: {shapes}; what blocks goes into a step, "
                         "await current_budget().run(look_up, asked.text)")
    signature = inspect.signature(found)
    for n, writes in ((1, False), (2, True)):
        try:
            signature.bind(*range(n))
        except TypeError:
            continue
        return TurnFunction(named, found, writes, yields)
    raise ValueError(f"{named} takes {signature}: {shapes}")


def _import_module(name: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    module = sys.modules.get(name)
    try:
        if module is None:
            module = import_module(name)
        elif vars(module).get(_STAMP, _file_stamp(module)) != _file_stamp(module):
            module = _reload_module(name, module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise ValueError(f"module {name} cannot be imported: it imports {error.name}, which is not there") from error
        raise ValueError(f"there is no module {name}, neither in {here} nor on PYTHONPATH") from error
    except BaseException as error:  # a script that ends in sys.exit() is no reason for this process to end
        raise ValueError(f"module {name} cannot be imported: {type(error).__name__}: {error}") from error
    vars(module).setdefault(_STAMP, _file_stamp(module))
    return module


def _file_stamp(module: ModuleType) -> tuple[int, int] | None:
    file = getattr(module, "__file__", None)
    path = Path(file) if file is not None else None
    if path is None or not path.is_file():
        return None
    stat = path.stat()
    return stat.st_mtime_ns, stat.st_size


def _reload_module(name: str, old: ModuleType) -> ModuleType:
    """The module as its file says now; where that fails, the old one stays."""
    spec = old.__spec__
    if spec is None or spec.loader is None:
        return old
    module = module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules[name] = old
        raise
    return module
