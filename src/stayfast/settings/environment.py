"""The environment variables. No other module reads them."""

import os
from collections.abc import Mapping
from pathlib import Path

from stayfast.settings.yaml_nodes import Override

OVERRIDES = (
    ("PORT", ("server", "port")),  # set by hosting platforms; the next one takes precedence
    ("STAYFAST_PORT", ("server", "port")),
    ("STAYFAST_HOST", ("server", "host")),
    ("STAYFAST_WORKERS", ("workers",)),
    ("STAYFAST_LOG", ("log", "level")),
    ("STAYFAST_LOG_FORMAT", ("log", "format")),
)


def read_environment() -> Mapping[str, str]:
    return dict(os.environ)  # noqa: TID251 - the only reader


def overrides_from(variables: Mapping[str, str]) -> list[Override]:
    """The settings that variables override, lowest precedence first. Empty variables are ignored."""
    return [Override(path, variables[name], name) for name, path in OVERRIDES if variables.get(name)]


def cache_directory(variables: Mapping[str, str]) -> Path:
    """The cache directory, by the XDG base directory specification."""
    value = variables.get("XDG_CACHE_HOME", "")
    return (Path(value) if value.startswith("/") else Path.home() / ".cache") / "stayfast"
