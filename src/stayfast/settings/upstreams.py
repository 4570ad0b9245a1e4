"""Settings of upstreams and of answer stores."""

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
from stayfast.policy.admission.quota import QuotaConfig
from stayfast.policy.fleet.config import REDIS_URL, REDIS_URL_FORM
from stayfast.policy.resilience.breaker import BreakerConfig
from stayfast.policy.resilience.limits import LimitConfig
from stayfast.settings.credentials import AwsCredentials, Credentials
from stayfast.stores.remote_store import SharedConfig
from stayfast.upstreams.base import Upstream as UpstreamProtocol

PROVIDERS: Mapping[str, str] = {"openai": "https://api.openai.com/v1", "anthropic": "https://api.anthropic.com/v1",
                               "gemini": "https://generativelanguage.googleapis.com/v1beta", "bedrock": ""}
NATIVE_APIS: Mapping[str, frozenset[Api]] = {
    "openai": frozenset({Api.CHAT, Api.COMPLETIONS, Api.EMBEDDINGS, Api.RESPONSES}),
    "anthropic": frozenset({Api.MESSAGES, Api.COUNT_TOKENS}),
    "gemini": frozenset({Api.GEMINI}),
    "bedrock": frozenset({Api.CONVERSE}),
}
_VERSIONED = ("openai", "anthropic")  # kinds whose addresses end with /v1
_ENDPOINTS = ("/chat/completions", "/completions", "/embeddings", "/responses", "/messages/count_tokens", "/messages")
URL = r"|https?://[^\s/?#@]+(/[^\s?#]*)?"
PROBE = SettingDoc("Request one token at start, repeated until it answers; readiness waits for the first such answer.")
MODELS = SettingDoc("Model names: the client's or route's name, and this upstream's.")
LIMIT = SettingDoc("Concurrency limit. Unset: defaults.limit.")
BREAKER = SettingDoc("Circuit breaker. Unset: defaults.breaker.")
PRICES = SettingDoc("USD per million tokens, by this upstream's model name; \"*\": every other model.")


def empty_mapping() -> Mapping[str, Any]:
    return MappingProxyType({})


def check_headers(headers: Mapping[str, Secret]) -> None:
    """Raises ValueError for names and values that cannot be sent."""
    for name, value in headers.items():
        if not fullmatch(r"[A-Za-z0-9_-]+", name):
            raise ValueError(f"headers: {name!r} is not a header's name")
        if not fullmatch(r"[ -~\t]*", value.reveal()):
            raise ValueError(f"headers.{name} must be ASCII characters on one line")


