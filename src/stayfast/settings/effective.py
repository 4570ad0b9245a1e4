"""The effective settings in the form of a settings file, with every default filled in, and the source of each value.

Hidden are values of type Secret, digests of keys, and the parts of an address that may carry a token.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from datetime import UTC, datetime
from enum import StrEnum
from functools import cache
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import yaml

from stayfast.core.setting import Secret
from stayfast.jobs.config import WebhookConfig
from stayfast.settings.decoder import RecordField, Setting, WordField, record_settings
from stayfast.settings.environment import OVERRIDES
from stayfast.settings.model import Defaults, Settings
from stayfast.settings.problems import Path, format_path
from stayfast.settings.yaml_nodes import Node, YamlList, YamlMapping, YamlScalar, node_at, referenced_names

HIDDEN = "(hidden)"
BY_DEFAULT = "default"  # source of an override that repeats a default
READ_AT_START = ("server.host", "server.port", "workers", "tracing", "metrics.gen_ai", "metrics.engine_interval_s")
_VARIABLES = frozenset(name for name, _ in OVERRIDES)
_RELOADED = ", reload at "


class SettingLeaf(NamedTuple):
    """One value of the effective settings. `raw`: secrets included. `node`: where the file or an override sets it; None: it
    is a default.
    """

    path: str
    raw: Any
    node: Node | None


@dataclass(frozen=True, slots=True)
class EffectiveSettings:
    """What a gateway runs with: its settings as in a file, and by dotted path the source of each value that is not a
    default.
    """

    settings: dict[str, Any]
    sources: dict[str, str]


class SettingsReport:
    """The effective settings of one system, made when they are first read. Immutable."""

    __slots__ = ("_made", "_settings")

    def __init__(self, settings: Settings, before: "SettingsReport | None" = None, at: float = 0.0) -> None:
        """before: of the system that a reload at `at` (seconds since the epoch) replaces; None: the first one."""
        self._settings = settings
        self._made = None if before is None else _after_reload(settings, before, at)

    @property
    def origin(self) -> Settings:
        return self._settings

    def read(self) -> EffectiveSettings:
        """The settings and their sources; callers must not change them."""
        if self._made is None:
            self._made = EffectiveSettings(effective_settings(self._settings), dict(self._settings.sources))
        return self._made

    @property
    def leaves(self) -> dict[str, Any]:
        """Each value by its path, secrets included."""
        return {leaf.path: leaf.raw for leaf in _leaves(self._settings, None, None, (), {})}

    def __repr__(self) -> str:
        return "<SettingsReport>"


def effective_settings(settings: Settings) -> dict[str, Any]:
    """All settings in the form of a file; loading them again gives equal settings, except for hidden values."""
    whole: dict[str, Any] = _as_in_file(settings)
    return whole


def setting_sources(settings: Settings, tree: YamlMapping) -> dict[str, str]:
    """By dotted path, the source of each value that `tree` sets: `FILE:LINE`, `environment NAME`, `command line --FLAG`.

    `tree`: of the file, with the overrides applied. A value that a route or an upstream inherits has the source of the one
    in `defaults`. Values without an entry are defaults.
    """
    return {leaf.path: _describe_source(leaf.node) for leaf in _leaves(settings, tree, None, (), _default_nodes(tree))
            if leaf.node is not None and leaf.node.location.source != BY_DEFAULT}


def settings_as_yaml(effective: EffectiveSettings) -> str:
    """A settings file with a comment at each value that is not a default."""
    lines: list[str] = []
    _write(effective.settings, (), effective.sources, "", lines)
    return "\n".join(lines) + "\n"


def _write(values: Mapping[str, Any], path: Path, sources: Mapping[str, str], indent: str, lines: list[str]) -> None:
    for name, value in values.items():
        here = (*path, name)
        key = _scalar(name)
        if isinstance(value, Mapping) and value:
            lines.append(f"{indent}{key}:")
            _write(value, here, sources, indent + "  ", lines)
            continue
        given = [source for known, source in sources.items()
                 if known == format_path(here) or known.startswith(f"{format_path(here)}[")]
        lines.append(f"{indent}{key}: {_scalar(value)}" + (f"  # {given[0]}" if given else ""))


def _scalar(value: Any) -> str:
    """One value on one line."""
    text: str = yaml.safe_dump(value, default_flow_style=True, width=10**9, allow_unicode=True, sort_keys=False)
    return text.removesuffix("...\n").strip()


def _as_in_file(value: Any) -> Any:
    if isinstance(value, Secret):
        return HIDDEN
    if isinstance(value, StrEnum):
        return value.value
    if isinstance(value, str):
        return value.replace("${", "$${")
    if isinstance(value, Mapping):
        return {name: _as_in_file(item) for name, item in value.items()}
    if isinstance(value, tuple | list):
        return [_as_in_file(item) for item in value]
    if not is_dataclass(value):
        return value
    return {setting.name: _shown(type(value), setting, item) for setting, item in _settings_of(value)
            if not (item == "" and isinstance(setting.shape, WordField))}  # the empty text stands for no choice


def _shown(cls: type[Any], setting: Setting, value: Any) -> Any:
    """A value without what may be secret. Of an address, its scheme, host and path remain; of a webhook's, its host."""
    if not setting.doc.is_secret and (cls, setting.name) != (WebhookConfig, "url"):
        return _as_in_file(value)
    if isinstance(value, Mapping):
        return dict.fromkeys(value, HIDDEN)
    url = urlsplit(value)
    if url.scheme not in ("http", "https") or url.username is not None:
        return HIDDEN if value else value
    if cls is WebhookConfig:
        return f"{url.scheme}://{url.netloc}/{HIDDEN}"
    return _as_in_file(value.partition("?")[0] + (f"?{HIDDEN}" if url.query else ""))


