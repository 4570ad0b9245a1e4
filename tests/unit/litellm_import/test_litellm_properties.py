"""Whatever a configuration has: every value is in one list, no secret is shown, and the written file can be read."""

from typing import Any

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from stayfast.settings.litellm_import.ledger import ImportVerdict
from stayfast.settings.litellm_import.report import count_verdicts, format_lists, format_values
from stayfast.settings.yaml_nodes import parse
from tests.unit.litellm_import.rig import import_text, verdicts

BASE = """\
model_list:
- model_name: m
  litellm_params: {model: openai/gpt-x, api_key: os.environ/K, rpm: 5, extra_headers: {x-title: t}}
  model_info: {mode: chat}
- model_name: n
  litellm_params: {model: hosted_vllm/q, api_base: "http://h:8000/v1"}
credential_list: [{credential_name: c, credential_values: {api_key: os.environ/C}}]
router_settings: {num_retries: 2, fallbacks: [{m: [n]}], retry_policy: {TimeoutErrorRetries: 1}}
litellm_settings: {cache: true, cache_params: {type: redis, host: h}}
general_settings: {master_key: os.environ/MASTER, coordination_redis: {host: h}}
"""
WORDS = st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=12)
KNOWN = ("model_list", "litellm_params", "model_info", "model_name", "model", "api_base", "api_key", "include", "rpm",
         "weight", "order", "timeout", "fallbacks", "model_group_alias", "cache", "cache_params", "type", "host",
         "master_key", "num_retries", "retry_policy", "litellm_settings", "router_settings", "general_settings",
         "credential_list", "coordination_redis", "optional_pre_call_checks", "callbacks", "organization",
         "extra_headers", "base_model")
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | WORDS
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
    st.sampled_from(KNOWN) | WORDS, inner, max_size=4), max_leaves=20)
SECRETS = st.from_regex(r"sk-[A-Za-z0-9]{12,20}", fullmatch=True)


def mappings(node: Any, path: tuple[str | int, ...] = ()) -> list[tuple[tuple[str | int, ...], dict[str, Any]]]:
    """All mappings of a configuration, with their paths."""
    if isinstance(node, list):
        return [found for n, item in enumerate(node) for found in mappings(item, (*path, n))]
    if not isinstance(node, dict):
        return []
    return [(path, node), *[found for name, item in node.items() for found in mappings(item, (*path, name))]]


@given(name=WORDS, value=SCALARS, place=st.integers(min_value=0))
@settings(max_examples=200, deadline=None)
def test_unknown_key_anywhere_is_listed_as_not_taken(name: str, value: object, place: int) -> None:
    """Under a name that no table has; those of headers aside, which are free."""
    tree = yaml.safe_load(BASE)
    found = [one for one in mappings(tree) if "extra_headers" not in one[0]]
    where, node = found[place % len(found)]
    node[f"unheard-{name}"] = value
    text = yaml.safe_dump(tree, allow_unicode=True)
    imported = import_text(text)
    listed = [verdict for path, verdict in verdicts(imported).items() if "unheard-" in path]
    assert listed == [ImportVerdict.NOT_TAKEN], where
    line = next(n for n, one in enumerate(text.splitlines(), 1) if "unheard-" in one)
    assert f"config.yaml:{line}: " in format_values(imported.ledger).partition("not taken:")[2]


@given(tree=st.dictionaries(st.sampled_from(KNOWN) | WORDS, VALUES, max_size=5).filter(lambda tree: "include" not in tree))
@settings(max_examples=300, deadline=None)
def test_each_value_of_any_configuration_is_in_one_list(tree: dict[str, Any]) -> None:
    """And the written file is YAML again."""
    imported = import_text(yaml.safe_dump(tree, allow_unicode=True))
    values = imported.ledger.values
    assert len({value.path for value in values}) == len(values)
    assert sum(count_verdicts(imported.ledger).values()) == len(values)
    assert sum(len(group.values) for group in imported.ledger.groups()) == len(values)
    assert len(format_values(imported.ledger).splitlines()) == len(values) + len(ImportVerdict)
    assert parse(imported.text, "")[1] == []


@given(entry=st.dictionaries(st.sampled_from(KNOWN), VALUES, max_size=8))
@settings(max_examples=300, deadline=None)
def test_any_entry_of_a_model_list_is_read_or_listed(entry: dict[str, Any]) -> None:
    """Wrong types are no crash."""
    params = {"model": "openai/x", **entry}
    tree = {"model_list": [{"model_name": "m", "litellm_params": params, "model_info": entry}], "router_settings": entry,
            "litellm_settings": entry, "general_settings": entry}
    imported = import_text(yaml.safe_dump(tree, allow_unicode=True))
    assert sum(count_verdicts(imported.ledger).values()) == len(imported.ledger.values)
    assert parse(imported.text, "")[1] == []


@given(secrets=st.lists(SECRETS, min_size=9, max_size=9, unique=True))
@settings(max_examples=50, deadline=None)
def test_secret_in_clear_text_is_never_written_nor_listed(secrets: list[str]) -> None:
    """In every place that may hold one; each becomes a reference to its own variable."""
    key, header, vault, redis, master, database, sentinel, client, made = secrets
    imported = import_text(f"""\
model_list:
- {{model_name: a, litellm_params: {{model: openai/x, api_key: {key}, extra_headers: {{x-auth: {header}}}}}}}
- {{model_name: b, litellm_params: {{model: openai/x, litellm_credential_name: c}}}}
- {{model_name: d, litellm_params: {{model: azure/x, api_base: "https://r.openai.azure.com", client_id: i,
   tenant_id: t, client_secret: {client}}}}}
- {{model_name: e, litellm_params: {{model: bedrock/x, aws_access_key_id: {made}, aws_secret_access_key: {made}-2}}}}
credential_list: [{{credential_name: c, credential_values: {{api_key: {vault}}}}}]
litellm_settings: {{cache: true, cache_params: {{type: redis, host: h, password: {redis}}}}}
general_settings: {{master_key: {master}, database_url: "postgres://u:{database}@h/d",
  coordination_redis: {{url: "redis://:{sentinel}@h"}}}}
environment_variables: {{OPENAI_API_KEY: {key}}}
""")
    shown = imported.text + format_lists(imported.ledger) + format_values(imported.ledger)
    assert [secret for secret in secrets if secret in shown] == []
    for name in ("${OPENAI_KEY}", "${OPENAI_KEY_2}", "${OPENAI_X_AUTH}", "${AZURE_CLIENT_SECRET}", "${AWS_ACCESS_KEY_ID}",
                 "${AWS_SECRET_ACCESS_KEY}", "${REDIS_PASSWORD}", "${STAYFAST_MASTER_KEY_DIGEST}", "${REDIS_URL}"):
        assert name in imported.text