@dataclass(frozen=True, slots=True)
class HttpUpstream:
    """A provider or engine on the network, with OpenAI's, Anthropic's, Gemini's or Bedrock's protocol."""

    kind: Annotated[Literal["openai", "anthropic", "gemini", "bedrock"], SettingDoc(
        "A provider or engine on the network; its protocol.")]
    base_url: Annotated[str, SettingDoc(
        "Address, without /chat/completions or /messages; a host alone gets /v1. Empty: the provider's.",
        pattern=URL, form="like https://host/v1, without user, password, ? and #", is_secret=True)] = ""
    key: Annotated[Secret | None, SettingDoc("API key, as a reference: ${OPENAI_API_KEY}.")] = None
    credentials: Annotated[Credentials | None, SettingDoc(
        "Credentials that expire and are renewed, instead of `key` (docs/credentials.md).")] = None
    headers: Annotated[Mapping[str, Secret],
                       SettingDoc("Headers of every request to it.")] = field(default_factory=empty_mapping)
    models: Annotated[Mapping[str, str], MODELS] = field(default_factory=empty_mapping)
    prices: Annotated[Prices, PRICES] = field(default_factory=empty_mapping)
    apis: Annotated[tuple[Api, ...], SettingDoc(
        "APIs it speaks natively; others are translated. Empty: by kind; responses only at api.openai.com.")] = ()
    request_usage: Annotated[bool, SettingDoc(
        "Request token counts in streams; they are hidden from clients that did not ask.")] = False
    supports_continuation: Annotated[bool, SettingDoc(
        "It continues an answer whose beginning ends the request: prefill in messages, continue_final_message of vLLM and "
        "SGLang in chat. Required by on_stall: rescue.")] = False
    send_deadline: Annotated[bool, SettingDoc(
        "Send the remaining seconds as x-request-timeout: for another Stayfast, and engines that read it.")] = False
    engine_metrics: Annotated[Literal["off", "auto", "vllm", "sglang", "llamacpp"], SettingDoc(
        "Read /metrics of your own engine every 5 s, at the root of base_url, with its key and headers. auto: recognise the "
        "engine by the names there. Not for hosted APIs.")] = "off"
    probe: Annotated[bool, PROBE] = True
    limit: Annotated[LimitConfig, LIMIT] = field(default_factory=LimitConfig)
    breaker: Annotated[BreakerConfig, BREAKER] = field(default_factory=BreakerConfig)
    rate: Annotated[QuotaConfig, SettingDoc(
        "The provider's limits on requests and tokens of this key, for all workers, and all gateways with the same `fleet`."
    )] = field(default_factory=QuotaConfig)
    http: Annotated[Literal["auto", "1.1", "2"], SettingDoc("HTTP version.")] = "auto"
    max_connections: Annotated[int | None, SettingDoc(
        "Most connections. null: as `limit` and file descriptors allow.", minimum=1, maximum=100_000)] = None
    keepalive_s: Annotated[float, SettingDoc("Time before an idle connection closes.", more_than=0, maximum=3600)] = 50.0
    ca_file: Annotated[str | None, SettingDoc("PEM file of trusted authorities, instead of the system's.")] = None
    verify: Annotated[bool, SettingDoc("Check its certificate. false: traffic can be intercepted.")] = True

    def __post_init__(self) -> None:
        check_bounds(self)
        url = self._given_url()
        for endpoint in _ENDPOINTS:
            if urlsplit(url).path.endswith(endpoint):
                raise ValueError(f"base_url must end before {endpoint}, which is appended to it")
        if self.kind in _VERSIONED and (not urlsplit(url).path or (self.kind == "anthropic" and not url.endswith("/v1"))):
            url += "/v1"  # a host alone; Anthropic's own base_url has no /v1 either
        split_base_url(url)
        object.__setattr__(self, "base_url", url)
        if any(name.startswith("cost") for name, _, _ in self.rate.limits()):
            raise ValueError("rate limits requests and tokens: costs are limited by tenants.NAME.quota")
        allowed = NATIVE_APIS[self.kind]
        for api in self.apis:
            if api not in allowed:
                names = ", ".join(sorted(allowed))
                raise ValueError(f"apis must be among {names} for kind {self.kind}, not {api.value}")
        check_headers(self.headers)
        self._check_engine()
        if self.credentials is not None:
            self._check_credentials(self.credentials)
        else:
            self._check_key()

    def _check_key(self) -> None:
        if self.key is None or not self.key.reveal():
            object.__setattr__(self, "key", None)
            if self.base_url == PROVIDERS[self.kind]:
                raise ValueError(f"key is missing: {self.host} requires one, for example ${{{self.kind.upper()}_API_KEY}}")
        elif not fullmatch(r"[!-~]+", self.key.reveal()):
            raise ValueError("key must be visible ASCII characters, without spaces or line breaks")

    def _given_url(self) -> str:
        url = (self.base_url or PROVIDERS[self.kind]).rstrip("/")
        if not url:
            raise ValueError(f"base_url is missing: kind {self.kind} has no common address")
        return url

    def _check_credentials(self, credentials: Credentials) -> None:
        if self.key is not None and self.key.reveal():
            raise ValueError("credentials must not be set with key: choose one of them")
        if any(name.lower() == "authorization" for name in self.headers):
            raise ValueError("headers.authorization must not be set with credentials, which send it")
        if isinstance(credentials, AwsCredentials) is not (self.kind == "bedrock"):
            raise ValueError("credentials must be of kind aws for kind bedrock" if self.kind == "bedrock" else
                             "credentials of kind aws are for kind bedrock only")
        object.__setattr__(self, "key", None)

    def _check_engine(self) -> None:
        if self.engine_metrics != "off" and (self.kind != "openai" or self.base_url == PROVIDERS[self.kind]):
            raise ValueError(f"engine_metrics must be off for {self.host}: only engines of your own have /metrics")

    @property
    def host(self) -> str:
        return urlsplit(self.base_url).hostname or ""

    @property
    def native_apis(self) -> frozenset[Api]:
        if self.apis:
            return frozenset(self.apis)
        everything = NATIVE_APIS[self.kind]
        return everything if self.kind != "openai" or self.host == "api.openai.com" else everything - {Api.RESPONSES}


