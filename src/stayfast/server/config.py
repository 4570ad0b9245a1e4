"""Settings of the server: address, limits, time-outs, authentication."""

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from stayfast.core.setting import SettingDoc, check_bounds
from stayfast.http.server.parser import HttpLimits
from stayfast.wire.json_input import MAX_DEPTH

_TENANT = re.compile(r"[A-Za-z0-9._@-]{1,64}")
_MIB = 1 << 20
REACHED_GRACE_S = 5.0  # a readiness probe every 2 s that must fail once or twice, and time for its effect


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Sizes in bytes, durations in seconds."""

    host: Annotated[str, SettingDoc(
        "Address to listen on. 0.0.0.0, or :: (IPv6 and IPv4), makes it reachable from other machines, which needs keys."
        )] = "127.0.0.1"
    port: Annotated[int, SettingDoc("TCP port; 0: a free one.", minimum=0, maximum=65_535)] = 8090
    max_body_bytes: Annotated[int, SettingDoc(
        "Largest request body; larger ones get 413.", minimum=1024, maximum=1024 * _MIB)] = 32 * _MIB
    # common servers take 8 to 80 KiB
    max_head_bytes: Annotated[int, SettingDoc(
        "Largest request line with headers; larger ones get 431.", minimum=1024, maximum=_MIB)] = 64 * 1024
    max_headers: Annotated[int, SettingDoc(
        "Largest number of headers of a request; more get 431.", minimum=8, maximum=1000)] = 100
    max_depth: Annotated[int, SettingDoc(
        "Deepest nesting of a JSON body; deeper ones get 400.", minimum=8, maximum=MAX_DEPTH)] = 64
    max_connections: Annotated[int, SettingDoc(
        "Largest number of client connections; never more than half of the file descriptors.",
        minimum=1, maximum=1_000_000)] = 10_000
    max_pending_connections: Annotated[int, SettingDoc(
        "Largest number of connections without an accepted request yet; above it the oldest are closed.",
        minimum=1, maximum=1_000_000)] = 4096
    # a proxy has one address and hundreds of connections, but those have had requests and do not count
    max_pending_per_address: Annotated[int, SettingDoc(
        "Largest number of these from one address (of IPv6: one /64); 0: no limit.", minimum=0, maximum=1_000_000)] = 512
    # the largest whole answer that is read from an upstream has as many
    max_buffered_bytes: Annotated[int, SettingDoc(
        "Memory for whole answers, from the upstream's first byte to the client's last; above it requests get 503. "
        "The first 64 KiB of each answer do not count.", minimum=_MIB, maximum=1024 * 1024 * _MIB)] = 256 * _MIB
    head_timeout_s: Annotated[float, SettingDoc(
        "Time from the first byte of a request's head to its last; then 408.", minimum=0.01, maximum=600)] = 10.0
    # from the request's first byte
    body_timeout_s: Annotated[float, SettingDoc(
        "Time for a request's body, in addition to its size at 16 KiB/s; then 408.", minimum=0.01, maximum=3600)] = 30.0
    # longer than the 60 s of load balancers
    idle_timeout_s: Annotated[float, SettingDoc(
        "How long an idle connection stays open.", minimum=0.01, maximum=3600)] = 75.0
    write_timeout_s: Annotated[float, SettingDoc(
        "A client that reads no byte for this long is disconnected.", minimum=0.01, maximum=3600)] = 60.0
    sse_keepalive_s: Annotated[float, SettingDoc(
        "Interval of SSE comments before the first token of a stream; 0: no comments.", minimum=0, maximum=600)] = 15.0
    drain_grace_s: Annotated[float | None, SettingDoc(
        "After SIGTERM, how long new requests are still served while /readyz fails, so that load balancers notice. null: 0 "
        "on a loopback address, else 5.", minimum=0, maximum=600)] = None
    drain_s: Annotated[float, SettingDoc(
        "After that, how long running answers may take to finish.", minimum=0, maximum=86_400)] = 30.0
    auth: Annotated[Literal["auto", "off", "required"], SettingDoc(
        "auto: requests need a key if `keys` has any; without keys only loopback addresses are served. off: no request "
        "needs a key. required: all do.")] = "auto"
    keys: Annotated[Mapping[str, str], SettingDoc(
        "Client keys: tenant name to the digest of its key; `stayfast key` makes both.",
        pattern=r"sha256:[0-9a-f]{64}", form="sha256: and 64 hex digits (`stayfast key` makes one)",
        is_secret=True)] = field(default_factory=dict, repr=False)
    admins: Annotated[tuple[str, ...], SettingDoc(
        "Tenants in `keys` that may read /metrics and /debug/state, use /admin/cache, and see all tenants' requests at "
        "/admin/requests; others see their own.")] = ()
    metrics_access: Annotated[Literal["admin", "key", "open"], SettingDoc(
        "Access to /metrics, which covers all tenants and routes. admin: keys of `admins`. key: any valid key. "
        "open: no key. Without authentication it is always open.")] = "admin"
    failed_keys_per_minute: Annotated[int, SettingDoc(
        "Requests without a valid key from one address that get 401; further ones get 429 with `retry-after`. Valid keys "
        "from the same address are always served. In each worker.", minimum=1, maximum=1_000_000)] = 30

    def __post_init__(self) -> None:
        check_bounds(self)
        for tenant in self.keys:
            if not _TENANT.fullmatch(tenant):
                raise ValueError(f"keys: {tenant!r} is not a valid name: 1 to 64 letters, digits, '.', '_', '@', '-'")
        for tenant in self.admins:
            if tenant not in self.keys:
                raise ValueError(f"admins: {tenant!r} is not a name in keys")
        if self.auth == "required" and not self.keys:
            raise ValueError("auth is required, but keys is empty: add a key (`stayfast key` makes one)")

    @property
    def demands_key(self) -> bool:
        return self.auth == "required" or (self.auth == "auto" and bool(self.keys))

    @property
    def grace_s(self) -> float:
        """How long new requests are served after SIGTERM."""
        if self.drain_grace_s is not None:
            return self.drain_grace_s
        return 0.0 if is_loopback(self.host) else REACHED_GRACE_S

    def http_limits(self) -> HttpLimits:
        """The settings of the HTTP layer."""
        return HttpLimits(
            max_body_bytes=self.max_body_bytes, max_head_bytes=self.max_head_bytes, max_headers=self.max_headers,
            max_connections=self.max_connections, max_pending_connections=self.max_pending_connections,
            max_pending_per_address=self.max_pending_per_address, head_timeout_s=self.head_timeout_s,
            body_timeout_s=self.body_timeout_s, idle_timeout_s=self.idle_timeout_s, write_timeout_s=self.write_timeout_s,
        )


def is_loopback(host: str) -> bool:
    """Whether `host` is reachable from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_exposure(config: ServerConfig) -> None:
    """Raises ValueError if other machines could reach a gateway without keys."""
    if config.auth == "auto" and not config.keys and not is_loopback(config.host):
        raise ValueError(f"host {config.host} is reachable from other machines, but there are no keys: add one to "
                         "server.keys (`stayfast key` makes one), or set auth: off")
