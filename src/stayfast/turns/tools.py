"""The tools of an agent: a function, its description for the model, and its policies.

    @tool(timeout=0.8, idempotent=True, speculative=True, cache_ttl_s=300)
    async def weather(city: str, day: str = "today") -> str:
        \"\"\"The weather in a city.\"\"\"

The model sees the name, the docstring and the types of the parameters. If the arguments do not fit them, the model gets the
error and the function is not called. A plain function runs in a thread. Each tool has a breaker. If a call of a cached tool
(`cache_ttl_s`) fails, its last result is used; use it only if the result depends on nothing but the arguments.
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
_STATUS = {"skipped": "unavailable", "failed": "error"}


class ToolError(Exception):
    """An error message for the model. Of any other exception, the model sees only the class."""


class ToolCallRequest(msgspec.Struct, frozen=True):
    """A call as the model wrote it. `arguments`: JSON, not validated."""

    id: str
    name: str
    arguments: str


class AgentTool(Generic[P, T]):
    """A function that an agent may call; create it with `tool`. Calling it calls the function. `parse`: from the JSON of
    the arguments to keyword arguments; it may raise ValueError.
    """

    def __init__(self, function: Callable[P, T], name: str, description: str, parameters: Json, *,
                 parse: Callable[[str], Json], timeout: float, idempotent: bool = False, speculative: bool = False,
                 cost: float = 0.0, cache_ttl_s: float = 0.0, breaker: BreakerPolicy | None = None) -> None:
        is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)
        if not is_seconds(timeout):
            raise argument_error(f"{name}: timeout={timeout!r:.80}: the maximum seconds of a call, above 0, as in "
                                 "@tool(timeout=0.8)", timeout)
        for argument, amount, unit in (("cost", cost, "dollars per call"),
                                       ("cache_ttl_s", cache_ttl_s, "seconds to cache a result")):
            if not is_amount(amount):
                raise argument_error(f"{name}: {argument}={amount!r:.80}: {unit}, 0 or more", amount)
        if breaker is not None and not isinstance(breaker, BreakerPolicy):
            raise TypeError(f"{name}: breaker={breaker!r:.80}: a tool has its own by default; to share one, pass "
                            "breaker=BreakerPolicy()")
        if (speculative or cache_ttl_s) and not idempotent:
            raise ValueError(f"{name}: only a tool that may be called twice can be speculative or cached: set "
                             "idempotent=True if it changes nothing")
        if cache_ttl_s and not is_async:
            raise ValueError(f"{name}: cache_ttl_s needs an async function")
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
        self._run: Callable[[str], Any] = self._call_async if is_async else self._call_plain
        self._cached: CachedFunction[[str], Any] | None = None
        if cache_ttl_s:
            self._run = self._cached = CachedFunction(self._call_async, ttl_s=cache_ttl_s,
                                                      key=lambda arguments: f"{name} {arguments}")

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        result: T = self._function(*args, **kwargs)
        return result

    def build_step(self, arguments: str) -> Step:
        """A step that calls the tool. Raises ToolError if the arguments do not fit."""
        return Step(self._run, (self._normalize_arguments(arguments),), self.timeout_s, breaker=self.breaker, kind="tool")

    def as_function(self) -> Json:
        """The description for the model, in OpenAI's form."""
        return {"type": "function", "function": {"name": self.name, "description": self.description,
                                                 "parameters": self.parameters}}

    def describe_result(self, arguments: str, run: StepRun) -> Json:
        """The result of a finished call for the model: `status`, `elapsed_ms`, and `result` or `error`."""
        fields: Json = {"status": _STATUS.get(run.outcome, run.outcome), "elapsed_ms": round(run.spent_s * 1e3)}
        if run.outcome == "ok":
            try:
                return fields | _truncate_result(to_json_value(run.result()))
            except ValueError:
                return fields | {"status": "error", "error": "its result cannot be encoded as JSON"}
        stored = self._cached.peek(self._normalize_arguments(arguments)) if self._cached is not None else None
        if stored is not None:
            return fields | {"status": "stale", "why": fields["status"]} | _truncate_result(to_json_value(stored))
        if run.outcome == "failed" and run.error is not None:
            fields["error"] = str(run.error) if isinstance(run.error, ToolError) else error_kind(run.error)
        return fields

    def _normalize_arguments(self, arguments: str) -> str:
        """The arguments as canonical JSON: equal arguments have equal text."""
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
        return f"<AgentTool {self.name}: {self.breaker!r}>"


def tool(*unnamed: Never, timeout: float, idempotent: bool = False, speculative: bool = False, cost: float = 0.0,
         cache_ttl_s: float = 0.0, breaker: BreakerPolicy | None = None) -> Callable[[Callable[P, T]], AgentTool[P, T]]:
    """Turn a function into a tool. `timeout`: maximum seconds of a call. `cost`: dollars per call, for the report.

    `idempotent`: it may be called twice. `speculative`: a call starts as soon as its arguments are complete, while the model
    is still writing. `cache_ttl_s`: a result is reused that long, and at any age if a call fails. Raises TypeError and
    ValueError for wrong use.
    """
    if unnamed:
        raise TypeError(f"tool({unnamed[0]!r:.80}): write @tool(timeout=0.8) above the function")

    def decorate(function: Callable[P, T]) -> AgentTool[P, T]:
        name = getattr(function, "__name__", type(function).__name__)
        description = inspect.getdoc(function)
        if not description:
            raise TypeError(f"{name} has no docstring: write one, the model chooses the tool by it")
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
                         timeout=timeout, idempotent=idempotent, speculative=speculative, cost=cost,
                         cache_ttl_s=cache_ttl_s, breaker=breaker)

    return decorate


def _struct_of(function: Callable[..., Any] | Callable[..., Awaitable[Any]], name: str) -> type[msgspec.Struct]:
    """A struct type with the parameters of the function as fields."""
    fields: list[Any] = []
    for parameter in inspect.signature(function, eval_str=True).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise TypeError(f"{name}: a model passes arguments by name: {parameter.name} must be a keyword parameter")
        if parameter.annotation is parameter.empty:
            raise TypeError(f"{name}: annotate the type of {parameter.name}, as in {parameter.name}: str")
        default = () if parameter.default is parameter.empty else (parameter.default,)
        fields.append((parameter.name, parameter.annotation, *default))
    return msgspec.defstruct(name, fields, kw_only=True, forbid_unknown_fields=True)


def _truncate_result(result: Any) -> Json:
    text = result if isinstance(result, str) else msgspec.json.encode(result).decode()
    if len(text) <= MAX_RESULT_CHARS:
        return {"result": result}
    return {"result": text[:MAX_RESULT_CHARS], "cut": f"the first {MAX_RESULT_CHARS} of {len(text)} characters"}