@dataclass(frozen=True, slots=True)
class EmbeddedUpstream:
    """A model that the gateway runs in a child process."""

    kind: Annotated[Literal["embedded"], SettingDoc("A model in a process of the gateway.")] = "embedded"
    engine: Annotated[EngineConfig, SettingDoc(
        "The engine's settings.", is_inline=True)] = field(default_factory=EngineConfig)
    models: Annotated[Mapping[str, str], MODELS] = field(default_factory=empty_mapping)
    probe: Annotated[bool, PROBE] = True
    limit: Annotated[LimitConfig, LIMIT] = field(default_factory=LimitConfig)
    breaker: Annotated[BreakerConfig, BREAKER] = field(default_factory=BreakerConfig)


class AddedUpstream(ABC):
    """Base of kinds that are not built in: frozen dataclasses whose `kind` is a Literal, passed to `load`."""

    __slots__ = ()

    kind: str
    models: Mapping[str, str]
    prices: Prices
    probe: bool
    limit: LimitConfig
    breaker: BreakerConfig

    @abstractmethod
    def build_upstream(self, name: str, clock: Clock) -> UpstreamProtocol:
        """The upstream with these settings."""


@dataclass(frozen=True, slots=True)
class TurnUpstreamSettings:
    """A user's async function, served as a model: it retrieves, calls tools and models, and writes the answer."""

    turn: Annotated[str, SettingDoc(
        "Async function, as package.module:function, also from the current folder.",
        pattern=r"[^\W\d][\w.]*:[^\W\d][\w.]*", form="like package.module:function")]
    kind: Annotated[Literal["turn"], SettingDoc("Your own function, served as a model (docs/turns-served.md).")] = "turn"
    idempotent: Annotated[bool, SettingDoc("It may run twice for one request, which allows retries and hedges.")] = False
    resume_s: Annotated[float, SettingDoc(
        "Time that a turn continues for a disconnected client of its typed events. 0: it ends at once.",
        minimum=0, maximum=3600)] = 15.0
    models: Annotated[Mapping[str, str], MODELS] = field(default_factory=empty_mapping)
    probe: Annotated[bool, SettingDoc("Run the function once at start, for one token.")] = False
    limit: Annotated[LimitConfig, LIMIT] = field(default_factory=LimitConfig)
    breaker: Annotated[BreakerConfig, BREAKER] = field(default_factory=BreakerConfig)

    def __post_init__(self) -> None:
        check_bounds(self)


Upstream = HttpUpstream | EmbeddedUpstream | TurnUpstreamSettings | AddedUpstream


_SHARED = SettingDoc("Settings of shared stores.", is_inline=True)
_MAX_BYTES = 1 << 40


@dataclass(frozen=True, slots=True)
class MemoryStoreSettings:
    kind: Annotated[Literal["memory"], SettingDoc("Memory of each worker, for several routes.")] = "memory"
    max_bytes: Annotated[int, SettingDoc("Memory for answers, per worker.", minimum=1024, maximum=_MAX_BYTES)] = 64 << 20

    def __post_init__(self) -> None:
        check_bounds(self)


@dataclass(frozen=True, slots=True)
class SqliteStoreSettings:
    kind: Annotated[Literal["sqlite"], SettingDoc("A file for all workers of this machine; survives restarts.")]
    path: Annotated[str, SettingDoc("The file, created in an existing folder if missing.")]
    max_bytes: Annotated[int, SettingDoc(
        "Space for answers. The file does not shrink.", minimum=1 << 16, maximum=_MAX_BYTES)] = 1 << 30
    shared: Annotated[SharedConfig, _SHARED] = field(default_factory=SharedConfig)

    def __post_init__(self) -> None:
        check_bounds(self)
        if not self.path:
            raise ValueError("path must not be empty")


@dataclass(frozen=True, slots=True)
class RedisStoreSettings:
    kind: Annotated[Literal["redis"], SettingDoc(
        "A Redis or Valkey server, for several gateways; needs pip install '.[redis]' in Stayfast's checkout.")]
    url: Annotated[Secret, SettingDoc("Address: redis://:password@host:6379/0, rediss:// for TLS, or unix:///path?db=0.")]
    prefix: Annotated[str, SettingDoc(
        "Prefix of its key names.", pattern=r"[A-Za-z0-9_.{}-]{1,64}", form="letters, digits and _ . - { }")] = "stayfast"
    shared: Annotated[SharedConfig, _SHARED] = field(default_factory=SharedConfig)

    def __post_init__(self) -> None:
        check_bounds(self)
        if not fullmatch(REDIS_URL, self.url.reveal()):
            raise ValueError(f"url must be like {REDIS_URL_FORM}")


StoreSettings = MemoryStoreSettings | SqliteStoreSettings | RedisStoreSettings
