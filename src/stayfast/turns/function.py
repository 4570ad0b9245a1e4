"""The function of a served turn: how it is imported from a setting, which shapes it may have, and its argument.

    async def answer(request: TurnRequest, a: Answer) -> None:          # in the settings: "package.module:answer"

Errors in the function are reported before its first request. A module whose file has changed is loaded again, next to the
old one: running turns keep the old code, and caches and breakers in unchanged modules keep their state.
When wrong: only the named module is loaded again, not the modules it imports.
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

_STAMP = "__stayfast_file__"  # attribute of a loaded module: the stamp of its file
_SHAPES = ("write `async def {name}(request: TurnRequest) -> str`, the same as an async generator of text, or "
           "`async def {name}(request: TurnRequest, a: Answer) -> None`, which writes into the answer")


@dataclass(frozen=True, slots=True)
class TurnFunction:
    """`call` takes the request, and also the answer if it `writes` that itself. `name`: as in the setting."""

    name: str
    call: Callable[..., Any]
    writes: bool
    yields: bool


@dataclass(frozen=True, slots=True)
class TurnRequest:
    """One request. `model`: the name under which the turn was requested. `stream`: whether the client streams. `tenant`: of
    the API key, None without keys. `headers`: client headers that may be forwarded, lower-case, and the trace context.
    `conversation`: all messages, tools and parameters. `late`: the budget for steps that continue after the final event, as
    in `b.gather(..., late=request.late)`; it ends with the request's deadline.
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
        """The text of the last user message; empty if it has none."""
        return next((message.text for message in reversed(self.conversation.messages) if message.role == "user"), "")

    @property
    def messages(self) -> tuple[Message, ...]:
        """All messages in order, without the system prompt."""
        return self.conversation.messages

    @property
    def system(self) -> str:
        """The system prompt."""
        return "\n\n".join(self.conversation.system)

    @property
    def max_tokens(self) -> int | None:
        """The client's limit of output tokens, if it has one."""
        return self.conversation.max_output_tokens

    def chat_messages(self) -> list[dict[str, Any]]:
        """All messages in the form of OpenAI's chat API. Raises Rejected for content without such a form."""
        messages: list[dict[str, Any]] = chat.encode_body(self.conversation, self.model, stream=False)["messages"]
        return messages


class TurnRefused(Exception):
    """Raise it in a served turn to reject the request: the client gets status 400 with this message."""


def import_turn_function(path: str) -> TurnFunction:
    """Import "package.module:function". Raises ValueError with the correction to make."""
    return check_turn_function(path, import_value(path))


def import_value(path: str) -> Any:
    """What "package.module:name" names. Raises ValueError with the correction to make."""
    module_name, _, name = path.partition(":")
    if not all(part.isidentifier() for part in (*module_name.split("."), *name.split("."))):
        raise ValueError(f"{path!r} does not name a function: write it as package.module:function")
    value: Any = _import_module(module_name)
    for part in name.split("."):
        if not hasattr(value, part):
            close = get_close_matches(part, [known for known in vars(value) if callable(getattr(value, known))], 1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise ValueError(f"module {module_name} has no {name}{hint}")
        value = getattr(value, part)
    return value


def file_state(path: str) -> str:
    """The state of the file of an imported function; it differs if `import_turn_function` would load the file again."""
    return str(_file_stamp(sys.modules[path.partition(":")[0]]))


def check_turn_function(path: str, value: Any) -> TurnFunction:
    """Check a function object; `path` is its name in errors. Raises ValueError with the correction to make."""
    name = path.rpartition(":")[2]
    shapes = _SHAPES.format(name=name.rpartition(".")[2])
    is_callable = callable(value)
    if not is_callable:
        raise ValueError(f"{path} is a {type(value).__name__}, not a function: {shapes}")
    if inspect.isclass(value):
        raise ValueError(f"{path} is a class: name an async function, or an object with an async __call__")
    call = type(value).__call__
    yields = inspect.isasyncgenfunction(value) or inspect.isasyncgenfunction(call)
    if not yields and not inspect.iscoroutinefunction(value) and not inspect.iscoroutinefunction(call):
        raise ValueError(f"{path} is a plain function, which cannot be cancelled: {shapes}; run blocking code in a step, "
                         "await current_budget().run(look_up, request.text)")
    signature = inspect.signature(value)
    for n, writes in ((1, False), (2, True)):
        try:
            signature.bind(*range(n))
        except TypeError:
            continue
        return TurnFunction(path, value, writes, yields)
    raise ValueError(f"{path} takes {signature}: {shapes}")


def _import_module(name: str) -> ModuleType:
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.append(folder)
    module = sys.modules.get(name)
    try:
        if module is None:
            module = import_module(name)
        elif vars(module).get(_STAMP, _file_stamp(module)) != _file_stamp(module):
            module = _reload_module(name, module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise ValueError(f"module {name} cannot be imported: it imports {error.name}, which was not found") from error
        raise ValueError(f"there is no module {name} in {folder} or on PYTHONPATH") from error
    except BaseException as error:  # a script that calls sys.exit() must not end this process
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
    """Load the module from its changed file; if that fails, the old one stays."""
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
