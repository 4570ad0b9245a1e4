"""What a route gets when all of its upstreams are engines of its own: affinity to cached prefixes, and token counts of the
engine's tokenizer.

    upstreams: {gpu-0: {kind: vllm, base_url: "http://10.0.0.7:8000"}, gpu-1: {kind: vllm, base_url: "http://10.0.0.8:8000"}}
    routes: {chat: [gpu-0, gpu-1]}

Rule: a setting of the route always wins. Affinity needs several upstreams to choose from, and a route whose order is fixed
or whose `prefix` is set has its own rule. `stayfast check --effective` shows these values with the source ENGINES.
"""

from collections.abc import Iterator
from typing import Final

from stayfast.settings.providers import ProviderRow, all_providers
from stayfast.settings.yaml_nodes import Node, YamlEntry, YamlList, YamlMapping, YamlScalar, entries_at

ENGINES: Final = "default of routes whose upstreams are all engines of your own"


def apply_engine_defaults(tree: YamlMapping) -> None:
    """Set what the engines of a route's upstreams suggest and the route does not set. After `apply_providers`."""
    rows = dict(_engine_rows(tree))
    for name in entries_at(tree, "routes"):
        node = entries_at(tree, "routes")[name]
        named = _upstreams_of(node)
        own = [rows[one] for one in named if one in rows]
        if not own or len(own) < len(named):
            continue
        if len(set(named)) > 1 and all(row.has_prefix_cache for row in own) and not _has_own_rule(node):
            _set_default(tree, name, ("affinity", "mode"), "prefix")
        if all(row.counts_tokens for row in own):
            _set_default(tree, name, ("context", "tokenizer"), "upstream")


def _engine_rows(tree: YamlMapping) -> Iterator[tuple[str, ProviderRow]]:
    """The rows of upstreams that are engines of one's own, by upstream."""
    for name, upstream in entries_at(tree, "upstreams").items():
        entry = upstream.entries.get("provider") if isinstance(upstream, YamlMapping) else None
        if entry is not None and isinstance(entry.value, YamlScalar):
            row = all_providers().get(entry.value.text)
            if row is not None and row.is_local:
                yield name, row


def _upstreams_of(route: Node) -> list[str]:
    """Empty: tiers, or no list of names."""
    entry = route.entries.get("upstreams") if isinstance(route, YamlMapping) else None
    listed = entry.value if entry is not None else route
    return [item.text for item in listed.items if isinstance(item, YamlScalar)] if isinstance(listed, YamlList) else []


def _has_own_rule(route: Node) -> bool:
    return isinstance(route, YamlMapping) and any(name in route.entries for name in ("pick", "prefix", "tiers"))


def _set_default(tree: YamlMapping, name: str, path: tuple[str, str], text: str) -> None:
    """Set what the route does not set. A list of upstreams becomes a mapping that has it."""
    routes = tree.entries["routes"].value
    assert isinstance(routes, YamlMapping)
    entry = routes.entries[name]
    route = entry.value
    if not isinstance(route, YamlMapping):
        route = YamlMapping(route.location, {"upstreams": YamlEntry(route.location, route)})
        routes.entries[name] = YamlEntry(entry.location, route)
    part = route.entries.get(path[0])
    if part is None or (isinstance(part.value, YamlMapping) and path[1] not in part.value.entries):
        route.set_scalar(path, text, ENGINES)
