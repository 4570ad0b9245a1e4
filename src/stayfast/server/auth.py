"""Authentication: from a key to its caller. Only SHA-256 digests of keys are stored.

Keys are long random strings, so a fast hash is enough. The digest is looked up in a table and then compared in constant
time; the timing of the look-up depends on digests only, which reveal nothing about keys. Keys of the settings file are
looked up first, then the stored ones, which `keys.sync` holds in memory.
"""

import base64
import hashlib
import hmac
import math
from collections.abc import Mapping

from stayfast.core.errors import Rejected, Shed
from stayfast.http.server.waiting_connections import limited_address
from stayfast.keys.principal import Principal
from stayfast.keys.table import LiveKeys
from stayfast.policy.keys.scopes import ALL_ROUTES, EVERYTHING
from stayfast.server.config import ServerConfig

MIN_KEY_CHARS = 16
_MAX_KEY_BYTES = 1024
REPORT_EVERY_S = 60.0
KEYS_RETRY_S = 2.0
STORED_USER = "~"  # no name of a tenant begins with it
_UNKNOWN = "0" * 64


def new_key(entropy: bytes) -> tuple[str, str]:
    """A new key and its digest, from at least 16 bytes of a cryptographic source."""
    if len(entropy) < 16:
        raise ValueError(f"a key needs at least 16 bytes of entropy, not {len(entropy)}")
    key = "sf-" + base64.urlsafe_b64encode(entropy).decode().rstrip("=")
    return key, digest_key(key)


def digest_key(key: str) -> str:
    """The stored form of a key: `sha256:<hex>`. Raises ValueError for a key short enough to guess."""
    if len(key) < MIN_KEY_CHARS:
        raise ValueError(f"a key needs at least {MIN_KEY_CHARS} characters, not {len(key)}")
    return "sha256:" + hashlib.sha256(key.encode()).hexdigest()


class KeyTable:
    """The keys of one configuration, and the stored ones."""

    __slots__ = ("_callers", "_is_on", "_stored")

    def __init__(self, config: ServerConfig, stored: LiveKeys | None = None) -> None:
        """stored: None: this process has no store."""
        self._is_on = config.demands_key
        self._callers = {
            digest.removeprefix("sha256:"): Principal(tenant, EVERYTHING if tenant in config.admins else ALL_ROUTES)
            for tenant, digest in config.keys.items()}
        self._stored = stored

    def authenticate(self, fields: Mapping[bytes, bytes]) -> Principal | None:
        """The caller of a request; None without authentication. Raises Rejected (401; 403 for a foreign web page), Shed
        (503) for an unknown key while the stored ones cannot be read.
        """
        if not self._is_on:
            if fields.get(b"sec-fetch-site") == b"cross-site":
                raise Rejected("Cross-site requests of web pages are refused while the gateway has no keys.",
                               status=403, code="cross_site")
            return None
        stored = self._stored
        for key in _keys_in(fields):
            hashed = hashlib.sha256(key)
            hexdigest = hashed.hexdigest()
            known = hexdigest if hexdigest in self._callers else _UNKNOWN
            if hmac.compare_digest(hexdigest, known):
                return self._callers[known]
            entry = stored.find(hashed.digest()) if stored is not None else None
            if entry is not None and hmac.compare_digest(hashed.digest(), entry.digest):
                return entry.caller
        is_any = any(name in fields for name in (b"authorization", b"x-api-key", b"x-goog-api-key"))
        if is_any and stored is not None and not stored.is_known:
            raise Shed("The store of keys cannot be read yet, so this key cannot be checked. Keys of the settings file are "
                       "served.", reason="keys_unavailable", code="keys_unavailable", retry_after_s=KEYS_RETRY_S)
        message = ("Incorrect API key provided." if is_any else
                   "No API key provided: send it as `Authorization: Bearer KEY` or `x-api-key: KEY`.")
        raise Rejected(message, status=401, code="invalid_api_key")

    def find_user(self, user: str, config: ServerConfig) -> Principal | None:
        """The admin that a session names (`user_of`); None if its key has ended or is no admin's."""
        if not user.startswith(STORED_USER):
            return Principal(user, EVERYTHING) if user in config.admins else None
        caller = self._stored.find_caller(user.removeprefix(STORED_USER)) if self._stored is not None else None
        return caller if caller is not None and caller.scopes.is_admin else None


def user_of(caller: Principal) -> str:
    """The name of an admin in a session: of the settings file, or STORED_USER and the id of a stored key."""
    return STORED_USER + caller.key_id if caller.key_id else caller.tenant


class FailedKeys:
    """Requests without a valid key: a token bucket for each client address. One loop's.

    Problem: a client that tries keys costs a look-up and a log line each time. Rule: so many 401s a minute for one address
    (IPv6: one /64), then 429 with Retry-After. Only failing requests are counted and refused: a valid key from the same
    address, or on the same connection of a proxy, is always served. When wrong: keys are too long to be guessed, so this
    limits load only; an attacker with more than `MAX_ADDRESSES` addresses gets a full bucket again for each.
    """

    __slots__ = ("_levels", "_n_refused", "_reported_at")

    MAX_ADDRESSES = 4096  # about 0.5 MB; the address whose last failure is the oldest is dropped first

    def __init__(self) -> None:
        self._levels: dict[str, tuple[float, float]] = {}  # failures left, and at which time; newest last
        self._n_refused = 0
        self._reported_at = -math.inf

    def count(self, peer: tuple[str, int] | None, per_minute: int, now: float) -> float:
        """Count a failure at `now` (monotonic seconds). Returns 0 within the limit, else seconds until the next allowed."""
        address = limited_address(peer) or ""
        left, at = self._levels.pop(address, (per_minute, now))
        left = min(per_minute, left + (now - at) * per_minute / 60)
        is_within = left >= 1
        self._levels[address] = (left - 1 if is_within else left, now)
        if len(self._levels) > self.MAX_ADDRESSES:
            del self._levels[next(iter(self._levels))]
        if is_within:
            return 0.0
        self._n_refused += 1
        return (1 - left) * 60 / per_minute

    def due_report(self, now: float) -> int:
        """How many failures exceeded the limit since the last report; 0 within a minute of it."""
        if now - self._reported_at < REPORT_EVERY_S:
            return 0
        n_refused, self._n_refused, self._reported_at = self._n_refused, 0, now
        return n_refused

    def __repr__(self) -> str:
        return f"<FailedKeys: {len(self._levels)} addresses>"


def _keys_in(fields: Mapping[bytes, bytes]) -> list[bytes]:
    found = []
    scheme, _, token = fields.get(b"authorization", b"").partition(b" ")
    if scheme.lower() == b"bearer":
        found.append(token.strip())
    found.extend(fields[name] for name in (b"x-api-key", b"x-goog-api-key") if name in fields)
    return [key for key in found if MIN_KEY_CHARS <= len(key) <= _MAX_KEY_BYTES]
