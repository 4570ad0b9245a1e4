"""The cold endpoints: health, models, metrics, recent requests, the API's description. A plain ASGI application.

Whoever comes this far has been let in (`routes.admit`), with a method and a path that exist.
"""

import re
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs

import msgspec

from stayfast.core.clock import Clock
from stayfast.core.errors import Rejected
from stayfast.http.server.asgi import Message, Scope
from stayfast.server.backend import ActiveSystem, PurgeFilter, RecentRequestsQuery
from stayfast.server.openapi import document
from stayfast.server.routes import (
    CACHE,
    MAX_LISTED,
    METRICS,
    MODELS,
    REQUESTS,
    STATE,
    cache_key_in,
    dialect,
    model_id,
    request_id_in,
)
from stayfast.wire.errors import render
from stayfast.wire.local_answers import model_list

_JSON = "application/json"
_KEY = re.compile(r"[0-9a-fA-F]{64}")
_FORGETS = ("route", "tenant", "tag", "all")
_MAX_TOLD = 64  # characters of a name that a client made up
Page = tuple[int, str, bytes]  # status, content type, body


class AdminApp:
    """Task-safe. `is_draining` is asked, so that readiness ends with the first sign of a shutdown."""

    __slots__ = ("_created", "_current", "_is_draining", "_pages", "_version")

    def __init__(self, current: ActiveSystem, *, clock: Clock, version: str, is_draining: Callable[[], bool]) -> None:
        self._current = current
        self._is_draining = is_draining
        self._version = version
        self._created = int(clock.wall())
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
                status, media, body = await self._metrics(scope) if path == METRICS else _ok(await self._found(scope))
            except Rejected as error:
                status, media, body = _refused(error, scope)
        headers = [(b"content-type", media.encode()), (b"cache-control", b"no-store")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
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
        """Raises Rejected (403) for a key that may not see figures of all tenants."""
        if self._current.config.metrics_access == "admin" and self._sees(scope) is not None:
            raise Rejected("This is for keys that server.admins names: add this one, or say who else may read it in "
                           "server.metrics_access.", status=403, code="admins_only")
        media, body = await self._current.backend.metrics()
        return HTTPStatus.OK, media, body

    async def _found(self, scope: Scope) -> bytes:
        """Models and requests, all or one. Raises Rejected."""
        path = scope["path"]
        if path in MODELS:
            return model_list(self._current.backend.models(), self._created)
        if path == REQUESTS:
            return await self._current.backend.together.requests(self._requests_query(scope))
        if path == STATE:
            return self._state(scope)
        if path == CACHE:
            return await self._caches(scope)
        key = cache_key_in(path)
        if key is not None:
            return await self._inspect_answer(scope, key)
        request_id = request_id_in(path)
        return self._model(path) if request_id is None else await self._request(request_id, self._sees(scope))

    def _model(self, path: str) -> bytes:
        name = model_id(path) or ""
        if name not in self._current.backend.models():
            raise Rejected("There is no model of this name: GET /v1/models lists them.", status=404,
                           code="model_not_found", param="model")
        listed: dict[str, Any] = msgspec.json.decode(model_list([name], self._created))
        return msgspec.json.encode(listed["data"][0])

    async def _request(self, request_id: str, tenant: str | None) -> bytes:
        found = await self._current.backend.together.request(request_id, tenant)
        if found is None:
            raise Rejected("No request of this id is kept any more, or it was another client's: GET /admin/requests lists "
                           "what is.", status=404, code="request_not_found", param="id")
        return found

    def _state(self, scope: Scope) -> bytes:
        self._for_admins(scope)
        return self._current.backend.state()

    async def _caches(self, scope: Scope) -> bytes:
        """What caches hold, or what they have forgotten now."""
        self._for_admins(scope)
        if scope["method"] != "DELETE":
            return await self._current.backend.together.cache_stats()
        given = parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        for name, values in given.items():
            if name not in _FORGETS:
                raise Rejected(f"{name[:_MAX_TOLD]} is no condition: {', '.join(_FORGETS)} are.", param=name[:_MAX_TOLD])
            if len(values) > 1 or (name == "all" and len(given) > 1):
                raise Rejected(f"{name} must be said once{', and alone' * (name == 'all')}.", param=name)
            if not all(values) or (name == "all" and values != ["true"]):
                raise Rejected(f"{name} must be {'true' if name == 'all' else 'one character or more'}.", param=name)
        what = PurgeFilter(*(given.get(name, [None])[-1] for name in ("route", "tenant", "tag")))
        if what == PurgeFilter() and "all" not in given:
            raise Rejected("Say what is to be forgotten: route, tenant, tag, or all=true.", param="route")
        return await self._current.backend.together.forget(what)

    async def _inspect_answer(self, scope: Scope, key: str) -> bytes:
        """What is known of one answer, or whether it is forgotten now."""
        self._for_admins(scope)
        if not _KEY.fullmatch(key):
            raise Rejected("A key is 64 hexadecimal digits: `stayfast explain` tells a request's.", param="key")
        if scope["method"] == "DELETE":
            return await self._current.backend.together.forget(PurgeFilter(key=bytes.fromhex(key)))
        found = await self._current.backend.together.inspect_answer(bytes.fromhex(key))
        if found is None:
            raise Rejected("No answer is kept under this key.", status=404, code="answer_not_found", param="key")
        return found

    def _for_admins(self, scope: Scope) -> None:
        if self._sees(scope) is not None:
            raise Rejected("This is for keys that server.admins names.", status=403, code="admins_only")

    def _sees(self, scope: Scope) -> str | None:
        """Whose requests may be seen: one's own; everybody's for admins, and where nobody has a name."""
        tenant: str | None = scope["state"]["tenant"]
        return None if tenant in self._current.config.admins else tenant

    def _requests_query(self, scope: Scope) -> RecentRequestsQuery:
        given = parse_qs(scope["query_string"].decode("latin-1"))
        n, which = given.get("n", ["50"])[-1], given.get("which", ["all"])[-1]
        if not (n.isascii() and n.isdigit() and len(n) <= 4 and 1 <= int(n) <= MAX_LISTED):
            raise Rejected(f"n must be a whole number from 1 to {MAX_LISTED}.", param="n")
        if which not in ("all", "notable"):
            raise Rejected("which must be all or notable.", param="which")
        return RecentRequestsQuery(int(n), which == "notable", self._sees(scope))


def _refused(error: Rejected, scope: Scope) -> Page:
    status, headers, body = render(error, dialect(scope["raw_path"].decode()), scope["state"]["request_id"])
    return status, dict(headers).get("content-type", _JSON), body


def _ok(body: bytes) -> Page:
    return HTTPStatus.OK, _JSON, body


def _status(status: HTTPStatus, word: str, reason: str | None = None) -> Page:
    body = {"status": word} if reason is None else {"status": word, "reason": reason}
    return status, _JSON, msgspec.json.encode(body)