def _settings_of(record: Any) -> Iterator[tuple[Setting, Any]]:
    """The keys of a record with their values; inlined records replace their field."""
    for setting in record_settings(RecordField(type(record))):
        if setting.doc.is_short:
            continue
        holder = record if setting.inlined_in is None else getattr(record, setting.inlined_in[0])
        yield setting, getattr(holder, setting.name)


@cache
def _default_sections() -> Mapping[type, str]:
    """The classes that `defaults` has a section of."""
    return {type(getattr(Defaults(), field.name)): field.name for field in fields(Defaults)}


def _default_nodes(tree: YamlMapping) -> dict[type, Node]:
    found = {cls: node_at(tree, "defaults", name) for cls, name in _default_sections().items()}
    return {cls: node for cls, node in found.items() if node is not None}


def _leaves(value: Any, node: Node | None, base: Node | None, path: Path, defaults: Mapping[type, Node]
            ) -> Iterator[SettingLeaf]:
    """base: the node in `defaults` that the value is inherited from where `node` does not set it."""
    if is_dataclass(value) and not isinstance(value, type):
        if path[:1] != ("defaults",):
            base = defaults.get(type(value), base if node is None else None)
        own, inherited = _entries(node, type(value)), _entries(base, type(value))
        for setting, item in _settings_of(value):
            yield from _leaves(item, own.get(setting.name), inherited.get(setting.name), (*path, setting.name), defaults)
    elif isinstance(value, Mapping) and value:
        own, inherited = _entries(node, None), _entries(base if node is None else None, None)
        for name, item in value.items():
            yield from _leaves(item, own.get(name), inherited.get(name), (*path, name), defaults)
    elif isinstance(value, tuple) and any(is_dataclass(item) for item in value):
        given = node if node is not None else base
        items = given.items if isinstance(given, YamlList) else ()
        for n, item in enumerate(value):
            yield from _leaves(item, items[n] if n < len(items) else None, None, (*path, n), defaults)
    else:
        yield SettingLeaf(format_path(path), value, node if node is not None else base)


def _entries(node: Node | None, cls: type[Any] | None) -> dict[str, Node]:
    shorthand = getattr(cls, "SHORTHAND", None)
    if shorthand is not None and isinstance(node, YamlList):
        return {shorthand: node}
    word = getattr(cls, "SCALAR_SHORTHAND", None)
    if word is not None and isinstance(node, YamlScalar):
        return {word: node}
    return {name: entry.value for name, entry in node.entries.items()} if isinstance(node, YamlMapping) else {}


def _describe_source(node: Node) -> str:
    place = node.location
    if place.set_by:
        return place.set_by
    if place.line is None:
        kind = "command line " if place.source.startswith("--") else "environment " if place.source in _VARIABLES else ""
        return kind + place.source
    names = list(dict.fromkeys(_names_in(node)))
    return f"{place.source}:{place.line}" + "".join(f", environment {name}" for name in names)


def _names_in(node: Node) -> Iterator[str]:
    """The environment variables that a value refers to."""
    if isinstance(node, YamlScalar):
        yield from referenced_names(node.text)
    elif isinstance(node, YamlList):
        for item in node.items:
            yield from _names_in(item)


def _after_reload(settings: Settings, before: SettingsReport, at: float) -> EffectiveSettings:
    """Changed values have the reload in their source. What is read at the start only stays as it was."""
    old = before.read()
    old_leaves = before.leaves
    whole, sources = effective_settings(settings), dict[str, str]()
    stamp = datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    for path, raw in SettingsReport(settings).leaves.items():
        source = settings.sources.get(path)
        if any(path == fixed or path.startswith(f"{fixed}.") for fixed in READ_AT_START):
            source = old.sources.get(path) if old_leaves.get(path) == raw else (
                f"{old.sources.get(path, 'default')}; {source or 'its default'} applies after a restart")
        elif path not in old_leaves or old_leaves[path] != raw:
            source = f"{source or 'default'}{_RELOADED}{stamp}"
        elif source is not None:
            source += "".join(old.sources.get(path, "").partition(_RELOADED)[1:])
        if source is not None:
            sources[path] = source
    for fixed in READ_AT_START:
        *parents, name = fixed.split(".")
        target, origin = whole, old.settings
        for parent in parents:
            target, origin = target[parent], origin[parent]
        target[name] = origin[name]
    return EffectiveSettings(whole, sources)
