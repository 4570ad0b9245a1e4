"""What a hook is, and what it sees. See docs/extensions.md.

    def redact(request: HookRequest) -> dict | None: ...                 # a function: before the call only
    class Redact:                                                        # an object: either, or both
        def before(self, request: HookRequest) -> dict | None: ...
        async def after(self, request: HookRequest, answer: HookAnswer) -> dict | None: ...
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

_SHAPES = "write `def {name}(request)`, plain or async, or an object with `before(request)`, `after(request, answer)`, both"


class HookRefused(Exception):
    """Raise it in `before` to reject a request: the client gets `status` (400 to 499) with this message, in its dialect."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        if not 400 <= status <= 499:
            raise ValueError(f"status must be from 400 to 499, not {status}")
        self.status = status


@dataclass(slots=True)
class HookRequest:
    """One request. `body`: its parsed JSON, which may be changed in place, except `model` and `stream`. `api`: chat,
    completions, embeddings, responses, messages or count_tokens. `tenant`: of the API key, None without keys. `route`: its
    name in the settings. `remaining_s`: to the deadline. `state`: for `after` of the same request; empty at first.
    """

    body: dict[str, Any] = field(repr=False)
    api: str
    route: str
    tenant: str | None
    request_id: str
    remaining_s: float
    state: dict[str, Any] = field(default_factory=dict, repr=False)


@dataclass(slots=True)
class HookAnswer:
    """One whole answer. `body`: its parsed JSON, in the client's dialect, which may be changed in place."""

    body: dict[str, Any] = field(repr=False)


@dataclass(frozen=True, slots=True)
class LoadedHook:
    """A hook that was checked. `name`: as in the settings. None: it has no such part."""

    name: str
    before: Callable[..., Any] | None
    after: Callable[..., Any] | None


def check_hook(name: str, value: Any) -> LoadedHook:
    """Check an imported object. Raises ValueError with the correction to make."""
    shapes = _SHAPES.format(name=name.rpartition(":")[2])
    if inspect.isclass(value):
        raise ValueError(f"{name} is a class: name an object of it")
    before, after = getattr(value, "before", None), getattr(value, "after", None)
    if before is None and after is None:
        before = value
    for part, call, n in (("before", before, 1), ("after", after, 2)):
        if call is None:
            continue
        if not callable(call) or inspect.isasyncgenfunction(call):
            raise ValueError(f"{name} has no {part} that can be called: {shapes}")
        try:
            inspect.signature(call).bind(*range(n))
        except TypeError:
            raise ValueError(f"{part} of {name} takes {inspect.signature(call)}: {shapes}") from None
    return LoadedHook(name, before, after)
