"""Whether a value fits a JSON Schema: `jsonschema-rs`, without a network, with regular expressions of linear time.

Schemas come from clients: a `$ref` to an address would let them make the gateway call it, and some patterns take years.
"""

from importlib import import_module
from typing import Any, Final

_LIBRARY: Final[Any] = import_module("jsonschema_rs")  # without types for `pattern_options`


def fits_schema(schema: Any, value: Any) -> bool:
    """Whether the value fits. A schema that is invalid, or refers to an address, fits everything: it checks nothing."""
    try:
        validator = _LIBRARY.validator_for(schema, offline=True, pattern_options=_LIBRARY.RegexOptions())
    except ValueError:
        return True
    return bool(validator.is_valid(value))
