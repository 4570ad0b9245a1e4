"""Settings of the server: address, limits, time-outs, authentication."""

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from stayfast.core.setting import SettingDoc, check_bounds
from stayfast.http.server.parser import HttpLimits
from stayfast.wire.request_body import MAX_DEPTH

_TENANT = re.compile(r"[A-Za-z0-9._@-]{1,64}")
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/\sA-Z]+")
_MIB = 1 << 20
REACHED_GRACE_S = 5.0  # a readiness probe every 2 s that must fail once or twice, and time for its effect


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """TLS on `host` and `port`; HTTP/1.1 alone is offered. SIGHUP reads the files again."""

    cert_file: Annotated[str, SettingDoc("PEM file of the certificate and its chain.")]
    key_file: Annotated[str | None, SettingDoc(
        "PEM file of its key, without a password. null: it is in `cert_file`.")] = None
    client_ca_file: Annotated[str | None, SettingDoc(
        "PEM file of authorities: clients need a certificate of one of them, in addition to a key.")] = None
    min_version: Annotated[Literal["1.2", "1.3"], SettingDoc("Lowest TLS version.")] = "1.2"


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Sizes in bytes, durations in seconds."""

    host: Annotated[str, SettingDoc(
        "Listening address. For other machines: 0.0.0.0, or :: for IPv6 and IPv4; both need keys.")] = "127.0.0.1"
    port: Annotated[int, SettingDoc("TCP port; 0: any free one.", minimum=0, maximum=65_535)] = 8090
    tls: Annotated[TlsConfig | None, SettingDoc("TLS for clients. null: plain HTTP.")] = None
    unix_socket: Annotated[str, SettingDoc(
        "Path of a Unix socket to listen on as well. Empty: none.", pattern=r"|/[!-~]{1,100}", form="an absolute path of at "
        "most 100 visible ASCII characters")] = ""
    unix_socket_mode: Annotated[str, SettingDoc(
        "Its permissions, in octal.", pattern=r"0?[0-7]{3}", form="three octal digits, like 660")] = "660"
    max_body_bytes: Annotated[int, SettingDoc(
        "Largest request body; else 413.", minimum=1024, maximum=1024 * _MIB)] = 32 * _MIB
    # common servers take 8 to 80 KiB
    max_head_bytes: Annotated[int, SettingDoc(
        "Largest request line with headers; else 431.", minimum=1024, maximum=_MIB)] = 64 * 1024
    max_headers: Annotated[int, SettingDoc("Most headers; else 431.", minimum=8, maximum=1000)] = 100
    max_depth: Annotated[int, SettingDoc("Deepest JSON nesting; else 400.", minimum=8, maximum=MAX_DEPTH)] = 64
    max_connections: Annotated[int, SettingDoc(
        "Most client connections, at most half of the file descriptors.", minimum=1, maximum=1_000_000)] = 10_000
    max_pending_connections: Annotated[int, SettingDoc(
        "Most connections without an accepted request; beyond it the oldest close.", minimum=1, maximum=1_000_000)] = 4096
    # a proxy has one address and hundreds of connections, but those have had requests and do not count
    max_pending_per_address: Annotated[int, SettingDoc(
        "The same per address (IPv6: per /64); 0: unlimited.", minimum=0, maximum=1_000_000)] = 512
    # the largest whole answer that is read from an upstream has as many
    max_buffered_bytes: Annotated[int, SettingDoc(
        "Memory for buffered whole answers beyond 64 KiB each; else 503.",
        minimum=_MIB, maximum=1024 * 1024 * _MIB)] = 256 * _MIB
    head_timeout_s: Annotated[float, SettingDoc(
        "First to last byte of a request head; else 408.", minimum=0.01, maximum=600)] = 10.0
    # from the request's first byte
    body_timeout_s: Annotated[float, SettingDoc(
        "Time for a body, plus an allowance for slow lines; else 408.", minimum=0.01, maximum=3600)] = 30.0
    # longer than the 60 s of load balancers
    idle_timeout_s: Annotated[float, SettingDoc("Time before an idle connection closes.", minimum=0.01, maximum=3600)] = 75.0
    write_timeout_s: Annotated[float, SettingDoc(
        "Time after which a client that reads nothing is disconnected.", minimum=0.01, maximum=3600)] = 60.0
    sse_keepalive_s: Annotated[float, SettingDoc(
        "Silence before a stream's first token after which a comment is sent; 0: none.", minimum=0, maximum=600)] = 15.0
    drain_grace_s: Annotated[float | None, SettingDoc(
        "Time after SIGTERM in which requests are served while /readyz fails. null: 5; 0 on loopback.",
        minimum=0, maximum=600)] = None
    drain_s: Annotated[float, SettingDoc(
        "Time for running answers to finish at shutdown.", minimum=0, maximum=86_400)] = 30.0
    auth: Annotated[Literal["auto", "off", "required"], SettingDoc(
        "auto: keys are required if there are any; otherwise only loopback addresses are served. off: no keys. required: "
        "always.")] = "auto"
    keys: Annotated[Mapping[str, str], SettingDoc(
        "Client keys: tenant name and key digest, made by `stayfast key`.",
        pattern=r"sha256:[0-9a-f]{64}", form="sha256: and 64 hex digits (`stayfast key` makes one)", is_secret=True)
    ] = field(default_factory=dict, repr=False)
    admins: Annotated[tuple[str, ...], SettingDoc(
        "Names in `keys` that may see all requests, /metrics, /debug/state and the caches; others see their own requests."
    )] = ()
    metrics_access: Annotated[Literal["admin", "key", "open"], SettingDoc(
        "Access to /metrics. admin: `admins`. key: any client key. open: no key.")] = "admin"
    failed_keys_per_minute: Annotated[int, SettingDoc(
        "Requests per minute and address with a wrong key before 429, per worker. Valid keys are not affected.",
        minimum=1, maximum=1_000_000)] = 30

    ui: Annotated[Literal["on", "off"], SettingDoc(
        "The page at /ui: open on loopback without keys, else by an admin key.")] = "on"
    websocket_origins: Annotated[tuple[str, ...], SettingDoc(
        "Origins of web pages that may open WebSockets, for example https://app.example.com; `*`: any. Pages of the "
        "gateway's own host, and programs, always may.")] = ()

    def __post_init__(self) -> None:
        check_bounds(self)
        for origin in self.websocket_origins:
            if origin != "*" and not _ORIGIN.fullmatch(origin):
                raise ValueError(f"websocket_origins: {origin!r} is not an origin: scheme and host, in lower case, such as "
                                 "https://app.example.com or http://localhost:3000, or *")
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
    def has_page(self) -> bool:
        return self.ui == "on"

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
