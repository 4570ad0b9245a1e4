"""What a settings file says of places where answers are kept."""

from dataclasses import dataclass, field
from re import fullmatch
from typing import Annotated, Literal

from stayfast.settings.about import About
from stayfast.settings.declare import check_bounds
from stayfast.settings.secret import Secret
from stayfast.stores.shared import SharedConfig

_WHO = r"([^\s/?#@]*@)?"  # a password with / or @ in it is written %2F or %40
REDIS_URL = rf"rediss?://{_WHO}([\w.-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{{1,5}})?(/[0-9]{{0,5}})?|unix://{_WHO}/[^\s?#@]+(\?db=[0-9]{{1,5}})?"
_SHARED = About("How it is asked.", is_inline=True)
_MAX_BYTES = 1 << 40


@dataclass(frozen=True, slots=True)
class MemoryStoreSettings:
    """Memory of each worker, for several routes together."""

    kind: Annotated[Literal["memory"], About("Memory of each worker, for several routes together.")] = "memory"
    max_bytes: Annotated[int, About("The memory for answers, in each worker.", minimum=1024, maximum=_MAX_BYTES)] = 64 << 20

    def __post_init__(self) -> None:
        check_bounds(self)


@dataclass(frozen=True, slots=True)
class SqliteStoreSettings:
    """A file, for all workers of this machine; it outlives them."""

    kind: Annotated[Literal["sqlite"], About("A file, for all workers of this machine; it outlives them.")]
    path: Annotated[str, About("The file; it is made where it is not there, in a folder that is.")]
    max_bytes: Annotated[int, About("What its answers may take up. The file does not become smaller.", minimum=1 << 16,
                                    maximum=_MAX_BYTES)] = 1 << 30
    shared: Annotated[SharedConfig, _SHARED] = field(default_factory=SharedConfig)

    def __post_init__(self) -> None:
        check_bounds(self)
        if not self.path:
            raise ValueError("path must name a file")


@dataclass(frozen=True, slots=True)
class RedisStoreSettings:
    """A Redis or Valkey server, for all gateways that name it."""

    kind: Annotated[Literal["redis"], About(
        "A Redis or Valkey server, for all gateways that name it; needs pip install '.[redis]' in Stayfast's checkout.")]
    url: Annotated[Secret, About("Where it is, like redis://:password@host:6379/0, rediss:// for TLS, or unix:///path?db=0.")]
    prefix: Annotated[str, About("What the names of its keys begin with.", pattern=r"[A-Za-z0-9_.{}-]{1,64}",
                                 form="letters, digits and _ . - { }")] = "stayfast"
    shared: Annotated[SharedConfig, _SHARED] = field(default_factory=SharedConfig)

    def __post_init__(self) -> None:
        check_bounds(self)
        if not fullmatch(REDIS_URL, self.url.reveal()):
            raise ValueError("url must be like redis://user:password@host:6379/0, rediss://host or unix:///path?db=0, with "
                             "/ and @ of a password as %2F and %40")


StoreSettings = MemoryStoreSettings | SqliteStoreSettings | RedisStoreSettings
