"""Settings of upstreams and of answer stores."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from re import fullmatch
from types import MappingProxyType
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from stayfast.core.setting import Secret, SettingDoc, check_bounds
from stayfast.core.types import Api
from stayfast.engine.config import EngineConfig
from stayfast.http.client.client import split_base_url
from stayfast.policy.admission.price import Prices
from stayfast.policy.admission.quota import QuotaConfig
from stayfast.policy.fleet.config import REDIS_URL, REDIS_URL_FORM
from stayfast.policy.resilience.breaker import BreakerConfig
from stayfast.policy.resilience.limits import LimitConfig
from stayfast.policy.tiers.config import SPEEDS
from stayfast.settings.added_kinds import AddedStore, AddedUpstream
from stayfast.settings.credentials import AwsCredentials, Credentials, EntraCredentials
from stayfast.settings.providers import ADDRESS_FIELDS, ADDRESS_PART, Protocol, ProviderRow, all_providers
from stayfast.stores.remote_store import SharedConfig
from stayfast.wire.quirks import Quirk

NATIVE_APIS: Mapping[str, frozenset[Api]] = {
    "openai": frozenset({Api.CHAT, Api.COMPLETIONS, Api.EMBEDDINGS, Api.RERANK, Api.RESPONSES}),
    "anthropic": frozenset({Api.MESSAGES, Api.COUNT_TOKENS}),
    "gemini": frozenset({Api.GEMINI}),
    "bedrock": frozenset({Api.CONVERSE}),
}
_ENDPOINTS = ("/chat/completions", "/completions", "/embeddings", "/rerank", "/responses", "/messages/count_tokens",
              "/messages")
URL = r"|https?://[^\s/?#@]+(/[^\s?#]*)?"
PROBE = SettingDoc("Request one token at start, repeated until it answers; readiness waits for the first such answer.")
MODELS = SettingDoc("Model names: the client's or route's name, and this upstream's.")
LIMIT = SettingDoc("Concurrency limit. Unset: defaults.limit.")
BREAKER = SettingDoc("Circuit breaker. Unset: defaults.breaker.")
PRICES = SettingDoc("USD per million tokens, by this upstream's model name; \"*\": every other model.")


def _part(doc: str) -> SettingDoc:
    """A part of a provider's address."""
    return SettingDoc(doc, pattern=f"|{ADDRESS_PART}", form="letters, digits and . _ -")


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

    kind: Annotated[Protocol, SettingDoc(
        "Its protocol. The name of a provider, such as vllm, is short for `provider: vllm`.")]
    base_url: Annotated[str, SettingDoc(
        "Address, without /chat/completions or /messages; a host alone gets the provider's path, else /v1. Empty: the "
        "provider's.",
        pattern=URL, form="like https://host/v1, without user, password, ? and #", is_secret=True)] = ""
    provider: Annotated[str, SettingDoc(
        "Its row of docs/providers.md, which sets everything that these settings do not: address, key's variable, APIs.",
        words=tuple(all_providers()))] = ""
    resource: Annotated[str, _part("Azure: name of the resource, in the address.")] = ""
    region: Annotated[str, _part("AWS, Vertex AI: region, in the address.")] = ""
    project: Annotated[str, _part("Vertex AI: project, in the address.")] = ""
    account: Annotated[str, _part("Cloudflare: account; Databricks: name of the workspace; in the address.")] = ""
    key: Annotated[Secret | None, SettingDoc(
        "API key, as a reference: ${OPENAI_API_KEY}. Unset, at the provider's own address: its usual variable.")] = None
    key_header: Annotated[str, SettingDoc(
        "Header of the key; authorization: as a bearer token. Empty: by kind.", pattern="[A-Za-z0-9-]*",
        form="a header's name")] = ""
    credentials: Annotated[Credentials | None, SettingDoc(
        "Credentials that expire and are renewed, instead of `key` (docs/credentials.md). Unset, at the provider's own "
        "address: those of docs/providers.md, where it has no key.")] = None
    headers: Annotated[Mapping[str, Secret],
                       SettingDoc("Headers of every request to it.")] = field(default_factory=empty_mapping)
    models: Annotated[Mapping[str, str], MODELS] = field(default_factory=empty_mapping)
    prices: Annotated[Prices, PRICES] = field(default_factory=empty_mapping)
    apis: Annotated[tuple[Api, ...], SettingDoc(
        "APIs it speaks natively; others are translated. Empty: by kind; responses only at api.openai.com.")] = ()
    paths: Annotated[Mapping[str, str], SettingDoc(
        "Paths below base_url, by API, instead of the usual ones: {model} is the model, {A|B} is A for whole answers and B "
        "for streams.", pattern=r"/(?:[!-z|~]|\{model\}|\{[!-z~]*\|[!-z~]*\})*",
        form="a path that begins with /, in braces only {model} or {A|B}")] = field(default_factory=empty_mapping)
    quirks: Annotated[tuple[Quirk, ...], SettingDoc(
        "What it refuses or reports otherwise (docs/providers.md).")] = ()
    service_tiers: Annotated[Mapping[str, str], SettingDoc(
        "Its words for the service tiers flex, standard, fast and ultrafast of `tiers`; MEMBER=WORD: in this member of the "
        "body. Unset: those of docs/tiers.md.", pattern=r"([A-Za-z_]+=)?[A-Za-z0-9_-]{1,40}",
        form="a word, or MEMBER=WORD")] = field(default_factory=empty_mapping)
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
        row = all_providers()[self.provider or self.kind]
        if row.kind != self.kind:
            raise ValueError(f"kind must be {row.kind} for provider {self.provider}, or unset")
        url = self._address(row)
        for endpoint in _ENDPOINTS:
            if urlsplit(url).path.endswith(endpoint):
                raise ValueError(f"base_url must end before {endpoint}, which is appended to it")
        if self.kind == "anthropic" and not url.endswith("/v1") and not self.paths:
            url += "/v1"  # Anthropic's own base_url has no /v1 either
        split_base_url(url)
        object.__setattr__(self, "base_url", url)
        if any(name.startswith("cost") for name, _, _ in self.rate.limits()):
            raise ValueError("rate limits requests and tokens: costs are limited by tenants.NAME.quota")
        for tier in self.service_tiers:
            if tier not in SPEEDS:
                raise ValueError(f"service_tiers must be among {', '.join(SPEEDS)}, not {tier}")
        self._check_apis()
        check_headers(self.headers)
        if self.engine_metrics != "off" and (self.kind != "openai" or self._is_hosted(row)):
            raise ValueError(f"engine_metrics must be off for {self.host}: only engines of your own have /metrics")
        if self.credentials is not None:
            self._check_credentials(self.credentials)
        else:
            self._check_key(row)

    def _address(self, row: ProviderRow) -> str:
        """The address, without a slash at its end."""
        parts = {name: getattr(self, name) for name in ADDRESS_FIELDS}
        for name, part in parts.items():
            if part and name not in row.address_fields:
                raise ValueError(f"{name} has no place in the address of {self.provider or self.kind}")
        url = self.base_url.rstrip("/")
        try:
            if url and not urlsplit(url).path:
                url += row.fill(row.path, parts)
            url = url or row.fill(row.base_url, parts)
        except KeyError as missing:
            raise ValueError(
                f"{missing.args[0]} is missing: the address of {self.provider or self.kind} contains it") from None
        if not url:
            raise ValueError(f"base_url is missing: {self.provider or self.kind} has no common address")
        return url

    def _check_credentials(self, credentials: Credentials) -> None:
        if self.key is not None and self.key.reveal():
            raise ValueError("credentials must not be set with key: choose one of them")
        if any(name.lower() == "authorization" for name in self.headers):
            raise ValueError("headers.authorization must not be set with credentials, which send it")
        if isinstance(credentials, AwsCredentials) is not (self.kind == "bedrock"):
            raise ValueError("credentials must be of kind aws for kind bedrock" if self.kind == "bedrock" else
                             "credentials of kind aws are for kind bedrock only")
        if isinstance(credentials, EntraCredentials) and self.kind == "gemini":
            raise ValueError("credentials must not be of kind entra for kind gemini, whose issuer is Google")
        if self.kind == "bedrock" and not self.aws_region:
            raise ValueError("region is missing: a signature names it")
        object.__setattr__(self, "key", None)

    @property
    def aws_region(self) -> str:
        """Of its address; empty if neither `region` nor the host names it."""
        named = fullmatch(r"bedrock-runtime(-fips)?\.([a-z0-9-]+)\.amazonaws\.com(\.cn)?", self.host)
        return self.region or (named[2] if named is not None else "")

    def _check_apis(self) -> None:
        allowed = NATIVE_APIS[self.kind]
        for setting, apis in (("apis", self.apis), ("paths", self.paths)):
            for api in apis:
                if api not in allowed:
                    raise ValueError(f"{setting} must be among {', '.join(sorted(allowed))} for kind {self.kind}, not {api}")

    def _check_key(self, row: ProviderRow) -> None:
        if self.key is not None and self.key.reveal():
            if not fullmatch(r"[!-~]+", self.key.reveal()):
                raise ValueError("key must be visible ASCII characters, without spaces or line breaks")
            return
        object.__setattr__(self, "key", None)
        if row.key_variable and self._is_hosted(row) and (row.key_header or "authorization") not in {
                name.lower() for name in self.headers}:
            raise ValueError(f"key is missing: {self.host} requires one, for example ${{{row.key_variable}}}")

    def _is_hosted(self, row: ProviderRow) -> bool:
        """Whether it is at its provider's own address, on the network."""
        return not row.is_local and bool(row.base_url) and all(getattr(self, name) for name in row.address_fields) and (
            self.base_url == row.fill(row.base_url, {name: getattr(self, name) for name in ADDRESS_FIELDS}))

    @property
    def host(self) -> str:
        return urlsplit(self.base_url).hostname or ""

    @property
    def service_words(self) -> Mapping[str, str]:
        """The provider's words for service tiers; empty if it has none."""
        return self.service_tiers or all_providers()[self.provider or self.kind].service_tiers

    @property
    def native_apis(self) -> frozenset[Api]:
        if self.apis:
            return frozenset(self.apis)
        if self.provider:
            return frozenset(all_providers()[self.provider].apis)
        everything = NATIVE_APIS[self.kind]
        if self.kind != "openai":
            return everything
        return everything - {Api.RERANK if self.host == "api.openai.com" else Api.RESPONSES}


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


StoreSettings = MemoryStoreSettings | SqliteStoreSettings | RedisStoreSettings | AddedStore
