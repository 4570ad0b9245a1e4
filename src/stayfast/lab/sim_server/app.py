"""The simulator's HTTP application: all providers on one port, routing by path, and the API key."""

import asyncio
import signal
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from hmac import compare_digest
from re import fullmatch
from typing import Any

from stayfast.core.clock import Clock
from stayfast.core.errors import Rejected, StayfastError
from stayfast.core.types import Api
from stayfast.http.server.connection import ConnectionTasks, HttpServer, ServerConnection
from stayfast.http.server.parser import HttpLimits
from stayfast.http.server.response import DateHeader, connection_line, whole_response
from stayfast.lab.sim_server.answer import AnswerRun, Headers, SimRequest, SimulatorState, head_lines
from stayfast.lab.sim_server.control import ControlEndpoints
from stayfast.lab.sim_server.recording import ClientGrades, RequestRecords
from stayfast.lab.simulated import Provider, ProviderConfig, to_simulated_request
from stayfast.server.config import is_loopback
from stayfast.wire.errors import encode_error
from stayfast.wire.local_answers import render_model_list
from stayfast.wire.request_body import decode

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class ListenConfig:
    """The address and limits of the simulator. Sizes in bytes. `key`: required from every client, else 401; None: any key,
    or none, is accepted. `control_anywhere`: serve the control endpoints also on addresses reachable from other machines.
    """

    host: str = "127.0.0.1"
    port: int = 8100
    key: str | None = field(default=None, repr=False)
    control_anywhere: bool = False
    max_body_bytes: int = 32 * _MIB
    n_remembered: int = 1000  # requests listed by /_sim/requests

    def __post_init__(self) -> None:
        for name, low, high in (("port", 0, 65_535), ("max_body_bytes", 1024, 1024 * _MIB), ("n_remembered", 0, 1_000_000)):
            value = getattr(self, name)
            if not low <= value <= high:
                raise ValueError(f"{name} must be between {low} and {high}, not {value}")
        if self.key is not None and not fullmatch(r"[!-~]{1,1000}", self.key):
            raise ValueError("key must be visible ASCII characters")

    @property
    def has_control(self) -> bool:
        return self.control_anywhere or is_loopback(self.host)


PATHS = {
    "/v1/chat/completions": Api.CHAT,
    "/v1/completions": Api.COMPLETIONS,
    "/v1/responses": Api.RESPONSES,
    "/v1/embeddings": Api.EMBEDDINGS,
    "/v1/rerank": Api.RERANK,
    "/v1/messages": Api.MESSAGES,
    "/v1/messages/count_tokens": Api.COUNT_TOKENS,
    "/v1/responses/input_tokens": Api.INPUT_TOKENS,
    "/tokenize": Api.TOKENIZE,
}
_JSON = (("content-type", "application/json"),)
_TEXT = (("content-type", "text/plain; version=0.0.4; charset=utf-8"),)
_NEVER_S = 86_400.0  # longer than any test: no timeouts
_RESERVED_NAMES = frozenset(("v1", "_sim", "healthz", "metrics"))  # first segments of the simulator's own paths


def check_name(name: str) -> None:
    """Raises ValueError for a provider name that cannot be part of a path."""
    if not fullmatch(r"[A-Za-z0-9._-]{1,64}", name) or name in _RESERVED_NAMES:
        raise ValueError(f"{name} cannot be a provider's name: 1 to 64 of letters, digits, '.', '_', '-', "
                         f"but not {', '.join(sorted(_RESERVED_NAMES))}")


