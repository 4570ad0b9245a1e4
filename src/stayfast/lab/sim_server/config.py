"""Settings of the simulator's listener. What a provider does is `lab.simulated.ProviderConfig`."""

import ipaddress
from dataclasses import dataclass, field
from re import fullmatch

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class ListenConfig:
    """Where the simulator listens, and what it takes. Sizes in bytes.

    `key`: demanded of every client, 401 without it; None: all keys are good, and none. `control_anywhere`: the control
    endpoints answer although the address can be reached from other machines.
    """

    host: str = "127.0.0.1"
    port: int = 8100
    key: str | None = field(default=None, repr=False)
    control_anywhere: bool = False
    max_body_bytes: int = 32 * _MIB
    n_remembered: int = 1000  # requests that /_sim/requests can tell of

    def __post_init__(self) -> None:
        for name, low, high in (("port", 0, 65_535), ("max_body_bytes", 1024, 1024 * _MIB), ("n_remembered", 0, 1_000_000)):
            value = getattr(self, name)
            if not low <= value <= high:
                raise ValueError(f"{name} must be between {low} and {high}, not {value}")
        if self.key is not None and not fullmatch(r"[!-~]{1,1000}", self.key):
            raise ValueError("key must be visible ASCII characters")

    @property
    def has_control(self) -> bool:
        """Whether the control endpoints answer."""
        return self.control_anywhere or _is_loopback(self.host)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
