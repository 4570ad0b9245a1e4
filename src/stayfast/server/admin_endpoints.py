"""The ASGI application of all endpoints except those for LLM requests: health, models, metrics, recent requests, caches,
classifiers, OpenAPI.

`app.GatewayApp` has already checked the key, the path and the method.
"""

import re
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs

import msgspec

from stayfast.core.clock import Clock
from stayfast.core.errors import Rejected, StayfastError
from stayfast.http.server.asgi import Message, Scope
from stayfast.keys.principal import Principal, admins_only, allows_route, is_admin
from stayfast.server import paths
from stayfast.server.backend import ActiveSystem, PurgeFilter
from stayfast.server.classify.endpoint import ClassifyEndpoint
from stayfast.server.conversations import answer_conversations
from stayfast.server.openapi import document
from stayfast.server.paths import (
    ADMIN_PATHS,
    CACHE,
    CLASSIFY,
    CONVERSATIONS,
    LIVE,
    METRICS,
    MODELS,
    REQUESTS,
    error_dialect,
    parse_cache_key,
    parse_drain,
    parse_model_id,
    parse_prompt_id,
    parse_request_id,
)
from stayfast.server.requests_query import parse_requests_query
from stayfast.server.snapshot.endpoints import answer_snapshot, read_parameters, require, send_live
from stayfast.server.snapshot.findings import FindingsReader
from stayfast.server.snapshot.prompts import list_prompts, show_prompt
from stayfast.wire.errors import encode_error
from stayfast.wire.local_answers import render_model_list

_JSON = "application/json"
_CACHE_KEY = re.compile(r"[0-9a-fA-F]{64}")
_PURGE_PARAMETERS = ("route", "tenant", "tag", "all")
_MAX_NAME_CHARS = 64  # of an unknown parameter that an error quotes
Page = tuple[int, str, bytes]  # status, content type, body


