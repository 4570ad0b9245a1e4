"""Settings of hooks: `hooks: module:name` is short for a list of one, and how a name becomes a hook."""

from stayfast.pipeline.hooks.hook import LoadedHook, check_hook
from stayfast.settings.yaml_nodes import YamlEntry, YamlList, YamlMapping, YamlScalar, entries_at
from stayfast.turns.function import import_value

KEY = "hooks"


def expand_hooks(tree: YamlMapping) -> None:
    """Write the lists that single names stand for."""
    defaults = tree.entries.get("defaults")
    for owner in (*entries_at(tree, "routes").values(), *([defaults.value] if defaults is not None else [])):
        if not isinstance(owner, YamlMapping) or KEY not in owner.entries:
            continue
        entry = owner.entries[KEY]
        if isinstance(entry.value, YamlScalar) and not entry.value.is_null:
            owner.entries[KEY] = YamlEntry(entry.location, YamlList((entry.value,), entry.value.location))


def load_hook(name: str) -> LoadedHook:
    """Import "package.module:name"; a changed file is loaded again. Raises ValueError with the correction to make."""
    return check_hook(name, import_value(name))
