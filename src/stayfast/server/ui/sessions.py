"""The session of a browser that has signed in: a signed cookie, so that each worker of one parent accepts it.

The cookie is `NAME:EXPIRES:ID:SIGNATURE`: the name in `server.keys`, seconds since the epoch, 16 random bytes, HMAC-SHA256
with a random secret that the workers of one parent share and that ends with it. The signed text contains a digest of the key
table, so a change of keys or admins ends every session. Not derived from the stored digests alone: a settings file with
digests is not secret enough to forge a session. When wrong: a sign-out removes the cookie from the browser but a copy of it
stays valid until it expires; to end it at once, restart or change the keys.
"""

import hmac
from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256

from stayfast.server.config import ServerConfig

SESSION_S = 12 * 3600.0
_SAFE_SITES = (None, b"same-origin", b"none")
_MAX_COOKIE_BYTES = 8192


class Sessions:
    """Makes and checks the cookies of one parent. `secret`: at least 32 random bytes."""

    __slots__ = ("_is_user", "_secret", "cookie_name")

    def __init__(self, secret: bytes, is_user: Callable[[str, ServerConfig], bool] | None = None) -> None:
        """is_user: whether an admin may still use the page; None: only admins of the settings file may."""
        if len(secret) < 32:
            raise ValueError(f"a secret needs at least 32 bytes, not {len(secret)}")
        self._secret = secret
        self._is_user = is_user if is_user is not None else _is_static_admin
        # cookies do not depend on the port: two gateways of one machine would overwrite each other's
        self.cookie_name = "stayfast_" + sha256(b"name" + secret).hexdigest()[:8]

    def make_cookie(self, tenant: str, config: ServerConfig, now: float, session_id: str, *, is_secure: bool) -> str:
        """A `set-cookie` value for an admin. `now`: seconds since the epoch; session_id: hex digits."""
        text = f"{tenant}:{int(now + SESSION_S)}:{session_id}"
        value = f"{text}:{self._sign(text, config)}"
        return f"{self.cookie_name}={value}; Path=/; Max-Age={SESSION_S:.0f}; {_attributes(is_secure=is_secure)}"

    def clear_cookie(self, *, is_secure: bool) -> str:
        """A `set-cookie` value that removes it."""
        return f"{self.cookie_name}=; Path=/; Max-Age=0; {_attributes(is_secure=is_secure)}"

    def authenticate(self, fields: Mapping[bytes, bytes], config: ServerConfig, now: float) -> str | None:
        """The admin whose valid cookie a request of the page itself has; None without one."""
        if b"cookie" not in fields or not is_own_site(fields):
            return None
        users = (self._check(value, config, now) for value in self._values(fields[b"cookie"]))
        return next((user for user in users if user is not None), None)

    def _check(self, value: str, config: ServerConfig, now: float) -> str | None:
        text, _, signature = value.rpartition(":")
        tenant, _, rest = text.partition(":")
        expires, _, _ = rest.partition(":")
        if not hmac.compare_digest(signature.encode(), self._sign(text, config).encode()):
            return None
        return tenant if now < int(expires) and self._is_user(tenant, config) else None

    def _values(self, header: bytes) -> Iterator[str]:
        """Of each cookie with this name. Split at semicolons, as servers do (RFC 6265bis, 5.8.3): http.cookies gives up at
        the first cookie of another program on the same host that has JSON or a bracket in it.
        """
        if len(header) > _MAX_COOKIE_BYTES:
            return
        for pair in header.decode("latin-1").split(";"):
            name, _, value = pair.partition("=")
            if name.strip() == self.cookie_name:
                yield value.strip()

    def _sign(self, text: str, config: ServerConfig) -> str:
        table = repr((sorted(config.keys.items()), sorted(config.admins)))
        return hmac.new(self._secret, f"{text}\n{sha256(table.encode()).hexdigest()}".encode(), sha256).hexdigest()


def _is_static_admin(user: str, config: ServerConfig) -> bool:
    return user in config.admins


def is_own_site(fields: Mapping[bytes, bytes]) -> bool:
    """Whether the page itself or the user's own navigation made a request; true for browsers that do not say."""
    return fields.get(b"sec-fetch-site") in _SAFE_SITES


def _attributes(*, is_secure: bool) -> str:
    return "HttpOnly; SameSite=Strict" + "; Secure" * is_secure
