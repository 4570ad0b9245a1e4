"""The targets of `stayfast bench`: `--target` and the options that apply to one target (NAME=VALUE) or to all."""

import argparse
import json
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from stayfast.core.types import Api
from stayfast.lab.load.client import PATHS, LoadTargetConfig, RequestConfig
from stayfast.lab.load.result import Subject

DEFAULT_TARGET = "http://127.0.0.1:8090/v1"
MAX_TARGETS = 8


class Misused(ValueError):
    """Wrong usage. The message names the option and the reason."""


def add_target_options(group: "argparse._ActionsContainer", target_help: str) -> None:
    """Add the options that `bench run` and `bench faults` share."""
    group.add_argument("--target", action="append", metavar="[NAME=]URL", help=f"{target_help} (default: {DEFAULT_TARGET})")
    group.add_argument("--model", action="append", metavar="[NAME=]MODEL", help="the model to request")
    group.add_argument("--key-env", action="append", metavar="[NAME=]VAR", help="the environment variable with the API key")


def add_request_options(group: "argparse._ActionsContainer") -> None:
    """Add the options that only `bench run` has."""
    group.add_argument("--dialect", action="append", metavar="[NAME=]DIALECT", help=f"{', '.join(PATHS)} (default: chat)")
    group.add_argument("--header", action="append", default=[], metavar="NAME:VALUE", help="a header for every request")
    group.add_argument("--body", metavar="JSON", help="fields for every request; null removes one")
    group.add_argument("--whole", action="store_true", help="request complete answers instead of streams")
    group.add_argument("--allow-empty", action="store_true", help="a complete answer without content is good")
    group.add_argument("--ca-file", metavar="FILE", help="trust only these certificates")
    group.add_argument("--insecure", action="store_true", help="trust any certificate")


def read_targets(given: argparse.Namespace, variables: Mapping[str, str]) -> tuple[tuple[Subject, LoadTargetConfig], ...]:
    """The targets and their requests. Raises Misused."""
    targets = _parse_targets(given.target or [DEFAULT_TARGET])
    models, dialects = _by_target(given.model, targets, "--model"), _by_target(given.dialect, targets, "--dialect")
    keys = _by_target(given.key_env, targets, "--key-env")
    extra, headers = _parse_body(given.body), tuple(_parse_header(text) for text in given.header)
    found = []
    for name, url in targets.items():
        dialect = dialects.get(name, "chat")
        if dialect not in PATHS:
            raise Misused(f"--dialect {dialect}: known are {', '.join(PATHS)}")
        if name not in models:
            raise Misused(f"no model for {name}: add --model MODEL")
        key = read_key(keys[name], variables, "--key-env") if name in keys else None
        asking = RequestConfig(Api(dialect), models[name], not given.whole, key, headers, extra, given.allow_empty)
        found.append((Subject(name, url, dialect, models[name]),
                      LoadTargetConfig(url, asking, given.ca_file, verify=not given.insecure)))
    return tuple(found)


def read_key(variable: str, variables: Mapping[str, str], flag: str) -> str:
    """The key in an environment variable. Raises Misused."""
    if not (key := variables.get(variable)):
        raise Misused(f"the environment variable {variable} of {flag} is not set")
    return key


def _parse_targets(texts: Sequence[str]) -> dict[str, str]:
    """URLs by name."""
    found: dict[str, str] = {}
    for text in texts:
        name, is_named, url = text.partition("=")
        if not is_named or text.startswith(("http://", "https://")):
            name, url = urlsplit(text).netloc.rpartition("@")[2], text
            if not name:
                raise Misused(f"--target {text}: neither a URL (http://..., https://...) nor NAME=URL")
        elif not name or not name.isprintable() or any(char in "/=" or char.isspace() for char in name):
            raise Misused(f"--target {text}: the name before the = is {'empty' if not name else repr(name)}; a name has one "
                          "character or more, and no blank, / or control character")
        if name in found:
            raise Misused(f"--target {text}: {name} is the name of another target; give each its own name: NAME=URL")
        found[name] = url
    if len(found) > MAX_TARGETS:
        raise Misused(f"one run can have at most {MAX_TARGETS} targets")
    return found


def _by_target(texts: Sequence[str] | None, targets: Mapping[str, str], flag: str) -> dict[str, str]:
    """The value for each target, from `VALUE` for all targets and `NAME=VALUE` for one."""
    general: list[str] = []
    named: dict[str, str] = {}
    for text in texts or ():
        name, is_named, value = text.partition("=")
        if is_named and name in targets:
            named[name] = value
        else:
            general.append(text)
    if len(general) > 1:
        raise Misused(f"{flag} {general[1]}: given twice; to set it for one target, write NAME=... with its name")
    return {**{name: text for name in targets for text in general}, **named}


def _parse_header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        raise Misused("--header takes NAME:VALUE")
    return name.strip(), value.strip()


def _parse_body(text: str | None) -> dict[str, Any]:
    try:
        fields = json.loads(text) if text else {}
    except json.JSONDecodeError as why:
        raise Misused(f"--body is not JSON: {why}") from None
    if not isinstance(fields, dict):
        raise Misused("--body must be a JSON object")
    return fields