class AdminApp:
    """The ASGI application. Task-safe."""

    __slots__ = ("_classify", "_created", "_current", "_findings", "_is_draining", "_pages", "_version")

    def __init__(self, current: ActiveSystem, *, clock: Clock, version: str, is_draining: Callable[[], bool]) -> None:
        self._current = current
        self._is_draining = is_draining
        self._version = version
        self._created = int(clock.wall())
        self._classify = ClassifyEndpoint(current, clock)
        self._findings = FindingsReader(clock)
        self._pages: dict[str, Callable[[], Page]] = {
            "/": self._root,
            "/livez": self._live,
            "/healthz": self._live,
            "/health": self._live,
            "/readyz": self._ready,
            "/openapi.json": self._openapi,
        }

    async def __call__(self, scope: Scope, receive: Callable[[], Awaitable[Message]],
                       send: Callable[[Message], Awaitable[None]]) -> None:
        path = scope["path"]
        page = self._pages.get(path)
        if page is not None:
            status, media, body = page()
        else:
            try:
                if path == LIVE:
                    self._require_admin(scope)
                    await send_live(self._current.backend.snapshots, scope, send)
                    return
                if path == CLASSIFY:
                    status, media, body = _ok(await self._classify.answer(scope, receive))
                else:
                    status, media, body = await self._metrics(scope) if path == METRICS else _ok(await self._json(scope))
            except StayfastError as error:
                status, headers, body = encode_error(error, error_dialect(scope["raw_path"].decode()),
                                                     scope["state"]["request_id"])
                media = dict(headers).get("content-type", _JSON)
        await send({"type": "http.response.start", "status": status,
                    "headers": [(b"content-type", media.encode()), (b"cache-control", b"no-store")]})
        await send({"type": "http.response.body", "body": body})

    def _root(self) -> Page:
        return _ok(msgspec.json.encode({
            "name": "stayfast", "version": self._version, "openapi": "/openapi.json", "models": "/v1/models",
            "health": ["/livez", "/readyz"], "metrics": METRICS, "requests": REQUESTS,
        }))

    def _live(self) -> Page:
        return _status(HTTPStatus.OK, "alive")

    def _ready(self) -> Page:
        reason = "shutting down" if self._is_draining() else self._current.backend.unready()
        if reason is None:
            return _status(HTTPStatus.OK, "ready")
        return _status(HTTPStatus.SERVICE_UNAVAILABLE, "not ready", reason)

    def _openapi(self) -> Page:
        return _ok(msgspec.json.encode(document(self._version)))

    async def _metrics(self, scope: Scope) -> Page:
        """Raises Rejected (403) for a key that may not see all tenants."""
        caller: Principal | None = scope["state"]["caller"]
        if self._current.config.metrics_access == "admin" and caller is not None and not caller.scopes.may_read_metrics:
            raise Rejected("Metrics need an admin key, or a stored key with the scope metrics. Add this key's name to "
                           "server.admins, or set server.metrics_access.", status=403, code="admins_only")
        media, body = await self._current.backend.metrics()
        return HTTPStatus.OK, media, body

    async def _json(self, scope: Scope) -> bytes:
        """Models, requests, state, caches. Raises Rejected."""
        path = scope["path"]
        if path in MODELS:
            caller = scope["state"]["caller"]
            return render_model_list([name for name in self._current.backend.models() if allows_route(caller, name)],
                                     self._created)
        if path == REQUESTS:
            return await self._current.backend.together.recent_requests(parse_requests_query(
                scope["query_string"].decode("latin-1"), self._visible_tenant(scope)))
        if path in ADMIN_PATHS:
            self._require_admin(scope)
            return await self._for_admins(path, scope)
        if path == CACHE:
            return await self._caches(scope)
        if path.startswith(CONVERSATIONS):
            return await answer_conversations(self._current.backend.together, scope, self._visible_tenant(scope))
        if (drain := parse_drain(path)) is not None:
            self._require_admin(scope)
            return await self._drain(*drain)
        key = parse_cache_key(path)
        if key is not None:
            return await self._inspect_answer(scope, key)
        if (prompt_id := parse_prompt_id(path)) is not None:
            self._require_admin(scope)
            backend, against = self._current.backend, read_parameters(scope, "against").get("against")
            return await show_prompt(require(backend.snapshots), backend.together, prompt_id, against)
        request_id = parse_request_id(path)
        if request_id is None:
            return self._model(path, scope["state"]["caller"])
        return await self._request(request_id, self._visible_tenant(scope))

    async def _for_admins(self, path: str, scope: Scope) -> bytes:
        """One of ADMIN_PATHS."""
        backend = self._current.backend
        match path:
            case paths.STATE:
                return backend.state()
            case paths.SETTINGS:
                return backend.effective_settings()
            case paths.GATEWAYS:
                return await backend.together.gateways()
            case paths.TRAFFIC:
                return await backend.together.traffic()
            case paths.SCALING:
                return await backend.together.read_scaling()
            case paths.PROMPTS:
                return await list_prompts(require(backend.snapshots))
            case paths.FINDINGS:
                return await self._findings.read(require(backend.snapshots))
            case _:
                return await answer_snapshot(backend.snapshots, scope)

    async def _drain(self, name: str, what: str) -> bytes:
        done = await self._current.backend.together.drain_upstream(name, what)
        if done is None:
            raise Rejected(f"The upstream {name[:_MAX_NAME_CHARS]!r} is unknown, or has no phases. Set "
                           "upstreams.NAME.warm.phases to on (docs/warm.md).", status=404, code="upstream_not_found",
                           param="name")
        return done

    def _model(self, path: str, caller: Principal | None) -> bytes:
        name = parse_model_id(path) or ""
        if name not in self._current.backend.models():
            raise Rejected("Unknown model. GET /v1/models lists all models.", status=404,
                           code="model_not_found", param="model")
        if caller is not None:
            caller.check_route(name)
        listed: dict[str, Any] = msgspec.json.decode(render_model_list([name], self._created))
        return msgspec.json.encode(listed["data"][0])

    async def _request(self, request_id: str, tenant: str | None) -> bytes:
        found = await self._current.backend.together.recent_request(request_id, tenant)
        if found is None:
            raise Rejected("Unknown request id: it has expired, or belongs to another client. GET /admin/requests lists "
                           "recent requests.", status=404, code="request_not_found", param="id")
        return found

    async def _caches(self, scope: Scope) -> bytes:
        """Statistics of all caches, or the result of a purge."""
        self._require_admin(scope)
        if scope["method"] != "DELETE":
            return await self._current.backend.together.cache_stats()
        given = parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        for name, values in given.items():
            if name not in _PURGE_PARAMETERS:
                shown = name[:_MAX_NAME_CHARS]
                raise Rejected(f"Unknown parameter {shown}. Supported: {', '.join(_PURGE_PARAMETERS)}.", param=shown)
            if len(values) > 1 or (name == "all" and len(given) > 1):
                raise Rejected(f"{name} may occur only once{', without other parameters' * (name == 'all')}.", param=name)
            if not all(values) or (name == "all" and values != ["true"]):
                raise Rejected(f"{name} must be {'true' if name == 'all' else 'at least one character'}.", param=name)
        what = PurgeFilter(*(given.get(name, [None])[-1] for name in ("route", "tenant", "tag")))
        if what == PurgeFilter() and "all" not in given:
            raise Rejected("A purge needs route, tenant, tag, or all=true.", param="route")
        return await self._current.backend.together.purge(what)

    async def _inspect_answer(self, scope: Scope, key: str) -> bytes:
        """A description of one stored answer, without its text; for DELETE, the result of its removal."""
        self._require_admin(scope)
        if not _CACHE_KEY.fullmatch(key):
            raise Rejected("A key is 64 hexadecimal digits. `stayfast explain` shows the key of a request.", param="key")
        if scope["method"] == "DELETE":
            return await self._current.backend.together.purge(PurgeFilter(key=bytes.fromhex(key)))
        found = await self._current.backend.together.inspect_answer(bytes.fromhex(key))
        if found is None:
            raise Rejected("No answer is stored under this key.", status=404, code="answer_not_found", param="key")
        return found

    def _require_admin(self, scope: Scope) -> None:
        if self._visible_tenant(scope) is not None:
            raise admins_only()

    def _visible_tenant(self, scope: Scope) -> str | None:
        """The only tenant whose requests the client may see; None (all) for admins, and without authentication."""
        state = scope["state"]
        tenant: str | None = None if is_admin(state["caller"]) else state["tenant"]
        return tenant


def _ok(body: bytes) -> Page:
    return HTTPStatus.OK, _JSON, body


def _status(status: HTTPStatus, word: str, reason: str | None = None) -> Page:
    body = {"status": word} if reason is None else {"status": word, "reason": reason}
    return status, _JSON, msgspec.json.encode(body)
