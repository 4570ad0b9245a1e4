"""What a settings file says of those who can answer, and of places where answers are kept."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from re import fullmatch
from types import MappingProxyType
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from stayfast.core.clock import Clock
from stayfast.core.setting import Secret, SettingDoc, check_bounds
from stayfast.core.types import Api
from stayfast.engine.config import EngineConfig
from stayfast.http.client.client import split_base_url
from stayfast.policy.admission.price import Prices
from stayfast.policy.resilience.breaker import BreakerConfig
from stayfast.policy.resilience.limits import LimitConfig
from stayfast.stores.remote_store import SharedConfig
from stayfast.upstreams.base import Upstream as UpstreamProtocol

PROVIDERS: Mapping[str, str] = {"openai": "https://api.openai.com/v1", "anthropic": "https://api.anthropic.com/v1"}
NATIVE_APIS: Mapping[str, frozenset[Api]] = {
    "openai": frozenset({Api.CHAT, Api.COMPLETIONS, Api.EMBEDDINGS, Api.RESPONSES}),
    "anthropic": frozenset({Api.MESSAGES, Api.COUNT_TOKENS}),
}
_ENDPOINTS = ("/chat/completions", "/completions", "/embeddings", "/responses", "/messages/count_tokens", "/messages")
URL = r"|https?://[^\s/?#@]+(/[^\s?#]*)?"
PROBE = SettingDoc("One token at start-up (and while it has never answered) tells whether it works; readiness waits for one "
              "such answer.")
MODELS = SettingDoc("Names of models here: what the client or the route calls it, and what this upstream calls it.")
LIMIT = SettingDoc("How many requests it may have at a time; what is unset comes from defaults.limit.")
BREAKER = SettingDoc("When it is left alone; what is unset comes from defaults.breaker.")
PRICES = SettingDoc('What tokens cost here, by the model\'s name here; "*" stands for every other model.')


def nothing() -> Mapping[str, Any]:
    return MappingProxyType({})


def check_headers(headers: Mapping[str, Secret]) -> None:
    """Raises ValueError for what could not be sent."""
    for name, value in headers.items():
        if not fullmatch(r"[A-Za-z0-9_-]+", name):
            raise ValueError(f"headers: {name!r} is not a header's name")
        if not fullmatch(r"[ -~\t]*", value.reveal()):
            raise ValueError(f"headers.{name} must be ASCII characters on one line")


@dataclass(frozen=True, slots=True)
class HttpUpstream:
    """An endpoint on the network that speaks OpenAI's or Anthropic's protocol: a provider, or an engine of one's own."""

    kind: Annotated[Literal["openai", "anthropic"], SettingDoc("The protocol that it speaks.")]
    base_url: Annotated[str, SettingDoc(
        "Where it is, up to what stands before /chat/completions or /messages; a host alone gets /v1. "
        "Empty: the provider's own address.",
        pattern=URL, form="like https://host/v1, without user, password, ? and #", is_secret=True)] = ""
    key: Annotated[Secret | None, SettingDoc("Its API key; by reference: ${OPENAI_API_KEY}.")] = None
    headers: Annotated[Mapping[str, Secret], SettingDoc("Headers sent with every request to it.")] = field(
        default_factory=nothing)
    models: Annotated[Mapping[str, str], MODELS] = field(default_factory=nothing)
    prices: Annotated[Prices, PRICES] = field(default_factory=nothing)
    apis: Annotated[tuple[Api, ...], SettingDoc(
        "What it speaks natively; the rest is translated. Empty: by kind, and responses only at api.openai.com.")] = ()
    request_usage: Annotated[bool, SettingDoc(
        "Ask streams for token counts even when the client did not; the client never sees them.")] = False
    supports_continuation: Annotated[bool, SettingDoc(
        "It goes on with an answer whose first part ends the request as the assistant's message: prefill in messages, "
        "continue_final_message of vLLM and SGLang in chat. Routes with on_stall: rescue need such an upstream."
    )] = False
    send_deadline: Annotated[bool, SettingDoc(
        "Tell it how many seconds a request has left, as x-request-timeout: for another Stayfast, and engines that read it."
    )] = False
    probe: Annotated[bool, PROBE] = True
    limit: Annotated[LimitConfig, LIMIT] = field(default_factory=LimitConfig)
    breaker: Annotated[BreakerConfig, BREAKER] = field(default_factory=BreakerConfig)
    http: Annotated[Literal["auto", "1.1", "2"], SettingDoc("HTTP version.")] = "auto"
    max_connections: Annotated[int | None, SettingDoc(
        "Most connections to it at a time. null: as many as its `limit` lets run and file descriptors allow.",
        minimum=1, maximum=100_000)] = None
    keepalive_s: Annotated[float, SettingDoc("Idle connections are closed after this.", more_than=0, maximum=3600)] = 50.0
    ca_file: Annotated[str | None, SettingDoc("PEM file of the authorities to trust instead of the system's.")] = None
    verify: Annotated[bool, SettingDoc(
        "Whether its certificate is checked. false: anybody on the way can read along.")] = True

    def __post_init__(self) -> None:
        check_bounds(self)
        url = (self.base_url or PROVIDERS[self.kind]).rstrip("/")
        for endpoint in _ENDPOINTS:
            if urlsplit(url).path.endswith(endpoint):
                raise ValueError(f"base_url must stop before {endpoint}, which is added for each request: write what stands "
                                 "before it")
        if not urlsplit(url).path or (self.kind == "anthropic" and not url.endswith("/v1")):
            url += "/v1"  # a host alone means the usual place; Anthropic's own base_url stops before it
        split_base_url(url)
        object.__setattr__(self, "base_url", url)
        allowed = NATIVE_APIS[self.kind]
        for api in self.apis:
            if api not in allowed:
                names = ", ".join(sorted(allowed))
                raise ValueError(f"apis must be among {names} for kind {self.kind}, not {api.value}")
        check_headers(self.headers)
        if self.key is None or not self.key.reveal():
            object.__setattr__(self, "key", None)
            if self.base_url == PROVIDERS[self.kind]:
                raise ValueError(f"key is missing: {self.host} asks for one, for example ${{{self.kind.upper()}_API_KEY}}")
        elif not fullmatch(r"[!-~]+", self.key.reveal()):
            raise ValueError("key must be visible ASCII characters, without blanks or line ends")

    @property
    def host(self) -> str:
        return urlsplit(self.base_url).hostname or ""

    @property
    def native_apis(self) -> frozenset[Api]:
        """What it speaks natively, as given or by kind."""
        if self.apis:
            return frozenset(self.apis)
        everything = NATIVE_APIS[self.kind]
        return everything if self.kind == "anthropic" or self.host == "api.openai.com" else everything - {Api.RESPONSES}


