"""Settings of earlier versions that are gone or have another name: what the error for each says."""

from collections.abc import Mapping
from typing import Final

from stayfast.settings.problems import Path

ANY: Final = "*"  # in a key of the table: any name, or any position in a list

# From the path of a key to what replaces it. Only keys that no setting has now are looked up here.
REMOVED_KEYS: Final[Mapping[tuple[str, ...], str]] = {
    ("server", "keep_warm_per_s"): "removed: the gateway no longer sends itself made-up requests. Delete this line",
}


def explain_removed(path: Path, table: Mapping[tuple[str, ...], str] = REMOVED_KEYS) -> str | None:
    """The explanation of a removed key, None for a key that never was a setting."""
    for pattern, explanation in table.items():
        if len(pattern) == len(path) and all(step in (ANY, name) for step, name in zip(pattern, path, strict=True)):
            return explanation
    return None
