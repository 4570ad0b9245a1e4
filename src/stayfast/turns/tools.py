"""What an agent may call: a function, what the model reads of it, and what may be done about it.

    @tool(timeout=0.8, idempotent=True, speculative=True, kept_s=300)
    async def weather(city: str, day: str = "today") -> str:
        \"\"\"The weather in a city.\"\"\"

The model reads the name, the docstring and the types of the parameters; arguments that do not fit them are told to it and
the function is not called. A plain function runs in a thread. A tool that fails is left alone by its breaker, and what is
kept of it (`kept_s`, for tools whose result depends on nothing but their arguments) takes its place.
"""

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, Generic, Never, ParamSpec, TypeVar

import msgspec

from stayfast.turns.budget import charge
from stayfast.turns.cached import CachedFunction
from stayfast.turns.events import to_json_value
from stayfast.turns.step import BreakerPolicy, Step, error_kind
from stayfast.turns.step_run import StepRun
from stayfast.turns.validation import argument_error, is_amount, is_seconds

P = ParamSpec("P")
T = TypeVar("T")
Json = dict[str, Any]
MAX_RESULT_CHARS = 20_000


class ToolError(Exception):
    """What a tool says to the model where it cannot do what was asked; of other exceptions only the kind is told."""


class ToolCallRequest(msgspec.Struct, frozen=True):
    """One call as a model wrote it. `arguments`: JSON, not checked yet."""

    id: str
    name: str
    arguments: str


class AgentTool(Generic[P, T]):
    """See `tool`; it can be called as the function. `of_json`: from parsed arguments to the call; its parse may raise."""

    def __init__(self, function: Callable[P, T], name: str, description: str, parameters: Json, *,
                 parse: Callable[[str], Json], timeout: float, idempotent: bool = False, speculative: bool = False,
                 cost: float = 0.0, cache_ttl_s: float = 0.0, breaker: BreakerPolicy | None = None) -> None:
        is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)
        if not is_seconds(timeout):
            raise argument_error(f"{name}: timeout={timeout!r:.80}: the most seconds that a call may take, more than 0, as "
                                 f"in "
                        "@tool(timeout=0.8)", timeout)
        for argument, amount, unit in (("cost", cost, "dollars a call"),
                                       ("kept_s", cache_ttl_s, "seconds that a result is kept")):
            if not is_amount(amount):
                raise argument_error(f"{name}: {argument}={amount!r:.80}: {unit}, 0 or more", amount)
        if breaker is not None and not isinstance(breaker, BreakerPolicy):
            raise TypeError(f"{name}: breaker={breaker!r:.80}: a tool has its own; for one that several share, "
                            "breaker=BreakerPolicy()")
        if (speculative or cache_ttl_s) and not idempotent:
            raise ValueError(f"{name}: only what may be called twice can be speculative or kept: say idempotent=True, if it "
                             "changes nothing")
        if cache_ttl_s and not is_async:
            raise ValueError(f"{name}: kept_s needs an async function; a plain one can be kept by a cache of its own")
        self.name = name
        self.description = description
        self.parameters = parameters
        self.timeout_s = timeout
        self.is_idempotent = idempotent
        self.is_speculative = speculative
        self.cost_usd = cost
        self.breaker = breaker or BreakerPolicy()
        self._function: Callable[..., Any] = function
        self._parse = parse
        self._run: Callable[[str], Any] = self._call_plain
        self._cached: CachedFunction[[str], Any] | None = None
        if is_async:
            self._run = self._call_async
        if cache_ttl_s:
            self._run = self._cached = CachedFunction(self._call_async, ttl_s=cache_ttl_s,
                                                      key=lambda arguments: f"{name} {arguments}")

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """The function itself."""
        result: T = self._function(*args, **kwargs)
        return result

    def build_step(self, arguments: str) -> Step:
        """A step that calls it. Raises ToolError where the arguments do not fit."""
        return Step(self._run, (self._normalize_arguments(arguments),), self.timeout_s, breaker=self.breaker, kind="tool")

    def as_function(self) -> Json:
        """What a model reads, in OpenAI's form."""
        return {"type": "function", "function": {"name": self.name, "description": self.description,
                                                 "parameters": self.parameters}}

    def describe_result(self, arguments: str, running: StepRun) -> Json:
        """What the model is told of a call that is over: its `status`, `elapsed_ms`, and `result` or `error`."""
        fields: Json = {"status": _STATUS.get(running.outcome, running.outcome), "elapsed_ms": round(running.spent_s * 1e3)}
        if running.outcome == "ok":
            try:
                return fields | _truncate_result(to_json_value(running.result()))
            except ValueError:
                return fields | {"status": "error", "error": "its result cannot be said in JSON"}
        stored = self._cached.peek(self._normalize_arguments(arguments)) if self._cached is not None else None
        if stored is not None:
            return fields | {"status": "stale", "why": fields["status"]} | _truncate_result(to_json_value(stored))
        if running.outcome == "failed" and running.error is not None:
            fields["error"] = str(running.error) if isinstance(running.error, ToolError) else error_kind(running.error)
        return fields

    def _normalize_arguments(self, arguments: str) -> str:
        """The arguments in the one form that they are known by."""
        try:
            return msgspec.json.encode(self._parse(arguments or "{}"), order="deterministic").decode()
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise ToolError(f"wrong arguments: {error}") from error

    def _call_plain(self, arguments: str) -> Any:
        charge(self.cost_usd)
        return self._function(**self._parse(arguments))

    async def _call_async(self, arguments: str) -> Any:
        charge(self.cost_usd)
        return await self._function(**self._parse(arguments))

    def __repr__(self) -> str:
        return f"<Tool {self.name}: {self.breaker!r}>"


