"""The frame of the endpoints of durable work: which function answers a path, what it gets, and what it returns.

An endpoint is a method, a path template (`/v1/batches/{id}/cancel`) and an async function from `EndpointRequest` to
`EndpointReply`. It raises StayfastError, which is rendered in the dialect of the path.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from msgspec import Struct

from stayfast.core.errors import Rejected
from stayfast.keys.principal import Principal, admins_only, is_admin
from stayfast.server.job_paths import find_template, strip_prefix

JSON = "application/json"


class BodyReader(Protocol):
    """The body of a request."""

    async def read(self) -> bytes:
        """The next part; empty at the end."""


class EndpointRequest(Struct, frozen=True):
    """One request. header names are in lower case."""

    method: str
    path: str
    parameters: Mapping[str, str]  # of the template
    query: Mapping[str, str]  # the last value of each name
    headers: Mapping[str, str]
    tenant: str | None
    caller: Principal | None  # None: a gateway without keys
    request_id: str
    accepted_at: float  # monotonic seconds
    body: BodyReader

    @property
    def key_id(self) -> str:
        """Of a stored key; empty for any other."""
        return self.caller.key_id if self.caller is not None else ""

    def require_admin(self) -> None:
        """Raises Rejected (403)."""
        if not is_admin(self.caller):
            raise admins_only()

    async def read_body(self, max_bytes: int) -> bytes:
        """The whole body. Raises Rejected (413)."""
        parts, n_bytes = [], 0
        while part := await self.body.read():
            n_bytes += len(part)
            if n_bytes > max_bytes:
                raise Rejected(f"The request's body is larger than {max_bytes} bytes.", status=413, code="body_too_large")
            parts.append(part)
        return b"".join(parts)


class EndpointReply(Struct, frozen=True):
    """A response: `body`, or `parts` for one that is streamed."""

    status: int = 200
    body: bytes = b""
    content_type: str = JSON
    headers: tuple[tuple[str, str], ...] = ()
    parts: AsyncIterator[bytes] | None = None
    n_bytes: int | None = None  # of `parts`, if known


Handler = Callable[[EndpointRequest], Awaitable[EndpointReply]]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """max_body_bytes: of its request; the body is read in parts if it may be larger than `server.max_body_bytes`."""

    method: str
    template: str
    handler: Handler
    max_body_bytes: int | None = None  # None: server.max_body_bytes


@dataclass(frozen=True, slots=True)
class EndpointTable:
    """All endpoints, by path. Their templates are those of `server.job_paths`."""

    endpoints: tuple[Endpoint, ...]
    _by_template: dict[str, dict[str, Endpoint]] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        for endpoint in self.endpoints:
            self._by_template.setdefault(endpoint.template, {})[endpoint.method] = endpoint

    def find(self, path: str) -> tuple[Mapping[str, Endpoint], Mapping[str, str]] | None:
        """The endpoints of a path by method, and its parameters, still percent-encoded."""
        template = find_template(path)
        if template is None or template not in self._by_template:
            return None
        parts = zip(template.split("/"), strip_prefix(path).split("/"), strict=True)
        return self._by_template[template], {name[1:-1]: part for name, part in parts if name.startswith("{")}