@dataclass(frozen=True, slots=True)
class EmbeddedUpstream:
    """A model that the gateway runs by itself, in a process beside it."""

    kind: Annotated[Literal["embedded"], SettingDoc("A model that the gateway runs by itself.")] = "embedded"
    engine: Annotated[EngineConfig, SettingDoc("The engine's own settings.", is_inline=True)] = field(
        default_factory=EngineConfig)
    models: Annotated[Mapping[str, str], MODELS] = field(default_factory=nothing)
    probe: Annotated[bool, PROBE] = True
    limit: Annotated[LimitConfig, LIMIT] = field(default_factory=LimitConfig)
    breaker: Annotated[BreakerConfig, BREAKER] = field(default_factory=BreakerConfig)


class AddedUpstream(ABC):
    """A kind of upstream that is not built in: a frozen dataclass whose `kind` is a Literal. `load` takes such classes."""

    __slots__ = ()

    kind: str
    models: Mapping[str, str]
    prices: Prices
    probe: bool
    limit: LimitConfig
    breaker: BreakerConfig

    @abstractmethod
    def make(self, name: str, clock: Clock) -> UpstreamProtocol:
        """The upstream of these settings."""


@dataclass(frozen=True, slots=True)
class TurnUpstreamSettings:
    """A function of your own that is served as a model: it retrieves, calls tools and models, and writes the answer."""

    turn: Annotated[str, SettingDoc(
        "The async function, as package.module:function; the module is looked for in the current folder as well.",
        pattern=r"[^\W\d][\w.]*:[^\W\d][\w.]*", form="like package.module:function")]
    kind: Annotated[Literal["turn"], SettingDoc("A function of your own (docs/turns-served.md).")] = "turn"
    idempotent: Annotated[bool, SettingDoc(
        "It may be run twice for one request: then there are second attempts as for any upstream.")] = False
    resume_s: Annotated[float, SettingDoc(
        "Seconds that a turn goes on, and is kept, for a client of its typed events that was cut off. 0: it ends at once.",
        minimum=0, maximum=3600)] = 15.0
    models: Annotated[Mapping[str, str], MODELS] = field(default_factory=nothing)
    probe: Annotated[bool, SettingDoc("One token at start-up tells whether it works; that runs the function.")] = False
    limit: Annotated[LimitConfig, LIMIT] = field(default_factory=LimitConfig)
    breaker: Annotated[BreakerConfig, BREAKER] = field(default_factory=BreakerConfig)

    def __post_init__(self) -> None:
        check_bounds(self)


