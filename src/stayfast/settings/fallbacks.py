"""`fallback: [hosted]` on a route: short for `on_overrun: {fallback: [hosted]}`.

The tree is rewritten before it is decoded, so that everything behind it has one place to read: the decoder, the checks with
their line numbers, and the effective settings.
"""

from stayfast.settings.problems import Path, Problem
from stayfast.settings.yaml_nodes import YamlEntry, YamlMapping, YamlScalar, entries_at

SHORT, LONG = "fallback", "on_overrun"


def expand_fallbacks(tree: YamlMapping) -> list[Problem]:
    """Move the short form of each route to the long one. Returns a problem for each route that has both."""
    problems: list[Problem] = []
    for name, route in entries_at(tree, "routes").items():
        if isinstance(route, YamlMapping) and SHORT in route.entries:
            problems += _expand(route, ("routes", name))
    return problems


def _expand(route: YamlMapping, path: Path) -> list[Problem]:
    short = route.entries[SHORT]
    overrun = route.entries.get(LONG)
    if overrun is not None and not isinstance(overrun.value, YamlMapping) and not _is_null(overrun):
        return []  # the decoder reports it
    if overrun is None or not isinstance(overrun.value, YamlMapping):
        route.entries[LONG] = overrun = YamlEntry(short.location, YamlMapping(short.location))
    assert isinstance(overrun.value, YamlMapping)
    if SHORT in overrun.value.entries:
        return [Problem(short.location, (*path, SHORT), "is also set in on_overrun.fallback: remove one of them")]
    overrun.value.entries[SHORT] = route.entries.pop(SHORT)
    return []


def _is_null(entry: YamlEntry) -> bool:
    return isinstance(entry.value, YamlScalar) and entry.value.is_null
