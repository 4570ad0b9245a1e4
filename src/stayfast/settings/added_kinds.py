"""Kinds of upstreams and stores that packages add.

A package names a class in the entry points `stayfast.upstreams` or `stayfast.stores`, under the word that settings write as
`kind`. The class is a frozen dataclass, whose fields are the settings, and has the members of `AddedUpstream` or
`AddedStore`; it inherits nothing from Stayfast. A package is imported only if the settings use its kind.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final, Protocol, runtime_checkable

from stayfast.core.clock import Clock
from stayfast.policy.admission.price import Prices
from stayfast.policy.resilience.breaker import BreakerConfig
from stayfast.policy.resilience.limits import LimitConfig
from stayfast.settings.problems import Problem
from stayfast.settings.yaml_nodes import YamlMapping, YamlScalar, entries_at
from stayfast.stores.base import StoreBackend
from stayfast.stores.remote_store import SharedConfig
from stayfast.upstreams.base import Upstream as UpstreamProtocol


@runtime_checkable
class AddedUpstream(Protocol):
    """Settings of a kind of upstream that is not built in. Equal settings are the same upstream over a reload."""

    @property
    def kind(self) -> str:
        """A Literal, as the dataclass declares it."""

    @property
    def models(self) -> Mapping[str, str]: ...

    @property
    def prices(self) -> Prices: ...

    @property
    def probe(self) -> bool: ...

    @property
    def limit(self) -> LimitConfig: ...

    @property
    def breaker(self) -> BreakerConfig: ...

    def build_upstream(self, name: str, clock: Clock) -> UpstreamProtocol:
        """The upstream with these settings. Called in the event loop."""


@runtime_checkable
class AddedStore(Protocol):
    """Settings of a kind of answer store that is not built in."""

    @property
    def kind(self) -> str:
        """A Literal, as the dataclass declares it."""

    @property
    def shared(self) -> SharedConfig: ...

    def build_backend(self, name: str, clock: Clock) -> StoreBackend:
        """The database of these settings. Called in the event loop."""


class UnusableKind(ValueError):
    """A package's kind cannot be used; the message has the reason."""


_GROUPS: Final[Mapping[str, tuple[str, type[Any]]]] = {
    "upstreams": ("stayfast.upstreams", AddedUpstream), "stores": ("stayfast.stores", AddedStore)}


def implements(cls: type[Any], protocol: type[Any]) -> bool:
    """Whether a dataclass has all members of a protocol, as fields or methods."""
    names = [name for name in vars(protocol) if not name.startswith("_")]
    fields = {field.name for field in dataclasses.fields(cls)} if dataclasses.is_dataclass(cls) else set()
    return all(name in fields or hasattr(cls, name) for name in names)


def load_added_kinds(tree: YamlMapping, known: Mapping[str, frozenset[str]]) -> tuple[list[type[Any]], list[Problem]]:
    """The classes of kinds in `tree` that packages add, and a problem for each that cannot be used. known: the words of
    other kinds, by section.
    """
    classes, problems = [], list[Problem]()
    for section, (group, protocol) in _GROUPS.items():
        for word, path, node in _kinds_in(tree, section):
            found = entry_points(group=group, name=word) if word not in known[section] else ()
            for entry in found:
                try:
                    classes.append(_load(entry, protocol))
                except UnusableKind as error:
                    problems.append(Problem(node.location, (*path, "kind"), str(error)))
    return list(dict.fromkeys(classes)), problems


def _kinds_in(tree: YamlMapping, section: str) -> Iterator[tuple[str, tuple[str, str], YamlScalar]]:
    for name, node in entries_at(tree, section).items():
        entry = node.entries.get("kind") if isinstance(node, YamlMapping) else None
        if entry is not None and isinstance(entry.value, YamlScalar):
            yield entry.value.text, (section, name), entry.value


def _load(entry: EntryPoint, protocol: type[Any]) -> type[Any]:
    try:
        cls = entry.load()
    except Exception as error:  # the package's own code may raise anything
        raise UnusableKind(f"the package {_package(entry)} adds this kind, but cannot be imported: "
                           f"{type(error).__name__}: {error}") from error
    if not (isinstance(cls, type) and dataclasses.is_dataclass(cls) and implements(cls, protocol)):
        raise UnusableKind(f"the package {_package(entry)} adds this kind, but {entry.value} is no dataclass with the "
                           f"members of {protocol.__module__}.{protocol.__name__}")
    return cls


def _package(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else entry.value
