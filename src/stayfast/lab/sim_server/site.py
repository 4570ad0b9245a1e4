"""All providers behind one port: which path is whose, and who may come in."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from hmac import compare_digest
from re import fullmatch
from typing import Any

from stayfast.core.clock import Clock
from stayfast.core.errors import Rejected, StayfastError
from stayfast.core.types import Api
from stayfast.lab.sim_server.answer import Answer, Desk
from stayfast.lab.sim_server.config import ListenConfig
from stayfast.lab.sim_server.connection import Connection
from stayfast.lab.sim_server.control import Control
from stayfast.lab.sim_server.grades import Grades
from stayfast.lab.sim_server.http import DateLine, Headers, whole
from stayfast.lab.sim_server.reader import Inbound
from stayfast.lab.sim_server.record import Records
from stayfast.lab.simulated import Provider, ProviderConfig, ask_of
from stayfast.wire.errors import render
from stayfast.wire.json_input import decode
from stayfast.wire.models import model_list

PATHS = {
    b"/v1/chat/completions": Api.CHAT,
    b"/v1/completions": Api.COMPLETIONS,
    b"/v1/responses": Api.RESPONSES,
    b"/v1/embeddings": Api.EMBEDDINGS,
    b"/v1/messages": Api.MESSAGES,
    b"/v1/messages/count_tokens": Api.COUNT_TOKENS,
}
_JSON = (("content-type", "application/json"),)
_TAKEN = frozenset(("v1", "_sim", "healthz"))  # names that paths of ours begin with


def check_name(name: str) -> None:
    """Raises ValueError for a provider's name that cannot stand in a path."""
    if not fullmatch(r"[A-Za-z0-9._-]{1,64}", name) or name in _TAKEN:
        raise ValueError(f"{name} cannot be a provider's name: 1 to 64 of letters, digits, '.', '_', '-', "
                         f"but not {', '.join(sorted(_TAKEN))}")


class Site:
    """One simulator. One loop's; make it inside the loop. `on_error` hears what nobody expected, and must not raise."""

    __slots__ = ("_desk", "_hot", "_models", "_on_error", "_providers", "_running", "config", "connections", "control")

    def __init__(self, config: ListenConfig, providers: Mapping[str, ProviderConfig], clock: Clock,
                 on_error: Callable[[BaseException], None]) -> None:
        """Raises ValueError without providers, and for a name that cannot stand in a path."""
        if not providers:
            raise ValueError("a simulator needs at least one provider")
        for name in providers:
            check_name(name)
        self.config = config
        self.connections: set[Connection] = set()
        self._desk = Desk(clock, DateLine(clock), Records(config.n_remembered), Grades())
        self._providers = {name: Provider(name, of, clock) for name, of in providers.items()}
        self.control = Control(self._providers, providers, self._desk)
        self._on_error = on_error
        self._running: set[asyncio.Task[None]] = set()
        first = next(iter(providers))
        places = [(b"", first), *((b"/" + name.encode(), name) for name in providers)]
        self._hot = {prefix + path: (name, api) for prefix, name in places for path, api in PATHS.items()}
        self._models = {prefix + b"/v1/models": name for prefix, name in places}

    def connect(self) -> Connection:
        """The protocol of a new connection."""
        return Connection(self, self.config.max_body_bytes)

    def serve(self, connection: Connection, inbound: Inbound) -> Coroutine[Any, Any, None] | None:
        """See `connection.Site`."""
        path = inbound.target.partition(b"?")[0]
        name, api = self._hot.get(path) or ("", _dialect(path))
        try:
            if inbound.refusal is not None:
                raise inbound.refusal
            if name:
                return self._ask(connection, inbound, name, api)
            status, body = self._answer_cold(inbound, path)
        except StayfastError as error:
            status, headers, body = render(error, api, "req_sim")
            self._write(connection, inbound, status, headers, body)
        else:
            self._write(connection, inbound, status, _JSON, body)
        return None

    def spawn(self, life: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """See `connection.Site`."""
        task = asyncio.get_running_loop().create_task(life)
        self._running.add(task)
        task.add_done_callback(self._end)
        return task

    def close(self) -> None:
        """Cut everything off."""
        for connection in tuple(self.connections):
            connection.abort()

    def _ask(self, connection: Connection, inbound: Inbound, name: str, api: Api) -> Coroutine[Any, Any, None]:
        if inbound.method != b"POST":
            raise Rejected("This path takes POST only.", status=405, code="method_not_allowed")
        self._check_key(inbound)
        request = decode(api, inbound.body)
        provider = self._providers[name]
        ask = ask_of(request, has_blocks=provider.caches_prompts, cache_rules=provider.cache_rules)
        return Answer(provider, ask, connection, inbound, self._desk).run()

    def _answer_cold(self, inbound: Inbound, path: bytes) -> tuple[int, bytes]:
        if path.startswith(b"/_sim/"):
            if not self.config.has_control:
                raise Rejected("The control endpoints are for loopback addresses, unless `--control-anywhere` is given.",
                               status=403, code="no_control")
            self._check_key(inbound)
            return 200, self.control.answer(inbound)
        name = self._models.get(path)
        if name is None and path != b"/healthz":
            raise Rejected(f"There is nothing at {path.decode('ascii', 'replace')[:200]}: providers are at "
                           f"{', '.join(f'/{name}/v1' for name in self._providers)}.", status=404, code="not_found")
        if inbound.method != b"GET":
            raise Rejected("This path takes GET only.", status=405, code="method_not_allowed")
        if name is None:
            return 200, b'{"status":"ok"}'
        self._check_key(inbound)
        return 200, model_list([name], created=0)

    def _check_key(self, inbound: Inbound) -> None:
        key = self.config.key
        if key is not None and not compare_digest(inbound.key, key.encode()):
            raise Rejected("Incorrect API key provided.", status=401, code="invalid_api_key")

    def _write(self, connection: Connection, inbound: Inbound, status: int, headers: Headers, body: bytes) -> None:
        answer = whole(status, headers, body, self._desk.dates.line(), keep_alive=inbound.keep_alive)
        connection.write(answer if inbound.method != b"HEAD" else answer.removesuffix(body))

    def _end(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_error(error)

    def __repr__(self) -> str:
        return f"<Site: {', '.join(self._providers)}; {len(self.connections)} connections, {len(self._running)} answering>"


def _dialect(path: bytes) -> Api:
    """Whose errors a client of this path understands."""
    return Api.MESSAGES if b"/messages" in path else Api.CHAT
