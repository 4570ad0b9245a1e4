"""Settings of the edge: where it listens, what it accepts, how long it waits, and who may come in."""

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
REACHED_GRACE_S = 5.0  # a readiness probe of 2 s that must fail once or twice, and the news of it


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Limits and time-outs of the edge. Sizes in bytes, durations in seconds."""

    host: Annotated[str, SettingDoc(
        "Address to listen on. Other machines reach the gateway on 0.0.0.0, or on :: over IPv6 and IPv4; both need keys."
        )] = "127.0.0.1"
    port: Annotated[int, SettingDoc("TCP port; 0 takes a free one.", minimum=0, maximum=65_535)] = 8090
    max_body_bytes: Annotated[int, SettingDoc(
        "Largest request body; 413 above it.", minimum=1024, maximum=1024 * _MIB)] = 32 * _MIB  # a prompt with a few images
    # common servers take 8 to 80 KiB
    max_head_bytes: Annotated[int, SettingDoc(
        "Largest request line with headers; 431 above it.", minimum=1024, maximum=_MIB)] = 64 * 1024
    max_headers: Annotated[int, SettingDoc("Most headers of a request; 431 above it.", minimum=8, maximum=1000)] = 100
    max_depth: Annotated[int, SettingDoc("Deepest nesting of a JSON body; 400 above it.", minimum=8, maximum=MAX_DEPTH)] = 64
    max_connections: Annotated[int, SettingDoc(
        "Most client connections at a time; never more than half of the file descriptors.",
        minimum=1, maximum=1_000_000)] = 10_000
    max_pending_connections: Annotated[int, SettingDoc(
        "Most connections on which no request was accepted yet; above it the oldest are closed.",
        minimum=1, maximum=1_000_000)] = 4096
    # a proxy is one address, and keeps hundreds open: but only after requests, and those do not count
    max_pending_per_address: Annotated[int, SettingDoc(
        "Most of these from one address (of IPv6: one /64); 0: any number.", minimum=0, maximum=1_000_000)] = 512
    # as large as the largest whole answer that is read of an upstream
    max_buffered_bytes: Annotated[int, SettingDoc(
        "Most bytes of whole answers that are held at a time, from the upstream's first to the client's last; 503 above it. "
        "The first 64 KiB of each do not count.", minimum=_MIB, maximum=1024 * 1024 * _MIB)] = 256 * _MIB
    head_timeout_s: Annotated[float, SettingDoc(
        "From a head's first byte to its last; 408 after it.", minimum=0.01, maximum=600)] = 10.0
    # from the request's first byte; a slow line has besides what the body takes at 16 KiB/s
    body_timeout_s: Annotated[float, SettingDoc(
        "For a request's body, beside what a slow line needs; 408 after it.", minimum=0.01, maximum=3600)] = 30.0
    # longer than the 60 s that balancers keep theirs
    idle_timeout_s: Annotated[float, SettingDoc(
        "How long a connection is kept without a request.", minimum=0.01, maximum=3600)] = 75.0
    write_timeout_s: Annotated[float, SettingDoc(
        "A client that takes no byte for so long is cut off.", minimum=0.01, maximum=3600)] = 60.0
    sse_keepalive_s: Annotated[float, SettingDoc(
        "Silence before the first token of a stream that a comment ends; 0: no comments.", minimum=0, maximum=600)] = 15.0
    drain_grace_s: Annotated[float | None, SettingDoc(
        "After SIGTERM, how long new requests are still served while /readyz fails and load balancers look away. null: 5 "
        "where other machines reach the gateway, 0 on a loopback address.", minimum=0, maximum=600)] = None
    drain_s: Annotated[float, SettingDoc(
        "At the stop, how long running answers may take to finish.", minimum=0, maximum=86_400)] = 30.0
    auth: Annotated[Literal["auto", "off", "required"], SettingDoc(
        "auto: keys are asked for wherever there are any, and without any only loopback addresses are served. off: nobody "
        "is asked. required: everybody is.")] = "auto"
    keys: Annotated[Mapping[str, str], SettingDoc(
        "Client keys: a tenant's name and the digest of its key; `stayfast key` makes both.",
        pattern=r"sha256:[0-9a-f]{64}", form="sha256: and 64 hex digits (`stayfast key` makes one)",
        is_secret=True)] = field(default_factory=dict, repr=False)
    admins: Annotated[tuple[str, ...], SettingDoc(
        "Names in `keys` that may see everybody's requests at /admin/requests, /metrics, /debug/state and the caches; "
        "others see their own requests.")] = ()
    metrics_access: Annotated[Literal["admin", "key", "open"], SettingDoc(
        "Who may read /metrics, which tells of all tenants and routes. admin: keys named in `admins`. key: any client's. "
        "open: everybody, without a key. Where no keys are asked for it is open.")] = "admin"
    failed_keys_per_minute: Annotated[int, SettingDoc(
        "Requests without a valid key from one address that are answered 401; beyond it 429, with `retry-after`. Valid keys "
        "from there are served all the same. In each worker.", minimum=1, maximum=1_000_000)] = 30

    def __post_init__(self) -> None:
        check_bounds(self)
        for tenant in self.keys:
            if not _TENANT.fullmatch(tenant):
                raise ValueError(f"keys: {tenant!r} is no tenant name: 1 to 64 of letters, digits, '.', '_', '@', '-'")
        for tenant in self.admins:
            if tenant not in self.keys:
                raise ValueError(f"admins: {tenant!r} is none of the names in keys")
        if self.auth == "required" and not self.keys:
            raise ValueError("auth is required, but keys is empty: add one (`stayfast key` makes one)")

    @property
    def demands_key(self) -> bool:
        """Whether a request must carry a key."""
        return self.auth == "required" or (self.auth == "auto" and bool(self.keys))

    @property
    def grace_s(self) -> float:
        """How long new requests are served after SIGTERM."""
        if self.drain_grace_s is not None:
            return self.drain_grace_s
        return 0.0 if is_loopback(self.host) else REACHED_GRACE_S

    def http_limits(self) -> HttpLimits:
        """What of it concerns HTTP alone."""
        return HttpLimits(
            max_body_bytes=self.max_body_bytes, max_head_bytes=self.max_head_bytes, max_headers=self.max_headers,
            max_connections=self.max_connections, max_pending_connections=self.max_pending_connections,
            max_pending_per_address=self.max_pending_per_address, head_timeout_s=self.head_timeout_s,
            body_timeout_s=self.body_timeout_s, idle_timeout_s=self.idle_timeout_s, write_timeout_s=self.write_timeout_s,
        )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_exposure(config: ServerConfig) -> None:
    """Refuse to listen where strangers can reach a gateway that asks nobody for a key. Raises ValueError."""
    if config.auth == "auto" and not config.keys and not is_loopback(config.host):
        raise ValueError(f"host {config.host} can be reached from other machines, and there are no keys: add one to "
                         "server.keys (`stayfast key` makes one), or say auth: off")
