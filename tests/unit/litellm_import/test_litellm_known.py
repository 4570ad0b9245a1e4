"""The table of known settings: each row does what it lists, and the page has the table."""

import hashlib
from pathlib import Path
from typing import Any

import pytest
import yaml

from scripts.litellm_table import PAGE, renew
from stayfast.server.auth import digest_key
from stayfast.settings.litellm_import.known import (
    CACHE,
    CALLS,
    ENTRY,
    GENERAL,
    INFO,
    PARAMS,
    TABLE,
    TOP,
    KnownSetting,
    find_known,
)
from stayfast.settings.litellm_import.ledger import ImportVerdict
from tests.docs.pages import blocks
from tests.unit.litellm_import.rig import import_text, load_written, verdicts

BASE = """\
model_list:
- model_name: m
  litellm_params: {model: azure/gpt-x, api_base: "https://r.openai.azure.com", api_key: os.environ/A}
- model_name: other
  litellm_params: {model: openai/gpt-y, api_key: os.environ/K}
- model_name: m
  litellm_params: {model: openai/gpt-z, api_key: os.environ/K, weight: 1}
"""
PLACES = {TOP: (), ENTRY: ("model_list", 2), PARAMS: ("model_list", 2, "litellm_params"),
          INFO: ("model_list", 2, "model_info"), CALLS: ("router_settings",), GENERAL: ("general_settings",),
          CACHE: ("litellm_settings", "cache_params")}
SAMPLED = [pytest.param(row, name, id=f"{row.section}-{name}") for row in TABLE if row.sample
           for name in row.names.split()
           if name not in ("base_url", "cache_responses", "redis_host", "redis_port", "redis_password", "redis_username",
                           "redis_db", "redis_ssl", "callbacks", "success_callback", "failure_callback", "service_callback",
                           "default_in_redis_ttl", "default_fallbacks", "type", "mode")]
REFUSED = [pytest.param(row, name, id=f"{row.section}-{name}") for row in TABLE if row.verdict is ImportVerdict.NOT_TAKEN
           for name in row.names.split()]


def with_setting(section: str, name: str, value: object, base: str = BASE) -> str:
    """The base configuration with one more setting."""
    tree = yaml.safe_load(base)
    node: Any = tree
    for step in PLACES[section]:
        node = node.setdefault(step, {}) if isinstance(step, str) else node[step]
    node[name] = value
    if section == CACHE:
        tree["litellm_settings"]["cache"] = True
        tree["litellm_settings"]["cache_params"].setdefault("type", "local")
    return yaml.safe_dump(tree)


@pytest.mark.parametrize(("row", "name"), SAMPLED)
def test_setting_with_a_sample_changes_the_written_file(row: KnownSetting, name: str) -> None:
    """A value that is listed as taken is in the file, in a form that loads."""
    value = yaml.safe_load(row.sample)
    found = import_text(with_setting(row.section, name, value))
    without = import_text(with_setting(row.section, "description", "x"))
    assert [line.partition("  #")[0] for line in found.text.splitlines()] != [
        line.partition("  #")[0] for line in without.text.splitlines()]
    load_written(found)
    listed = {path: verdict for path, verdict in verdicts(found).items() if path.endswith(name) or f"{name}[" in path
              or f"{name}." in path}
    assert listed
    assert set(listed.values()) <= {row.verdict, ImportVerdict.DIFFERENT}, listed


@pytest.mark.parametrize(("row", "name"), REFUSED)
def test_setting_that_is_not_taken_changes_nothing(row: KnownSetting, name: str) -> None:
    """It is listed, and the written file is as without it."""
    found = import_text(with_setting(row.section, name, "some-word"))
    without = import_text(with_setting(row.section, "description", "x"))
    strip = [line.partition("  #")[0] for line in found.text.splitlines() if not line.lstrip().startswith("#")]
    assert strip == [line.partition("  #")[0] for line in without.text.splitlines() if not line.lstrip().startswith("#")]
    assert [verdict for path, verdict in verdicts(found).items() if path.endswith(name)] == [ImportVerdict.NOT_TAKEN]


def test_names_of_the_table_are_unique_in_their_section() -> None:
    """So that each has one fate."""
    for section in PLACES:
        names = [name for row in TABLE if row.section == section for name in row.names.split()]
        assert len(set(names)) == len(names)
        assert all(find_known(section, name) is not None for name in names)


def test_result_on_the_page_is_what_the_import_writes() -> None:
    """The first two files of the page, without comments."""
    source, result = next(blocks(PAGE, "yml")), next(blocks(PAGE, "yaml"))
    assert yaml.safe_load(import_text(source).text) == yaml.safe_load(result)


def test_digest_of_a_virtual_key_is_that_of_litellm() -> None:
    """SHA-256 in hexadecimal digits, so that digests of its database can be taken over."""
    key = "sk-a-virtual-key-of-litellm"
    assert digest_key(key) == "sha256:" + hashlib.sha256(key.encode()).hexdigest()


def test_page_has_the_table() -> None:
    """After a change of the table: `make docs`."""
    text = Path(PAGE).read_text(encoding="utf-8")
    assert renew(text) == text
