"""Who is asking: a key becomes a tenant's name. Keys are kept as SHA-256 digests only.

Keys are long random strings, so a fast hash is enough: there is no dictionary to try. The digest is looked up in a table
and then compared in constant time; the look-up's timing tells about digests only, which say nothing about keys.
"""

import base64
import hashlib
import hmac
from collections.abc import Mapping

from stayfast.core.errors import Rejected
from stayfast.server.config import ServerConfig

MIN_KEY_CHARS = 16
_MAX_KEY_BYTES = 1024
_NOBODY = "0" * 64


def new_key(entropy: bytes) -> tuple[str, str]:
    """A key to hand out once, and the digest to keep, from at least 16 bytes of a cryptographic source."""
    if len(entropy) < 16:
        raise ValueError(f"a key needs at least 16 bytes of entropy, not {len(entropy)}")
    key = "sf-" + base64.urlsafe_b64encode(entropy).decode().rstrip("=")
    return key, digest(key)


def digest(key: str) -> str:
    """How a key is kept: `sha256:<hex>`. Raises ValueError for one that is short enough to guess."""
    if len(key) < MIN_KEY_CHARS:
        raise ValueError(f"a key needs at least {MIN_KEY_CHARS} characters, not {len(key)}")
    return "sha256:" + hashlib.sha256(key.encode()).hexdigest()


class Keys:
    """The keys of one configuration. Immutable."""

    __slots__ = ("_is_on", "_tenants")

    def __init__(self, config: ServerConfig) -> None:
        self._is_on = config.demands_key
        self._tenants = {kept.removeprefix("sha256:"): tenant for tenant, kept in config.keys.items()}

    def tenant(self, fields: Mapping[bytes, bytes]) -> str | None:
        """Whose request it is; None where nobody is asked. Raises Rejected (401; 403 for a foreign web page)."""
        if not self._is_on:
            if fields.get(b"sec-fetch-site") == b"cross-site":
                raise Rejected("A web page of another site may not use a gateway that asks for no key.",
                               status=403, code="cross_site")
            return None
        for key in _presented(fields):
            hexdigest = hashlib.sha256(key).hexdigest()
            known = hexdigest if hexdigest in self._tenants else _NOBODY
            if hmac.compare_digest(hexdigest, known):
                return self._tenants[known]
        is_any = any(name in fields for name in (b"authorization", b"x-api-key", b"x-goog-api-key"))
        message = ("Incorrect API key provided." if is_any else
                   "No API key provided: send it as `Authorization: Bearer KEY` or `x-api-key: KEY`.")
        raise Rejected(message, status=401, code="invalid_api_key")


def _presented(fields: Mapping[bytes, bytes]) -> list[bytes]:
    found = []
    scheme, _, token = fields.get(b"authorization", b"").partition(b" ")
    if scheme.lower() == b"bearer":
        found.append(token.strip())
    found.extend(fields[name] for name in (b"x-api-key", b"x-goog-api-key") if name in fields)
    return [key for key in found if MIN_KEY_CHARS <= len(key) <= _MAX_KEY_BYTES]
