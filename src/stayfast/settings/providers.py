"""The table of providers (providers.json): for `provider: groq`, everything that is the same for all of its users.

    upstreams: {groq: {provider: groq}, vllm-0: {kind: vllm, base_url: "http://10.0.0.7:8000"}}

Rule: a row sets what the upstream's own settings do not. The default key is for the row's own address only, because an
address that somebody else wrote must not be sent a provider's key. `kind: NAME` is short for `provider: NAME`, except that
`openai` and `anthropic` with a base_url are protocols, which many endpoints speak.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from re import fullmatch
from types import MappingProxyType
from typing import Final, Literal, get_args
from urllib.parse import urlsplit

import msgspec

from stayfast.core.types import Api
from stayfast.settings.problems import SourceLocation
from stayfast.settings.yaml_nodes import YamlEntry, YamlList, YamlMapping, YamlScalar, entries_at, expand_references
from stayfast.wire.quirks import Quirk

ADDRESS_FIELDS: Final = ("resource", "region", "project", "account")
ADDRESS_PART = r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}"
Protocol = Literal["openai", "anthropic", "gemini", "bedrock"]
PROTOCOLS: Final = get_args(Protocol)
_SHARED_PROTOCOLS: Final = ("openai", "anthropic")  # spoken at many addresses


class ProviderRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One row. base_url: may have parts in braces (ADDRESS_FIELDS); empty: there is no common address. key_variable: of the
    default key. key_header: empty: of the kind. credentials: that are used without a key, if its variable is not set. paths:
    by API, instead of the usual ones. service_tiers: its words
    for the speeds of policy.tiers. health_paths: at the root of its address, the newest version's first; 200: it serves.
    has_prefix_cache: of prompts, which `affinity` uses. counts_tokens: it has `/tokenize` for messages.
    price_list: its rows in price_table.json, for hosts that match price_hosts.
    """

    kind: Protocol
    base_url: str
    apis: tuple[Api, ...]
    key_variable: str = ""
    key_header: str = ""
    credentials: Literal["", "aws", "entra", "google"] = ""
    paths: dict[Api, str] = {}
    quirks: tuple[Quirk, ...] = ()
    service_tiers: dict[str, str] = {}
    request_usage: bool = False
    supports_continuation: bool = False
    engine_metrics: Literal["off", "auto"] = "off"
    health_paths: tuple[str, ...] = ()
    health_timeout_s: float = 1.0
    has_prefix_cache: bool = False
    counts_tokens: bool = False
    is_local: bool = False
    price_list: str = ""
    price_hosts: str = ""

    @property
    def address_fields(self) -> tuple[str, ...]:
        """The parts of the address that differ between its users."""
        template = self.base_url.replace("{google_host}", "{region}")
        return tuple(name for name in ADDRESS_FIELDS if f"{{{name}}}" in template)

    @property
    def path(self) -> str:
        """The path of its address, which a host alone gets; may have parts in braces."""
        return urlsplit(self.base_url).path if self.base_url else "/v1"

    def fill(self, template: str, parts: Mapping[str, str]) -> str:
        """The template with the parts of an address. Raises KeyError for one that is missing or empty."""
        region = parts.get("region", "")
        hosts = _read_table().google_hosts
        text = template.replace("{google_host}", hosts.get(region, hosts["*"]))
        for name in ADDRESS_FIELDS:
            if f"{{{name}}}" in text:
                if not parts.get(name):
                    raise KeyError(name)
                text = text.replace(f"{{{name}}}", parts[name])
        return text


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """google_hosts: of Vertex AI, by region; "*": of every other region."""

    google_hosts: dict[str, str]
    providers: dict[str, ProviderRow]


@cache
def _read_table() -> _Table:
    return msgspec.json.decode(files("stayfast.settings").joinpath("providers.json").read_bytes(), type=_Table)


def all_providers() -> Mapping[str, ProviderRow]:
    """The rows by name, in the order of the table."""
    return MappingProxyType(_read_table().providers)


def find_price_list(host: str) -> str | None:
    """The list of prices that apply at a host; None if there is none."""
    return next((row.price_list for row in all_providers().values()
                 if row.price_hosts and fullmatch(row.price_hosts, host)), None)


def apply_providers(tree: YamlMapping, variables: Mapping[str, str]) -> None:
    """Set what the provider of each upstream sets, and the upstream's own settings do not."""
    for upstream in entries_at(tree, "upstreams").values():
        if isinstance(upstream, YamlMapping):
            name = _name_provider(upstream, variables)
            if name is not None:
                _apply_row(upstream, name, variables)