class SimulatorApp:
    """One simulator. Create it inside its loop. `on_error` gets unexpected exceptions, and must not raise."""

    __slots__ = ("_llm_paths", "_models", "_pages", "_providers", "_state", "config", "control", "http", "limits")

    request_type = SimRequest

    def __init__(self, config: ListenConfig, providers: Mapping[str, ProviderConfig], clock: Clock,
                 on_error: Callable[[BaseException], None]) -> None:
        """Raises ValueError without providers, and for a name that cannot be part of a path."""
        if not providers:
            raise ValueError("a simulator needs at least one provider")
        for name in providers:
            check_name(name)
        self.config = config
        self.limits = HttpLimits(
            max_body_bytes=config.max_body_bytes, max_headers=1000, max_connections=1_000_000, max_pipelined=10_000,
            read_ahead_bytes=config.max_body_bytes, head_timeout_s=_NEVER_S, body_timeout_s=_NEVER_S,
            idle_timeout_s=_NEVER_S, write_timeout_s=_NEVER_S)
        self.http: HttpServer[SimRequest] = HttpServer(self, clock, ConnectionTasks(on_error))
        self._state = SimulatorState(clock, DateHeader(clock), RequestRecords(config.n_remembered), ClientGrades())
        self._providers = {name: Provider(name, of, clock) for name, of in providers.items()}
        self.control = ControlEndpoints(self._providers, providers, self._state)
        first = next(iter(providers))
        places = [("", first), *((f"/{name}", name) for name in providers)]
        self._llm_paths = {prefix + path: (name, api) for prefix, name in places for path, api in PATHS.items()}
        self._models = {prefix + "/v1/models": name for prefix, name in places}
        self._pages = {prefix + "/metrics": name for prefix, name in places}

    async def listen(self) -> int:
        """Start listening; returns the port. Raises OSError."""
        await self.http.listen(self.config.host, self.config.port)
        return self.http.bound_addresses()[0][1]

    def close(self) -> None:
        """Stop listening and abort all connections."""
        self.http.stop_listening()
        self.http.abort_connections()

    def check_head(self, request: SimRequest, *, is_refusing: bool) -> None:
        """No request is rejected by its head."""

    async def handle(self, connection: ServerConnection[SimRequest], request: SimRequest) -> None:
        target = self._llm_paths.get(request.path)
        try:
            if target is not None:
                answer = self._start_answer(connection, request, *target)
            else:
                headers = _TEXT if request.path in self._pages else _JSON
                status, body = self._answer_other(request)
        except StayfastError as error:
            connection.respond_error(request, error)
            return
        if target is not None:
            await answer
        else:
            connection.write(self._render_whole(request, status, headers, body, keep_alive=request.keep_alive))
            connection.finish(request)

    def render_error(self, request: SimRequest, error: StayfastError, *, keep_alive: bool) -> bytes:
        """A whole error answer in the dialect of the path."""
        dialect = Api.MESSAGES if "/messages" in request.path else Api.CHAT
        status, headers, body = encode_error(error, dialect, "req_sim")
        return self._render_whole(request, status, headers, body, keep_alive=keep_alive)

    def note_refusal(self, request: SimRequest, error: StayfastError) -> None:
        """Malformed HTTP is not recorded."""

    def _start_answer(self, connection: ServerConnection[SimRequest], request: SimRequest, name: str,
             api: Api) -> Coroutine[Any, Any, None]:
        if request.method != "POST":
            raise Rejected("This path accepts POST only.", status=405, code="method_not_allowed")
        self._check_key(request)
        llm_request = decode(api, request.body)
        provider = self._providers[name]
        simulated_request = to_simulated_request(llm_request, has_blocks=provider.caches_prompts,
                                                 cache_rules=provider.cache_rules)
        return AnswerRun(provider, simulated_request, connection, request, self._state).run()

    def _answer_other(self, request: SimRequest) -> tuple[int, bytes]:
        path = request.path
        if path.startswith("/_sim/"):
            if not self.config.has_control:
                raise Rejected("The control endpoints need a loopback address or `--control-anywhere`.",
                               status=403, code="no_control")
            self._check_key(request)
            return 200, self.control.handle(request)
        if path in self._pages and request.method == "GET":
            return 200, self.control.render_engine_page(self._pages[path])
        name = self._models.get(path)
        if name is None and path != "/healthz":
            raise Rejected(f"Unknown path {path[:200]}: providers are at "
                           f"{', '.join(f'/{name}/v1' for name in self._providers)}.", status=404, code="not_found")
        if request.method != "GET":
            raise Rejected("This path accepts GET only.", status=405, code="method_not_allowed")
        if name is None:
            return 200, b'{"status":"ok"}'
        self._check_key(request)
        return 200, render_model_list([name], created=0)

    def _check_key(self, request: SimRequest) -> None:
        key = self.config.key
        if key is not None and not compare_digest(request.key, key.encode()):
            raise Rejected("Incorrect API key provided.", status=401, code="invalid_api_key")

    def _render_whole(self, request: SimRequest, status: int, headers: Headers, body: bytes, *, keep_alive: bool) -> bytes:
        return whole_response(head_lines(status, headers, self._state.dates), body,
                              connection_line(request, keep_alive=keep_alive), has_body=request.method != "HEAD")

    def __repr__(self) -> str:
        return f"<SimulatorApp: {', '.join(self._providers)}; {self.http!r}>"


@contextmanager
def stop_on_signals() -> Iterator[asyncio.Event]:
    """An event that is set by SIGTERM or SIGINT, which have no other effect inside of this context."""
    loop = asyncio.get_running_loop()
    is_stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, is_stopped.set)
    try:
        yield is_stopped
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
