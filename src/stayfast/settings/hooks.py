"""Settings of hooks: `hooks: module:name` is short for a list of one, and how a name becomes a hook."""

from typing import cast

from stayfast.pipeline.hooks.hook import LoadedHook, check_hook
from stayfast.pipeline.tiers.answer_verifier import OwnCheck
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


def load_check(name: str) -> OwnCheck:
    """Import the function of `enough.checks.hook`. Raises ValueError with the correction to make."""
    found = import_value(name)
    is_callable = callable(found)
    if not is_callable:
        raise ValueError(f"{name} is a {type(found).__name__}: name a function that takes the request's JSON and the text")
    return cast("OwnCheck", found)
