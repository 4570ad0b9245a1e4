"""The ASGI application of the page: its files, sign-in and sign-out.

The files hold no data and need no key; all figures come from the admin endpoints. Nothing in the page is inline, so that its
Content-Security-Policy permits scripts and styles of this origin only. Files whose name holds their version are cached for
ever, all others are validated by their tag at each use.
"""

import re
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any

import msgspec

from stayfast.core.clock import Clock
from stayfast.core.errors import Rejected
from stayfast.core.types import Api
from stayfast.http.server.asgi import Message, Scope
from stayfast.server.backend import ActiveSystem
from stayfast.server.paths import wrong_method_error
from stayfast.server.ui.assets import INDEX, Asset, Assets
from stayfast.server.ui.sessions import SESSION_S, Sessions, is_own_site
from stayfast.server.ui_paths import LOGIN, LOGOUT, PAGE, SESSION
from stayfast.wire.errors import encode_error

CONTENT_SECURITY_POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; base-uri 'none'; "
    b"form-action 'self'; frame-ancestors 'none'")
SAFETY = [
    (b"content-security-policy", CONTENT_SECURITY_POLICY),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
]
_GZIP = re.compile(rb"gzip[ \t]*(?:;[ \t]*q=(?!0(?:\.0*)?$)[0-9.]+)?")
_FOR_EVER = b"public, max-age=31536000, immutable"
Headers = list[tuple[bytes, bytes]]
Send = Callable[[Message], Awaitable[None]]


class UiApp:
    """The ASGI application. Task-safe."""

    __slots__ = ("_assets", "_clock", "_current", "_make_session_id", "_version", "sessions")

    def __init__(self, current: ActiveSystem, *, clock: Clock, version: str, sessions: Sessions,
                 make_session_id: Callable[[], str]) -> None:
        self._current = current
        self._clock = clock
        self._version = version
        self.sessions = sessions
        self._make_session_id = make_session_id
        self._assets = Assets()

    async def __call__(self, scope: Scope, receive: Callable[[], Awaitable[Message]], send: Send) -> None:
        path = scope["path"]
        try:
            status, headers, body = self._answer(path, scope)
        except Rejected as error:
            status, pairs, body = encode_error(error, Api.CHAT, scope["state"]["request_id"])
            headers = [(name.encode(), value.encode()) for name, value in pairs if name != "content-length"]
        await send({"type": "http.response.start", "status": status, "headers": [*headers, *SAFETY]})
        await send({"type": "http.response.body", "body": body})

    def _answer(self, path: str, scope: Scope) -> tuple[int, Headers, bytes]:
        if path == SESSION:
            return _json(self._session(scope))
        if path == LOGIN:
            return self._sign_in(scope)
        if path == LOGOUT:
            return self._sign_out(scope)
        if path == "/ui/":
            return HTTPStatus.PERMANENT_REDIRECT, [(b"location", b"../ui")], b""
        asset = self._assets.get(INDEX if path == PAGE else path.removeprefix("/ui/"))
        if asset is None or path == f"/ui/{INDEX}":
            raise wrong_method_error(scope["method"], path, ())
        return _send_asset(asset, dict(scope["headers"]))

    def _session(self, scope: Scope) -> dict[str, Any]:
        config = self._current.config
        user = self.sessions.authenticate(dict(scope["headers"]), config, self._clock.wall()) if config.demands_key else None
        return {"needs_key": config.demands_key, "signed_in": not config.demands_key or user is not None, "user": user,
                "version": self._version}

    def _sign_in(self, scope: Scope) -> tuple[int, Headers, bytes]:
        """`GatewayApp` has checked the key. Raises Rejected (403) for one that is not an admin's."""
        config, tenant = self._current.config, scope["state"]["tenant"]
        if not config.demands_key:
            return _json({"needs_key": False, "signed_in": True})
        if tenant not in config.admins:
            raise Rejected("The page needs an admin key. Add this key's name to server.admins.", status=403,
                           code="admins_only")
        cookie = self.sessions.make_cookie(tenant, config, self._clock.wall(), self._make_session_id(),
                                           is_secure=_is_https(scope))
        return _json({"needs_key": True, "signed_in": True, "user": tenant, "seconds": SESSION_S},
                     (b"set-cookie", cookie.encode()))

    def _sign_out(self, scope: Scope) -> tuple[int, Headers, bytes]:
        """Needs no key. Raises Rejected (403) for a request of another site, as SameSite does not cover `set-cookie`."""
        if not is_own_site(dict(scope["headers"])):
            raise Rejected("Another site may not sign out the user of this page.", status=403, code="cross_site")
        return _json({"signed_in": False},
                     (b"set-cookie", self.sessions.clear_cookie(is_secure=_is_https(scope)).encode()))


def _send_asset(asset: Asset, fields: dict[bytes, bytes]) -> tuple[int, Headers, bytes]:
    is_gzip = _accepts_gzip(fields.get(b"accept-encoding", b""))
    body, tag = (asset.body_gzip, asset.tag_gzip) if is_gzip else (asset.body, asset.tag)
    headers = [(b"etag", tag), (b"cache-control", _FOR_EVER if asset.is_immutable else b"no-cache"),
               (b"vary", b"accept-encoding")]
    held = {each.strip().removeprefix(b"W/") for each in fields.get(b"if-none-match", b"").split(b",")}
    if tag in held:
        return HTTPStatus.NOT_MODIFIED, headers, b""
    headers.append((b"content-type", asset.media.encode()))
    if is_gzip:
        headers.append((b"content-encoding", b"gzip"))
    return HTTPStatus.OK, headers, body


def _accepts_gzip(accepted: bytes) -> bool:
    """Whether `accept-encoding` names gzip with a weight above 0. A client that means it by `*` alone gets plain bytes."""
    return any(_GZIP.fullmatch(part.strip()) for part in accepted.lower().split(b","))


def _is_https(scope: Scope) -> bool:
    """Whether the browser reached the page by https, here or at a proxy. It decides about the client's own cookie only, so
    its headers are believed.
    """
    if scope["scheme"] == "https":
        return True
    fields: dict[bytes, bytes] = dict(scope["headers"])
    return fields.get(b"origin", b"").startswith(b"https://") or fields.get(b"x-forwarded-proto", b"") == b"https"


def _json(value: object, *headers: tuple[bytes, bytes]) -> tuple[int, Headers, bytes]:
    return (HTTPStatus.OK, [(b"content-type", b"application/json"), (b"cache-control", b"no-store"), *headers],
            msgspec.json.encode(value))
