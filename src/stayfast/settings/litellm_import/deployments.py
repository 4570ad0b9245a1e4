"""One entry of `model_list`: its upstream, the model there, and what it sets for its route."""

from dataclasses import dataclass, field, replace
from re import fullmatch
from urllib.parse import urlsplit

from stayfast.settings.litellm_import.identities import read_credentials
from stayfast.settings.litellm_import.known import ENTRY, INFO, PARAMS, PRICE_NAMES, find_known, mark_known
from stayfast.settings.litellm_import.ledger import ImportVerdict, SourceNode
from stayfast.settings.litellm_import.providers import NamedModel, PrefixRow, azure_resource, find_provider
from stayfast.settings.litellm_import.scalars import (
    SecretNames,
    as_reference,
    bounded,
    number_of,
    read_switch,
    variable_of,
)
from stayfast.settings.price_table import find_row

# APIs that are passed through: their modes, and the paths. None: no path of OpenAI's API.
OTHER_APIS = {"image_generation": "/v1/images", "image_edit": "/v1/images", "audio_transcription": "/v1/audio",
              "audio_speech": "/v1/audio", "moderation": "/v1/moderations",
              "realtime": "/v1/realtime", "video_generation": "/v1/videos", "vector_store": "/v1/vector_stores",
              "ocr": None, "search": None}
_OTHER_PATHS = ("bedrock", "gemini", "vertex")  # native: nothing of them is passed through
_ROUTE_NAME = r"[!-~]{1,200}"
_URL = r"https?://[^\s/?#@]+(/[^\s?#]*)?"
_OPEN_HEADERS = frozenset({"accept", "anthropic-beta", "anthropic-version", "content-type", "http-referer", "openai-beta",
                           "openai-organization", "openai-project", "user-agent", "x-title"})
_RATES = (("rpm", "requests_per_minute"), ("tpm", "tokens_per_minute"), ("rpd", "requests_per_day"),
          ("tpd", "tokens_per_day"))
# Settings of some providers only, by the beginning of our provider's name.
_ONLY = {"api_version": "azure"}
_MOST = 1e15


@dataclass(frozen=True, slots=True)
class UpstreamKey:
    """What makes an upstream: entries with equal ones share it. `provider`: the preset; the kind if `is_kind`. All texts are
    those of the settings file.
    """

    provider: str
    is_kind: bool = False
    address: tuple[tuple[str, str], ...] = ()  # base_url, resource, region, project, account
    key: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    credentials: tuple[tuple[str, str], ...] = ()
    verify: bool = True
    rate: tuple[tuple[str, float], ...] = ()
    limit: int | None = None
    breaker: tuple[tuple[str, float], ...] = ()
    own_model: str = ""  # limits of a model are not shared with another one


@dataclass(slots=True)
class Deployment:
    """One entry, read. Times are in seconds."""

    group: str
    entry: SourceNode
    upstream: UpstreamKey
    model: str
    weight: float | None = None
    order: float | None = None
    total_s: float | None = None
    first_token_s: float | None = None
    max_attempts: int | None = None
    max_input_tokens: SourceNode | None = None
    marks_prefix: bool = False
    prices: dict[str, float | str] = field(default_factory=dict)
    is_expanded: bool = False  # one of the models of a pattern
    passed_path: str | None = None  # of requests that are passed through; else the entry is a route


