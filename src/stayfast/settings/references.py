"""`${VAR}` and `${VAR:-default}` inside values: how secrets reach the settings without standing in the file.

As in a shell, `:-` also covers a variable that is set but empty. `$${` is a literal `${`.
"""

import re
from collections.abc import Mapping

_REFERENCE = re.compile(r"\$\$\{|\$\{([^}]*)\}|\$\{")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def expand(text: str, environment: Mapping[str, str]) -> str:
    """`text` with its references replaced. Raises ValueError naming the variable that is unset, never a value."""
    return _REFERENCE.sub(lambda found: _replacement(found, environment), text) if "${" in text else text


def has_reference(text: str) -> bool:
    """Whether the text takes anything from the environment, so that its expansion must not be shown."""
    return any(found.group(1) is not None for found in _REFERENCE.finditer(text))


def _replacement(found: re.Match[str], environment: Mapping[str, str]) -> str:
    if found.group() == "$${":
        return "${"
    if found.group(1) is None:
        raise ValueError("a ${ without its }")
    name, has_default, default = found.group(1).partition(":-")
    if not _NAME.fullmatch(name):
        raise ValueError(f"{found.group()} is not a reference: write ${{NAME}} or ${{NAME:-default}}")
    value = environment.get(name, "")
    if not value and not has_default:
        raise ValueError(f"the environment variable {name} is {'empty' if name in environment else 'not set'}")
    return value or default
