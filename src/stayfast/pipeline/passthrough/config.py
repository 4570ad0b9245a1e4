"""Settings of the pass-through."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from re import fullmatch
from types import MappingProxyType
from typing import Annotated

from stayfast.core.setting import SettingDoc, check_bounds

_PREFIX = r"/v1(/[a-z0-9_-]+)+"


@dataclass(frozen=True, slots=True)
class PassThroughConfig:
    """Which requests are passed on, and their limits. Off without `upstream` and `paths`."""

    SCALAR_SHORTHAND = "upstream"  # of a text in place of this section

    upstream: Annotated[str | None, SettingDoc(
        "Upstream of everything under /v1 that the gateway does not serve and `paths` does not name. null: 404.")] = None
    paths: Annotated[Mapping[str, str], SettingDoc(
        "Upstreams by path prefix, such as /v1/images; the longest wins. /v1/files and /v1/batches also replace the "
        "gateway's own.")] = field(default_factory=lambda: MappingProxyType({}))
    # images and transcriptions of long recordings take minutes; that of the OpenAI SDK
    total_s: Annotated[float, SettingDoc("Accept to last byte of one request.", more_than=0, maximum=86_400)] = 600.0
    idle_s: Annotated[float, SettingDoc(
        "Between two parts of a response's body.", more_than=0, maximum=86_400)] = 60.0
    connect_s: Annotated[float, SettingDoc("TCP and TLS.", more_than=0, maximum=600)] = 5.0
    # OpenAI takes files of 512 MB
    max_body_bytes: Annotated[int, SettingDoc(
        "Largest request body; else 413. It is never held in memory.", minimum=1024, maximum=1 << 40)] = 1 << 30
    # OpenAI ends a realtime session after 60 minutes
    socket_total_s: Annotated[float, SettingDoc("Life of one WebSocket.", more_than=0, maximum=86_400)] = 3600.0
    socket_idle_s: Annotated[float, SettingDoc(
        "Time without a message in either direction, after which a WebSocket closes.", more_than=0, maximum=86_400)] = 900.0

    def __post_init__(self) -> None:
        check_bounds(self)
        for prefix in self.paths:
            if not fullmatch(_PREFIX, prefix):
                raise ValueError(f"paths: {prefix!r} is not a prefix: /v1/ and segments of lower-case letters, digits, _ "
                                 "and -, such as /v1/images")

    @property
    def is_on(self) -> bool:
        return self.upstream is not None or bool(self.paths)

    @property
    def upstreams(self) -> frozenset[str]:
        """The names of all upstreams that requests are passed to."""
        return frozenset((*self.paths.values(), *((self.upstream,) if self.upstream is not None else ())))
