"""GET and POST /admin/keys, GET, PATCH and DELETE /admin/keys/{id}, POST /admin/keys/{id}/rotate."""

from collections.abc import Callable
from typing import Any

import msgspec

from stayfast.core.errors import Rejected
from stayfast.core.keys import StoredKey
from stayfast.keys.service import DEFAULT_GRACE_S, MAX_LISTED, KeyChange, KeyService, NewKey
from stayfast.server.backend import ActiveSystem
from stayfast.server.jobs.endpoint import Endpoint, EndpointReply, EndpointRequest
from stayfast.server.jobs.query import check_parameters, parse_whole
from stayfast.wire.request_body import decode_typed

MAX_BODY_BYTES = 64 * 1024
DEFAULT_LISTED = 100
MAX_VALUE_CHARS = 200  # of a parameter
STATIC = "settings:"  # before the name of a key of the settings file; no id begins with it
LOCAL = "local"  # in the audit log: a gateway without keys
_LIST = ("tenant", "after", "limit")


class KeyRotation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a rotation."""

    grace_s: float = DEFAULT_GRACE_S


_NEW = msgspec.json.Decoder(NewKey)
_CHANGE = msgspec.json.Decoder(KeyChange)
_ROTATION = msgspec.json.Decoder(KeyRotation)


class KeyEndpoints:
    """Lists, makes, shows, changes, rotates and revokes keys. Those of the settings file are listed, and never changed."""

    def __init__(self, service: KeyService, current: ActiveSystem, now: Callable[[], float]) -> None:
        """now: Unix seconds."""
        self._service = service
        self._current = current
        self._now = now

    def endpoints(self) -> tuple[Endpoint, ...]:
        """For the server's table."""
        return (Endpoint("GET", "/admin/keys", self.list), Endpoint("POST", "/admin/keys", self.create),
                Endpoint("GET", "/admin/keys/{id}", self.show), Endpoint("PATCH", "/admin/keys/{id}", self.change),
                Endpoint("DELETE", "/admin/keys/{id}", self.revoke),
                Endpoint("POST", "/admin/keys/{id}/rotate", self.rotate))

    async def list(self, request: EndpointRequest) -> EndpointReply:
        """The keys of the settings file, on the first page, then the stored ones, oldest first."""
        request.require_admin()
        query = read_query(request, _LIST)
        limit = parse_whole(query, "limit", DEFAULT_LISTED, MAX_LISTED)
        tenant, after = query.get("tenant"), query.get("after")
        keys = await self._service.list(tenant, after, limit + 1)
        now = self._now()
        static = [_describe_static(name, self._current) for name in self._current.config.keys
                  if tenant in (None, name)] if not after else []
        return _reply({"object": "list", "data": [*static, *(describe_key(key, now) for key in keys[:limit])],
                       "has_more": len(keys) > limit})

    async def create(self, request: EndpointRequest) -> EndpointReply:
        """Make a key. The reply is the only place in which it is shown."""
        request.require_admin()
        new = decode_typed(_NEW, await request.read_body(MAX_BODY_BYTES))
        stored, secret = await self._service.create(new, _actor_of(request))
        return _reply(describe_key(stored, self._now()) | {"key": secret})

    async def show(self, request: EndpointRequest) -> EndpointReply:
        """One key."""
        request.require_admin()
        name = self._static_name(request.parameters["id"])
        if name is not None:
            return _reply(_describe_static(name, self._current))
        return _reply(describe_key(await self._service.find(request.parameters["id"]), self._now()))

    async def change(self, request: EndpointRequest) -> EndpointReply:
        """Change the name, the scopes, the quota or the expiry."""
        key_id = self._stored_id(request)
        change = decode_typed(_CHANGE, await request.read_body(MAX_BODY_BYTES))
        return _reply(describe_key(await self._service.change(key_id, change, _actor_of(request)), self._now()))

    async def rotate(self, request: EndpointRequest) -> EndpointReply:
        """A new key under the same id; the one before stays valid for `grace_s`."""
        key_id = self._stored_id(request)
        body = await request.read_body(MAX_BODY_BYTES)
        rotation = decode_typed(_ROTATION, body) if body else KeyRotation()
        stored, secret = await self._service.rotate(key_id, rotation.grace_s, _actor_of(request))
        return _reply(describe_key(stored, self._now()) | {"key": secret})

    async def revoke(self, request: EndpointRequest) -> EndpointReply:
        """End a key at once."""
        return _reply(describe_key(await self._service.revoke(self._stored_id(request), _actor_of(request)), self._now()))

    def _static_name(self, key_id: str) -> str | None:
        name = key_id.removeprefix(STATIC)
        return name if key_id.startswith(STATIC) and name in self._current.config.keys else None

    def _stored_id(self, request: EndpointRequest) -> str:
        """Raises Rejected: 403, and 409 for a key of the settings file."""
        request.require_admin()
        key_id = request.parameters["id"]
        if self._static_name(key_id) is not None:
            raise Rejected("This key is in the settings file (server.keys), and can be changed there alone.", status=409,
                           code="static_key", param="id")
        return key_id


def describe_key(key: StoredKey, now: float) -> dict[str, Any]:
    """A stored key as JSON, never with the key or its digest."""
    state = "revoked" if key.revoked_at is not None else "live" if key.is_live(now) else "expired"
    return {"object": "key", "id": key.id, "source": "store", "tenant": key.tenant, "name": key.name, "state": state,
            "scopes": list(key.scopes), "quota": dict(key.quota), "created_at": key.created_at,
            "created_by": key.created_by, "expires_at": key.expires_at, "revoked_at": key.revoked_at,
            "last_used_at": key.used_at, "old_key_until": key.old_until if now < key.old_until else None}


def _describe_static(name: str, current: ActiveSystem) -> dict[str, Any]:
    scopes = ["admin", "metrics", "routes:*"] if name in current.config.admins else ["routes:*"]
    return {"object": "key", "id": f"{STATIC}{name}", "source": "settings", "tenant": name, "name": name, "state": "live",
            "scopes": scopes, "quota": {}, "created_at": None, "created_by": "", "expires_at": None, "revoked_at": None,
            "last_used_at": None, "old_key_until": None}


def _actor_of(request: EndpointRequest) -> str:
    return request.caller.actor if request.caller is not None else LOCAL


def read_query(request: EndpointRequest, known: tuple[str, ...]) -> dict[str, str]:
    """The parameters of a query. Raises Rejected for an unknown one, and for an empty or long value."""
    check_parameters(request.query, known)
    for name, value in request.query.items():
        if not 0 < len(value) <= MAX_VALUE_CHARS:
            raise Rejected(f"{name} must be 1 to {MAX_VALUE_CHARS} characters.", param=name)
    return dict(request.query)


def _reply(value: dict[str, Any]) -> EndpointReply:
    return EndpointReply(body=msgspec.json.encode(value))