Upstream = HttpUpstream | EmbeddedUpstream | TurnUpstreamSettings | AddedUpstream


_WHO = r"([^\s/?#@]*@)?"  # a password with / or @ in it is written %2F or %40
REDIS_URL = rf"rediss?://{_WHO}([\w.-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{{1,5}})?(/[0-9]{{0,5}})?|unix://{_WHO}/[^\s?#@]+(\?db=[0-9]{{1,5}})?"
_SHARED = SettingDoc("How it is asked.", is_inline=True)
_MAX_BYTES = 1 << 40


@dataclass(frozen=True, slots=True)
class MemoryStoreSettings:
    """Memory of each worker, for several routes together."""

    kind: Annotated[Literal["memory"], SettingDoc("Memory of each worker, for several routes together.")] = "memory"
    max_bytes: Annotated[int, SettingDoc("The memory for answers, in each worker.", minimum=1024,
                                         maximum=_MAX_BYTES)] = 64 << 20

    def __post_init__(self) -> None:
        check_bounds(self)


@dataclass(frozen=True, slots=True)
class SqliteStoreSettings:
    """A file, for all workers of this machine; it outlives them."""

    kind: Annotated[Literal["sqlite"], SettingDoc("A file, for all workers of this machine; it outlives them.")]
    path: Annotated[str, SettingDoc("The file; it is made where it is not there, in a folder that is.")]
    max_bytes: Annotated[int, SettingDoc("What its answers may take up. The file does not become smaller.", minimum=1 << 16,
                                    maximum=_MAX_BYTES)] = 1 << 30
    shared: Annotated[SharedConfig, _SHARED] = field(default_factory=SharedConfig)

    def __post_init__(self) -> None:
        check_bounds(self)
        if not self.path:
            raise ValueError("path must name a file")


@dataclass(frozen=True, slots=True)
class RedisStoreSettings:
    """A Redis or Valkey server, for all gateways that name it."""

    kind: Annotated[Literal["redis"], SettingDoc(
        "A Redis or Valkey server, for all gateways that name it; needs pip install '.[redis]' in Stayfast's checkout.")]
    url: Annotated[Secret, SettingDoc("Where it is, like redis://:password@host:6379/0, rediss:// for TLS, or unix:///path?db=0.")]
    prefix: Annotated[str, SettingDoc("What the names of its keys begin with.", pattern=r"[A-Za-z0-9_.{}-]{1,64}",
                                 form="letters, digits and _ . - { }")] = "stayfast"
    shared: Annotated[SharedConfig, _SHARED] = field(default_factory=SharedConfig)

    def __post_init__(self) -> None:
        check_bounds(self)
        if not fullmatch(REDIS_URL, self.url.reveal()):
            raise ValueError("url must be like redis://user:password@host:6379/0, rediss://host or unix:///path?db=0, with "
                             "/ and @ of a password as %2F and %40")


StoreSettings = MemoryStoreSettings | SqliteStoreSettings | RedisStoreSettings