class EntryReader:
    """Reads entries of `model_list`. `credentials`: the values of `credential_list` by name. `verify`: of all upstreams."""

    def __init__(self, credentials: dict[str, SourceNode], secrets: SecretNames, *, verify: bool) -> None:
        self._credentials = credentials
        self.used: set[str] = set()  # names of credentials
        self._secrets = secrets
        self._verify = verify

    def read(self, entry: SourceNode) -> list[Deployment]:
        """The deployments of one entry: several for a list of organizations, none if it is not taken."""
        named, params, info = entry.get("model_name"), entry.get("litellm_params"), entry.get("model_info")
        mark_known(entry, ENTRY)
        if named is None or not named.text:
            entry.refuse("an entry without model_name")
            return []
        for node, section in ((params, PARAMS), (info, INFO)):
            if node is not None:
                mark_known(node, section)
                if not node.is_mapping:
                    node.refuse("must be a mapping")
        model = params.get("model") if params is not None else None
        text = model.text if model is not None else None
        if text is None:
            named.differ("a route with a model of this name", "the entry names no model: its model_name is taken as one")
            text = named.text
        if variable_of(named.text) is not None or variable_of(text) is not None:
            entry.refuse("the provider and the route cannot be known while a variable names the model")
            return []
        if not fullmatch(_ROUTE_NAME, named.text):
            entry.refuse("a name of a route is 1 to 200 visible ASCII characters without spaces: rename it, in the "
                         "clients, too")
            return []
        return self._read_model(entry, named.text, text, _Values(params, self._credential(params)), info)

    def _credential(self, params: SourceNode | None) -> SourceNode | None:
        name = params.get("litellm_credential_name") if params is not None else None
        found = self._credentials.get(name.text or "") if name is not None else None
        if name is not None and found is not None:
            self.used.add(name.text or "")
        if name is not None and found is None and not name.is_null:
            name.refuse("credential_list has no credential of this name")
        return found

    def _read_model(self, entry: SourceNode, group: str, text: str, values: "_Values", info: SourceNode | None
                    ) -> list[Deployment]:
        base = values.first("api_base", "base_url")
        stated = values.first("custom_llm_provider")
        named = find_provider(text, stated.text if stated is not None else None, has_address=base is not None)
        mode = info.get("mode") if info is not None else None
        if named.why_not:
            entry.refuse(named.why_not)
            return []
        path = OTHER_APIS.get(mode.text or "", "") if mode is not None else ""
        if path is None or (path and named.row.provider in _OTHER_PATHS):
            entry.refuse(f"mode {mode.text if mode is not None else ''}: no API of this provider that Stayfast has")
            return []
        if named.note and (node := values.first("model")) is not None:
            node.differ("an upstream of kind openai", named.note)
        address = self._address(named, values, base)
        if address is None:
            entry.refuse("without a usable address: " + ("api_base is no plain URL" if base is not None else
                                                         f"{named.prefix}/ needs api_base"))
            return []
        found = Deployment(group, entry, self._upstream(named, values, address, base), named.model, passed_path=path or None)
        _read_route_parts(found, values, info)
        organization = values.first("organization")
        values.refuse_unread(named.row.provider)
        return self._split(found, organization)

    def _split(self, found: Deployment, organization: SourceNode | None) -> list[Deployment]:
        """One deployment for each organization."""
        words = [node for node in (organization.items() if organization is not None and organization.is_list
                                   else [organization]) if node is not None and node.text]
        made = []
        for node in words:
            headers = (*found.upstream.headers, ("openai-organization", as_reference(node.text or "")))
            made.append(replace(found, upstream=replace(found.upstream, headers=headers)))
        return made or [found]

    def _address(self, named: NamedModel, values: "_Values", base: SourceNode | None) -> tuple[tuple[str, str], ...] | None:
        """The settings of the address; None: there is no usable one."""
        row = named.row
        if base is not None and base.text:
            return _given_address(row, base, base.text)
        if row.provider in ("azure", "azure-anthropic"):
            return None
        if row.is_own and not row.default_url:
            return None
        return tuple((name, _field(name, named, values, variable)) for name, variable in row.needs.items())

    def _upstream(self, named: NamedModel, values: "_Values", address: tuple[tuple[str, str], ...], base: SourceNode | None
                  ) -> UpstreamKey:
        row = named.row
        has_url = any(name == "base_url" for name, _ in address)
        is_kind = has_url and row.provider in ("openai", "anthropic")
        has_key = (node := values.first("api_key")) is not None and bool(node.text)
        credentials = () if has_key else read_credentials(row.provider, values.first, self._secrets)
        rate = tuple((to, float(value)) for name, to in _RATES
                     if (value := bounded(values.first(name), 1, _MOST)) is not None)
        limit = bounded(values.first("max_parallel_requests"), 1, 100_000)
        return UpstreamKey(
            row.provider, is_kind, address, "" if credentials else self._key(row, values, base, is_kind=is_kind),
            self._headers(row, values), credentials, self._is_verified(values), rate,
            int(limit) if limit is not None else None, _breaker(values), named.model if rate or limit is not None else "")

    def _is_verified(self, values: "_Values") -> bool:
        own = read_switch(values.first("ssl_verify"))
        return self._verify if own is None else own

    def _key(self, row: PrefixRow, values: "_Values", base: SourceNode | None, *, is_kind: bool) -> str:
        node = values.first("api_key")
        if node is not None and node.text:
            return self._secrets.take_secret(node, f"{row.provider}_KEY", "`key`")
        if is_kind and base is not None:
            base.differ("`base_url`", f"without api_key no key is sent there; LiteLLM would send {row.variable}"
                        if row.variable else "no key is sent there")
            return ""
        return f"${{{row.variable}}}" if row.variable else ""

    def _headers(self, row: PrefixRow, values: "_Values") -> tuple[tuple[str, str], ...]:
        found = []
        for section in (values.first("extra_headers"), values.first("headers")):
            for name, node in (section.entries() if section is not None else {}).items():
                if node.text is None or not fullmatch(r"[A-Za-z0-9_-]+", name):
                    node.refuse("no header that can be sent")
                elif name.lower() in _OPEN_HEADERS or variable_of(node.text) is not None:
                    found.append((name, as_reference(node.text)))
                else:
                    found.append((name, self._secrets.take_secret(node, f"{row.provider}_{name}", "`headers`")))
        return tuple(found)


