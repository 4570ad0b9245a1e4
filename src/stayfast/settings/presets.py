"""Presets of routes by kind of work: an objective and time limits, which the route's own settings override.

    routes: {chat: {upstreams: [main], preset: chat}}

Precedence: the route, its preset, `defaults`, built-in values. Source of the objectives: the usual advice for the first
token, 500 ms for a chat, 100 ms for code completion, 30 s for batch work. The time limits follow from it: an answer that
comes after its reader has gone on is worth nothing, and one that nobody waits for may take its time.
"""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final, Literal

from stayfast.settings.yaml_nodes import YamlMapping, YamlScalar, entries_at

Preset = Literal["chat", "completion", "batch", "agent", "reasoning"]
PRESETS: Final[Mapping[str, Mapping[tuple[str, ...], str]]] = MappingProxyType({
    "chat": {("slo", "ttft", "under_s"): "0.5", ("slo", "ttft", "share"): "0.95", ("timeouts", "first_token_s"): "30",
             ("timeouts", "idle_s"): "30", ("timeouts", "total_s"): "300"},
    "completion": {("slo", "ttft", "under_s"): "0.1", ("slo", "ttft", "share"): "0.95",
                   ("timeouts", "first_token_s"): "2", ("timeouts", "idle_s"): "2", ("timeouts", "total_s"): "10",
                   ("timeouts", "connect_s"): "1", ("retry", "max_attempts"): "2", ("retry", "max_retry_after_s"): "0"},
    "batch": {("slo", "ttft", "under_s"): "30", ("slo", "ttft", "share"): "0.95", ("timeouts", "first_token_s"): "600",
              ("timeouts", "idle_s"): "120", ("timeouts", "total_s"): "3600", ("hedge", "mode"): "off",
              ("retry", "max_attempts"): "5", ("retry", "max_retry_after_s"): "60"},
    # many calls in a row: one that hangs costs the whole run
    "agent": {("slo", "ttft", "under_s"): "2", ("slo", "ttft", "share"): "0.95", ("timeouts", "first_token_s"): "60",
              ("timeouts", "idle_s"): "60", ("timeouts", "total_s"): "900", ("retry", "max_attempts"): "4"},
    # a model may think in silence for minutes before its first token
    "reasoning": {("slo", "ttft", "under_s"): "30", ("slo", "ttft", "share"): "0.95", ("timeouts", "first_token_s"): "300",
                  ("timeouts", "idle_s"): "120", ("timeouts", "total_s"): "900"},
})


def apply_presets(tree: YamlMapping) -> None:
    """Set what the preset of each route names and the route itself does not."""
    for route in entries_at(tree, "routes").values():
        entry = route.entries.get("preset") if isinstance(route, YamlMapping) else None
        if isinstance(route, YamlMapping) and entry is not None and isinstance(entry.value, YamlScalar):
            for path, text in PRESETS.get(entry.value.text, {}).items():
                if not _is_set(route, path):
                    route.set_scalar(path, text, f"preset {entry.value.text}")


def _is_set(node: YamlMapping, path: tuple[str, ...]) -> bool:
    """Whether the setting, or one that contains it and is no mapping (such as `slo: {ttft: null}`), is given."""
    for name in path:
        entry = node.entries.get(name)
        if entry is None:
            return False
        if not isinstance(entry.value, YamlMapping):
            return True
        node = entry.value
    return True


def preset_lines(sources: Mapping[str, str]) -> Iterator[str]:
    """A readable line for each route with a preset: what it sets. sources: by dotted path of a setting."""
    found: dict[tuple[str, str], list[str]] = {}
    for path, source in sources.items():
        if source.startswith("preset ") and path.startswith("routes."):
            _, route, setting = path.split(".", 2)
            found.setdefault((route, source), []).append(setting)
    for (route, source), names in found.items():
        name = source.removeprefix("preset ")
        values = {".".join(path): text for path, text in PRESETS[name].items()}
        yield f"route {route}: {source}: " + ", ".join(f"{each} {values.get(each, '')}" for each in names)
