"""Any settings file gives settings or a SettingsError, never another exception."""

import json
from typing import Any

import jsonschema_rs
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from stayfast.lab.simulated.settings import KINDS
from stayfast.settings import SettingsError, SettingsText, load_settings
from stayfast.settings.schema import json_schema

KEYS = ("server", "upstreams", "routes", "defaults", "log", "port", "auth", "keys", "kind", "openai", "a", "m", "timeouts",
        "total_s", "upstreams", "retry", "<<", "models", "headers", "apis")
WORDS = st.sampled_from([*KEYS, "off", "1", "0", "-1", "1.5", "", "~", "embedded", "simulated", "chat", "${X}", "http://h/v1"])
SCALARS = WORDS | st.integers() | st.floats() | st.booleans() | st.none() | st.text(max_size=8)
TREES: st.SearchStrategy[Any] = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=20)


def run(text: str) -> bool:
    """Whether the text loads."""
    try:
        load_settings(SettingsText("f.yaml", text), {"X": "1"}, check_engine=lambda config: None,
                      check_turn=lambda named: None,
             kinds=KINDS)
    except SettingsError as error:
        problems, shown = error.problems, str(error)
    else:
        return True
    assert len(shown.splitlines()) == len(problems) > 0, "a line a problem"
    return False


@given(st.text(alphabet="abk:{}[]&*<!|>-#\n\t \"'${}%?,0\x00\ud7ff", max_size=60))
@settings(max_examples=300, deadline=None)
def test_settings_any_text_loads_or_is_rejected(text: str) -> None:
    """Bytes of every kind, anchors and tags among them."""
    run(text)


@given(TREES)
@settings(max_examples=300, deadline=None)
def test_settings_any_tree_loads_or_is_rejected(tree: Any) -> None:
    """YAML of any form, with known names in wrong places."""
    run(yaml.safe_dump(tree))


@given(st.fixed_dictionaries({}, optional={
    "server": st.fixed_dictionaries({}, optional={"port": SCALARS, "drain_s": SCALARS, "metrics_access": SCALARS}),
    "log": st.fixed_dictionaries({}, optional={"level": SCALARS, "requests": SCALARS}),
    "defaults": st.fixed_dictionaries({"timeouts": st.dictionaries(st.sampled_from(["total_s", "idle_s"]), SCALARS)}),
    "workers": SCALARS,
}))
@settings(max_examples=300, deadline=None)
def test_settings_loaded_values_fit_the_schema(tree: dict[str, Any]) -> None:
    """The checker accepts nothing that the schema rejects (in JSON, where types are unambiguous)."""
    text = json.dumps(tree)
    if "NaN" not in text and "Infinity" not in text and run(text):
        jsonschema_rs.validate(json_schema(), tree)
