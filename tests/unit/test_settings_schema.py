"""The schema and the reference page: in step with the code, and of one mind with the checker."""

import json
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml

from stayfast.lab.simulated.settings import KINDS
from stayfast.settings import SettingsText, load_settings
from stayfast.settings.schema import json_schema, reference_page
from stayfast.settings.starter import STARTER

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
BASE: dict[str, Any] = {"upstreams": {"a": {"kind": "simulated"}}, "routes": {"m": ["a"]}}


def validator() -> jsonschema_rs.Draft202012Validator:
    """The schema, ready to check."""
    return jsonschema_rs.Draft202012Validator(json_schema(KINDS))


def test_schema_file_is_in_step() -> None:
    """docs/reference/settings.schema.json is what `stayfast schema` prints; `make docs` writes it."""
    assert json.loads((REFERENCE / "settings.schema.json").read_text()) == json_schema(KINDS)


def test_reference_page_is_in_step() -> None:
    """docs/reference/settings.md is what `stayfast schema --markdown` prints."""
    assert (REFERENCE / "settings.md").read_text() == reference_page(KINDS)


def test_schema_is_itself_valid() -> None:
    """It holds to draft 2020-12."""
    jsonschema_rs.meta.validate(json_schema(KINDS))


def test_every_setting_is_on_the_page() -> None:
    """Each property of the schema has its row, with words."""
    page = reference_page(KINDS)
    for definition in [json_schema(KINDS), *json_schema(KINDS)["$defs"].values()]:
        for name, about in definition.get("properties", {}).items():
            assert f"\n`{name}` | " in page
            assert len(about["description"]) > 8, name


@pytest.mark.parametrize("text", [STARTER, """
server: {port: 80, auth: off, keys: {a: "sha256:%s"}}
upstreams:
  a: {kind: openai, base_url: "http://h/v1", key: "${K}", http: 1.1, apis: [chat], headers: {x: 1}, models: {m: 4.10}}
  b: {kind: anthropic, key: k, ca_file: null}
  c: {kind: embedded, n_slots: 2}
routes: {m: [a, b], n: {upstreams: [c], timeouts: {total_s: 1.5}, model: 7, hedge: {budget: auto}},
         o: {upstreams: [c], hedge: {budget: 0.2}}, p: {upstreams: [c], hedge: {budget: "${N}"}}}
defaults: {retry: {max_attempts: "${N}"}}
log:
""" % ("0" * 64)])
def test_accepted_file_is_valid_in_schema(text: str) -> None:
    """An editor that knows the schema marks nothing in a file that works."""
    variables = {"K": "k", "N": "1", "OPENAI_API_KEY": "k"}
    load_settings(SettingsText("x", text), variables, check_engine=lambda config: None, kinds=KINDS)
    validator().validate(yaml.safe_load(text))


@pytest.mark.parametrize("change", [
    {"prot": 1}, {"server": {"port": "x"}}, {"server": {"port": -1}}, {"server": {"auth": "of"}}, {"workers": 0},
    {"server": {"keys": {"a": "x"}}}, {"upstreams": {"a": {}}}, {"upstreams": {"a": {"kind": "simulated", "key": "k"}}},
    {"upstreams": {"a": {"kind": "nope"}}}, {"routes": {"m": 5}}, {"log": {"level": "loud"}},
    {"defaults": {"timeouts": {"total_s": 0}}}, {"defaults": {"hedge": {"budget": 0}}},
    {"defaults": {"hedge": {"budget": "off"}}}, {"server": []}, {"log": {"requests": "yes"}},
])
def test_file_invalid_in_schema_is_refused(change: dict[str, Any]) -> None:
    """A file that an editor marks does not load either."""
    document = {**BASE, **change}
    assert not validator().is_valid(document)
    with pytest.raises(ValueError, match="x:"):
        load_settings(SettingsText("x", json.dumps(document)), {}, check_engine=lambda config: None, kinds=KINDS)
