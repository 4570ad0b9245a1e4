"""Settings of the edge: where it listens, what it accepts, how long it waits, and who may come in."""

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from stayfast.http.server.parser import HttpLimits
from stayfast.wire.json_input import MAX_DEPTH

_MODES = ("auto", "off", "required")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_TENANT = re.compile(r"[A-Za-z0-9._@-]{1,64}")
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Limits and time-outs of the edge. Sizes in bytes, durations in seconds.

    `auth` is `required` (keys must be given), `off`, or `auto`: keys are demanded wherever there are any, and without any
    the edge listens on loopback addresses only. `keys` maps a tenant's name to `sha256:<hex>` of its key.
    """

    host: str = "127.0.0.1"
    port: int = 8090
    max_body_bytes: int = 32 * _MIB  # a prompt with a few images; 413 above it
    max_head_bytes: int = 64 * 1024  # request line and headers, 431 above it; common servers take 8 to 80 KiB
    max_headers: int = 100
    max_depth: int = 64  # nesting of a JSON body
    max_connections: int = 10_000
    head_timeout_s: float = 10.0  # from a head's first byte to its last: 408 after it
    body_timeout_s: float = 30.0  # from the request's first byte, beside what a body takes at 16 KiB/s
    idle_timeout_s: float = 75.0  # keep-alive; longer than the 60 s that balancers keep theirs
    write_stall_s: float = 60.0  # a client that takes nothing for so long is cut off
    keepalive_s: float = 15.0  # silence before the first token that a comment ends; 0: no comments
    drain_grace_s: float = 0.5  # how long the listener stays open, answering 503, while balancers look away
    drain_s: float = 30.0  # what running answers get to finish
    auth: str = "auto"
    keys: Mapping[str, str] = field(default_factory=dict, repr=False)
    admins: tuple[str, ...] = ()  # tenants that may look at everybody's recent requests; all others at their own
    metrics_open: bool = False  # /metrics without a key

    def __post_init__(self) -> None:
        self._check_ranges()
        if self.auth not in _MODES:
            raise ValueError(f"auth must be one of {', '.join(_MODES)}, not {self.auth!r}")
        for tenant, digest in self.keys.items():
            if not _TENANT.fullmatch(tenant):
                raise ValueError(f"keys: {tenant!r} is no tenant name: 1 to 64 of letters, digits, '.', '_', '@', '-'")
            if not _DIGEST.fullmatch(digest):
                raise ValueError(f"keys.{tenant} must be sha256: and 64 hex digits (`stayfast key` makes one)")
        for tenant in self.admins:
            if tenant not in self.keys:
                raise ValueError(f"admins: {tenant!r} is none of the names in keys")
        if self.auth == "required" and not self.keys:
            raise ValueError("auth is required, but keys is empty: add one (`stayfast key` makes one)")

    def _check_ranges(self) -> None:
        for name, low, high in (
            ("port", 0, 65_535), ("max_body_bytes", 1024, 1024 * _MIB), ("max_head_bytes", 1024, _MIB),
            ("max_headers", 8, 1000), ("max_depth", 8, MAX_DEPTH), ("max_connections", 1, 1_000_000),
            ("head_timeout_s", 0.01, 600), ("body_timeout_s", 0.01, 3600), ("idle_timeout_s", 0.01, 3600),
            ("write_stall_s", 0.01, 3600), ("keepalive_s", 0, 600), ("drain_grace_s", 0, 600), ("drain_s", 0, 86_400),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                raise ValueError(f"{name} must be between {low} and {high}, not {value}")

    @property
    def demands_key(self) -> bool:
        """Whether a request must carry a key."""
        return self.auth == "required" or (self.auth == "auto" and bool(self.keys))

    def http_limits(self) -> HttpLimits:
        """What of it concerns HTTP alone."""
        return HttpLimits(
            max_body_bytes=self.max_body_bytes, max_head_bytes=self.max_head_bytes, max_headers=self.max_headers,
            max_connections=self.max_connections, head_timeout_s=self.head_timeout_s, body_timeout_s=self.body_timeout_s,
            idle_timeout_s=self.idle_timeout_s, write_stall_s=self.write_stall_s,
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