def _name_provider(upstream: YamlMapping, variables: Mapping[str, str]) -> str | None:
    """The upstream's provider, which `kind` may name; None if there is none."""
    if "provider" in upstream.entries:
        if "kind" in upstream.entries and _text(upstream, "kind", variables) not in PROTOCOLS:
            return None
        name = _text(upstream, "provider", variables)
        if "kind" not in upstream.entries and name not in all_providers():
            _set_scalar(upstream, "kind", "openai", _place_of(upstream, "provider", "provider"))  # `provider` is reported
        return name if name in all_providers() else None
    kind = _text(upstream, "kind", variables)
    if kind not in all_providers() or (kind in _SHARED_PROTOCOLS and _is_given(upstream, "base_url", variables)):
        return None
    _set_scalar(upstream, "provider", kind, _place_of(upstream, "kind", ""))
    if kind != all_providers()[kind].kind:
        del upstream.entries["kind"]
    return kind


def _apply_row(upstream: YamlMapping, name: str, variables: Mapping[str, str]) -> None:
    row, place = all_providers()[name], _place_of(upstream, "provider", f"provider {name}")
    has_own_address = _is_given(upstream, "base_url", variables)
    for setting, value in _settings_of(row, upstream, variables, has_own_address=has_own_address):
        if setting not in upstream.entries or (setting == "base_url" and not has_own_address):
            node = _to_node(value, place)
            upstream.entries[setting] = YamlEntry(place, node)


def _settings_of(row: ProviderRow, upstream: YamlMapping, variables: Mapping[str, str], *, has_own_address: bool
                 ) -> Iterator[tuple[str, str | tuple[str, ...] | Mapping[str, str]]]:
    """Settings with their values, as in a file."""
    yield "kind", row.kind
    parts = {field: _text(upstream, field, variables) for field in ADDRESS_FIELDS}
    if not has_own_address and row.base_url and all(
            fullmatch(ADDRESS_PART, parts[field]) for field in row.address_fields):
        yield "base_url", row.fill(row.base_url, parts)
    if not has_own_address and not _has_credentials(upstream, row):
        if row.credentials and not variables.get(row.key_variable) and "key" not in upstream.entries:
            yield "credentials", {"kind": row.credentials}
        elif row.key_variable:
            yield "key", f"${{{row.key_variable}}}"
    constant: dict[str, str | tuple[str, ...] | Mapping[str, str]] = {
        "key_header": row.key_header,
        "apis": tuple(api.value for api in row.apis),
        "quirks": tuple(quirk.value for quirk in row.quirks),
        "paths": {api.value: path for api, path in row.paths.items()},
        "request_usage": "true" * row.request_usage,
        "supports_continuation": "true" * row.supports_continuation,
        "engine_metrics": row.engine_metrics if row.engine_metrics != "off" else "",
    }
    yield from ((name, value) for name, value in constant.items() if value)


def _has_credentials(upstream: YamlMapping, row: ProviderRow) -> bool:
    """Whether the upstream authenticates itself by other means than a key."""
    headers = upstream.entries.get("headers")
    own = {name.lower() for name in headers.value.entries} if headers and isinstance(headers.value, YamlMapping) else set()
    return "credentials" in upstream.entries or not own.isdisjoint(
        {row.key_header or "authorization", "authorization", "x-api-key", "api-key", "x-goog-api-key"})


def _text(node: YamlMapping, name: str, variables: Mapping[str, str]) -> str:
    """A setting's text; empty if it is missing, is no scalar, or refers to an unset variable (which is reported later)."""
    entry = node.entries.get(name)
    if entry is None or not isinstance(entry.value, YamlScalar) or entry.value.is_null:
        return ""
    try:
        return expand_references(entry.value.text, variables)
    except ValueError:
        return ""


def _is_given(node: YamlMapping, name: str, variables: Mapping[str, str]) -> bool:
    """Whether a setting has any value but the empty text. A wrong one counts, which is reported later."""
    entry = node.entries.get(name)
    if entry is None or (isinstance(entry.value, YamlScalar) and entry.value.is_null):
        return False
    if not isinstance(entry.value, YamlScalar):
        return True
    try:
        return bool(expand_references(entry.value.text, variables))
    except ValueError:
        return True


def _place_of(node: YamlMapping, name: str, set_by: str) -> SourceLocation:
    place = node.entries[name].value.location
    return SourceLocation(place.source, place.line, place.column, set_by)


def _set_scalar(node: YamlMapping, name: str, text: str, place: SourceLocation) -> None:
    node.entries[name] = YamlEntry(place, YamlScalar(text, place))


def _to_node(value: str | tuple[str, ...] | Mapping[str, str], place: SourceLocation) -> YamlScalar | YamlList | YamlMapping:
    if isinstance(value, str):
        return YamlScalar(value, place)
    if isinstance(value, tuple):
        return YamlList(tuple(YamlScalar(item, place) for item in value), place)
    return YamlMapping(place, {name: YamlEntry(place, YamlScalar(text, place)) for name, text in value.items()})