def tool(*unnamed: Never, timeout: float, idempotent: bool = False, speculative: bool = False, cost: float = 0.0,
         cache_ttl_s: float = 0.0, breaker: BreakerPolicy | None = None) -> Callable[[Callable[P, T]], AgentTool[P, T]]:
    """Make a tool of a function. `timeout`: the most seconds a call may take; `cost`: dollars a call, for the report.

    `idempotent`: it may be called twice. `speculative`: it is begun as soon as its arguments are written, while the model
    may still go on. `kept_s`: for how long a result is given again, and, however old, where the tool fails; whoever asks,
    so the result must depend on the arguments alone. Raises TypeError and ValueError, saying what to write.
    """
    if unnamed:
        raise TypeError(f"tool({unnamed[0]!r:.80}): write @tool(timeout=0.8) above the function")

    def made(function: Callable[P, T]) -> AgentTool[P, T]:
        name = getattr(function, "__name__", type(function).__name__)
        description = inspect.getdoc(function)
        if not description:
            raise TypeError(f"{name} has no docstring: write one, it is what the model chooses the tool by")
        arguments = _struct_of(function, name)
        fields = arguments.__struct_fields__
        (schema,), others = msgspec.json.schema_components([arguments], ref_template="#/$defs/{name}")
        schema = others.pop(arguments.__name__, schema)
        schema.pop("title", None)
        decoder = msgspec.json.Decoder(arguments)

        def parse(text: str) -> Json:
            parsed = decoder.decode(text)
            return {field: getattr(parsed, field) for field in fields}

        return AgentTool(function, name, description, schema | ({"$defs": others} if others else {}), parse=parse,
                    timeout=timeout, idempotent=idempotent, speculative=speculative, cost=cost, cache_ttl_s=cache_ttl_s,
                    breaker=breaker)

    return made


_STATUS = {"skipped": "unavailable", "failed": "error"}


def _struct_of(function: Callable[..., Any] | Callable[..., Awaitable[Any]], name: str) -> type[msgspec.Struct]:
    """The parameters as a type."""
    fields: list[Any] = []
    for parameter in inspect.signature(function, eval_str=True).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise TypeError(f"{name}: a model gives arguments by name: {parameter.name} must be a parameter that has one")
        if parameter.annotation is parameter.empty:
            raise TypeError(f"{name}: say the type of {parameter.name}, as in {parameter.name}: str")
        default = () if parameter.default is parameter.empty else (parameter.default,)
        fields.append((parameter.name, parameter.annotation, *default))
    return msgspec.defstruct(name, fields, kw_only=True, forbid_unknown_fields=True)


def _truncate_result(result: Any) -> Json:
    """A result that is not too long for a prompt."""
    text = result if isinstance(result, str) else msgspec.json.encode(result).decode()
    if len(text) <= MAX_RESULT_CHARS:
        return {"result": result}
    return {"result": text[:MAX_RESULT_CHARS], "cut": f"the first {MAX_RESULT_CHARS} of {len(text)} characters"}