class _Values:
    """`litellm_params` over the values of a credential."""

    def __init__(self, params: SourceNode | None, credential: SourceNode | None) -> None:
        self._sources = [node.entries() for node in (params, credential) if node is not None]
        self._read = {"model", "litellm_credential_name"}

    def first(self, *names: str) -> SourceNode | None:
        """The first value with one of these names that is not null."""
        for n, source in enumerate(self._sources):
            for name in names:
                if name in source and not source[name].is_null:
                    self._read.add(name)
                    if n:
                        source[name].take("the upstreams that name the credential")
                    return source[name]
        return None

    def refuse_unread(self, provider: str) -> None:
        """Mark what an upstream of this provider has no use for."""
        for source in self._sources:
            for name, node in source.items():
                row, only = find_known(PARAMS, name), _ONLY.get(name)
                if only is not None and provider.startswith(only):
                    if row is not None and source is not self._sources[0]:
                        node.differ(row.becomes, row.why)
                elif (row is not None and row.verdict is not ImportVerdict.NOT_TAKEN
                        and not (name in self._read or node.is_null)):
                    node.refuse("an upstream of this provider has no use for it")


def _field(name: str, named: NamedModel, values: _Values, variable: str) -> str:
    """A part of a provider's address; the variable that LiteLLM uses if the file has none."""
    names = {"region": ("aws_region_name", "vertex_location", "vertex_ai_location", "region_name"),
             "project": ("vertex_project", "vertex_ai_project")}.get(name, ())
    if name == "region" and named.region:
        return named.region
    node = values.first(*names)
    return as_reference(node.text) if node is not None and node.text else f"${{{variable}}}"


def _given_address(row: PrefixRow, base: SourceNode, text: str) -> tuple[tuple[str, str], ...] | None:
    name = variable_of(text)
    suffix = {"azure": "/openai/v1", "azure-anthropic": "/anthropic/v1"}.get(row.provider, "")
    if name is not None:
        if suffix:
            base.differ("`base_url`", f"{name} must be the resource alone, without a path or a slash at its end")
        return (("base_url", f"${{{name}}}{suffix}"),)
    if not fullmatch(_URL, text):
        base.refuse("no plain URL: http(s)://HOST[/PATH], without user, password, ? and #")
        return None
    resource = azure_resource(text, is_anthropic=row.provider == "azure-anthropic") if suffix else ""
    if resource:
        return (("resource", resource),)
    parts = urlsplit(text)
    if suffix:
        base.differ("`base_url`", "the path of Azure's v1 API")
        return (("base_url", f"{parts.scheme}://{parts.netloc}{suffix}"),)
    if not parts.path.strip("/") and row.provider not in ("anthropic", "ollama"):
        base.differ("`base_url`", "a host alone gets /v1, which LiteLLM does not add")
    return (("base_url", text.rstrip("/").replace("${", "$${")),)


def _breaker(values: _Values) -> tuple[tuple[str, float], ...]:
    open_s = bounded(values.first("cooldown_time"), 0.001, 86_400)
    fails = bounded(values.first("allowed_fails"), 1, 1000, more=1)
    return tuple((name, float(value)) for name, value in (("consecutive_failures", fails), ("open_s", open_s))
                 if value is not None)


def _read_route_parts(found: Deployment, values: _Values, info: SourceNode | None) -> None:
    found.weight = bounded(values.first("weight"), 0.001, 1000)
    order = values.first("order")
    found.order = number_of(order)
    if order is not None and found.order is None:
        order.refuse("no number that is written out")
    found.total_s = bounded(values.first("timeout"), 0.001, 86_400)
    found.first_token_s = bounded(values.first("stream_timeout"), 0.001, 86_400)
    attempts = [bounded(values.first(name), 1, 10, more=1) for name in ("num_retries", "max_retries")]
    found.max_attempts = max((int(n) for n in attempts if n is not None), default=None)
    found.marks_prefix = values.first("cache_control_injection_points") is not None
    about = info.entries() if info is not None else {}
    found.max_input_tokens = about.get("max_input_tokens")
    for name, to in PRICE_NAMES.items():
        usd = bounded(values.first(name) or about.get(name), 0, 1_000_000, factor=1e6)
        if usd is not None:
            found.prices[to] = usd
    base = about.get("base_model")
    if base is not None and base.text:
        _read_base_model(found, base, base.text)


def _read_base_model(found: Deployment, base: SourceNode, name: str) -> None:
    """A row of the table of list prices, unless the entry has prices of its own."""
    names = (name, f"azure/{name}", f"openai/{name}")
    row = next((row for row in names if find_row(row) is not None), None)
    if row is None:
        base.refuse("the table of list prices has no such row")
    elif found.prices:
        base.differ("`prices` of the entry", "the entry's own prices apply")
    else:
        found.prices["table"] = row
