"""The cold endpoints: health, models, metrics, the API's description. A plain ASGI application.

Whoever comes this far has been let in (`routes.admit`), with a method and a path that exist.
"""

from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any

import msgspec

from stayfast.core.clock import Clock
from stayfast.core.errors import Rejected
from stayfast.server.backend import Current
from stayfast.server.edge import Message, Scope
from stayfast.server.openapi import document
from stayfast.server.routes import MODELS, dialect, model_id
from stayfast.wire.errors import render
from stayfast.wire.models import model_list

_JSON = "application/json"
Page = tuple[int, str, bytes]  # status, content type, body


class ColdApp:
    """Task-safe. `is_draining` is asked, so that readiness ends with the first sign of a shutdown."""

    __slots__ = ("_created", "_current", "_is_draining", "_pages", "_version")

    def __init__(self, current: Current, *, clock: Clock, version: str, is_draining: Callable[[], bool]) -> None:
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
            "/metrics": self._metrics,
            "/openapi.json": self._openapi,
        }

    async def __call__(self, scope: Scope, receive: Callable[[], Awaitable[Message]],
                       send: Callable[[Message], Awaitable[None]]) -> None:
        """Answer one request."""
        path = scope["path"]
        page = self._pages.get(path)
        if page is not None:
            status, media, body = page()
        elif path in MODELS:
            status, media, body = _ok(model_list(self._current.backend.models(), self._created))
        else:
            status, media, body = self._model(scope["raw_path"].decode(), path, scope["state"]["request_id"])
        headers = [(b"content-type", media.encode()), (b"cache-control", b"no-store")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    def _root(self) -> Page:
        return _ok(msgspec.json.encode({
            "name": "stayfast", "version": self._version, "openapi": "/openapi.json", "models": "/v1/models",
            "health": ["/livez", "/readyz"], "metrics": "/metrics",
        }))

    def _live(self) -> Page:
        return _status(HTTPStatus.OK, "alive")

    def _ready(self) -> Page:
        reason = "shutting down" if self._is_draining() else self._current.backend.unready()
        if reason is None:
            return _status(HTTPStatus.OK, "ready")
        return _status(HTTPStatus.SERVICE_UNAVAILABLE, "not ready", reason)

    def _metrics(self) -> Page:
        media, text = self._current.backend.metrics()
        return HTTPStatus.OK, media, text

    def _openapi(self) -> Page:
        return _ok(msgspec.json.encode(document(self._version)))

    def _model(self, raw_path: str, path: str, request_id: str) -> Page:
        name = model_id(path) or ""
        if name in self._current.backend.models():
            listed: dict[str, Any] = msgspec.json.decode(model_list([name], self._created))
            return _ok(msgspec.json.encode(listed["data"][0]))
        missing = Rejected("There is no model of this name: GET /v1/models lists them.", status=404,
                           code="model_not_found", param="model")
        status, headers, body = render(missing, dialect(raw_path), request_id)
        return status, dict(headers).get("content-type", _JSON), body


def _ok(body: bytes) -> Page:
    return HTTPStatus.OK, _JSON, body


def _status(status: HTTPStatus, word: str, reason: str | None = None) -> Page:
    told = {"status": word} if reason is None else {"status": word, "reason": reason}
    return status, _JSON, msgspec.json.encode(told)
