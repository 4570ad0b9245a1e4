"""Settings as they should not be: every mistake is found, placed, explained, and no secret is shown."""

import pickle
from dataclasses import MISSING
from pathlib import Path
from typing import Any

import pytest

from stayfast.core.setting import read_declarations
from stayfast.engine.config import EngineConfig
from stayfast.lab.simulated.settings import KINDS
from stayfast.settings import (
    HttpUpstream,
    Override,
    Secret,
    Settings,
    SettingsError,
    SettingsText,
    load_settings,
    read_settings_file,
)
from stayfast.settings.decoder import (
    ListField,
    OptionalField,
    PlainField,
    RecordField,
    Shape,
    TableField,
    VariantField,
    WordOrNumber,
    record_settings,
)

UPSTREAM = "upstreams: {a: {kind: openai, base_url: 'http://h/v1'}}\n"
ROUTE = "routes: {m: [a]}\n"
BASE = UPSTREAM + ROUTE


def complaints(text: str, variables: dict[str, str] | None = None, *given: Override) -> list[str]:
    """The lines of the error that a text makes."""
    with pytest.raises(SettingsError) as caught:
        load_settings(SettingsText("f.yaml", text), variables or {}, given, check_engine=lambda config: None, kinds=KINDS)
    return str(caught.value).splitlines()


@pytest.mark.parametrize(("text", "complaint"), [
    ("server: {port: eighty}", 'server.port: must be a whole number from 0 to 65535, not "eighty"'),
    ("server: {port: 65536}", 'server.port: must be a whole number from 0 to 65535, not 65536'),
    ('server: {port: "80"}', 'server.port: must be a whole number from 0 to 65535, not "80": write it without quotes'),
    ("server: {port: 0x50}", 'server.port: must be a whole number from 0 to 65535, not 0x50'),
    ("server: {port: 010}", ('server.port: must be a whole number from 0 to 65535, not 010: a leading zero means octal '
                            "to some readers of YAML")),
    ("server: {port: }", "server.port: must be a whole number from 0 to 65535, not nothing"),
    ("server: {port: [1]}", "server.port: must be a whole number from 0 to 65535, not a list"),
    ("server: {drain_s: .inf}", 'server.drain_s: must be a number from 0 to 86400, not ".inf"'),
    ("server: {prot: 1}", "server.prot: unknown setting, did you mean port?"),
    ("server: {max-body-bytes: 1}", "server.max-body-bytes: unknown setting, did you mean max_body_bytes?"),
    ("server: {xyzzy: 1}", "server.xyzzy: unknown setting"),
    ("server: 5", "server: must be a mapping (host, port, tls, ...)"),
    ("server: {auth: of}", 'server.auth: must be one of auto, off, required, not "of", did you mean off?'),
    ("log: {requests: yes}", 'log.requests: must be true or false, not "yes"'),
    ("server: {host: 0.0.0.0}", ("server.host: 0.0.0.0 is reachable from other machines, but there are no keys: "
                                 "add one to server.keys (`stayfast key` makes one), or set auth: off")),
    ("server: {keys: {bob: sk-raw-secret}}",
     "server.keys.bob: must be sha256: and 64 hex digits (`stayfast key` makes one)"),
    ("server: {keys: [a]}", "server.keys: must be a mapping of names, like {NAME: ...}"),
    ("workers: 0", "workers: must be a whole number from 1 to 256, not 0"),
    ("defaults: {timeouts: {total_s: 0}}",
     "defaults.timeouts.total_s: must be a number more than 0 and at most 86400, not 0"),
    ("defaults: {retry: {backoff_base_s: 9, backoff_cap_s: 1}}",
     "defaults.retry.backoff_base_s: must be at most backoff_cap_s (1), not 9"),
    ("defaults: {hedge: {budget: aut}}",
     'defaults.hedge.budget: must be auto or a number more than 0 and at most 1, not "aut"'),
    ("defaults: {hedge: {budget: 0}}",
     'defaults.hedge.budget: must be auto or a number more than 0 and at most 1, not 0'),
    ("log: {level: info, level: debug}", "log.level: duplicate key, first in line 3"),
    ("log: {level: !!python/name:os.system x}", "log.level: YAML tags such as !!python/name:os.system are not supported"),
    ("log: &me {level: *me}", "log.level: an anchor must not contain itself"),
    ("<<: 5", "<< takes mappings only"),
    ("? [a]\n: 1", "a key must be a scalar"),
])
def test_settings_invalid_value_is_reported(text: str, complaint: str) -> None:
    """Each mistake is told with its path, the value, and what is expected."""
    first, *_ = complaints(BASE + text)
    place, _, message = first.partition(": ")
    assert message == complaint
    assert place.startswith(("f.yaml:3:", "f.yaml:4:"))


WORDS = "openai, anthropic, gemini, bedrock, embedded, turn, encoder, simulated"  # of `kind`


@pytest.mark.parametrize(("upstream", "complaint"), [
    ("{}", f"upstreams.a: `kind` is missing: one of {WORDS}"),
    ("5", f"upstreams.a: must be a mapping with `kind`: one of {WORDS}"),
    ("{kind: opnai}", (f'upstreams.a.kind: must be one of {WORDS}, not "opnai", '
                      "did you mean openai?")),
    ("{kind: simulated, key: x}", "upstreams.a.key: unknown setting"),
    ("{kind: openai}", "upstreams.a.key: the environment variable OPENAI_API_KEY is not set"),
    ("{kind: openai, key: null}", "upstreams.a.key: is missing: api.openai.com requires one, for example ${OPENAI_API_KEY}"),
    ("{kind: openai, base_url: 'ftp://h'}",
     "upstreams.a.base_url: must be like https://host/v1, without user, password, ? and #"),
    ("{kind: openai, base_url: 'http://u:hunter2@h/v1'}",
     "upstreams.a.base_url: must be like https://host/v1, without user, password, ? and #"),
    ("{kind: anthropic, key: k, apis: [chat]}",
     "upstreams.a.apis: must be among count_tokens, messages for kind anthropic, not chat"),
    ("{kind: openai, key: k, apis: [chats]}",
     ('upstreams.a.apis[0]: must be one of chat, completions, embeddings, rerank, responses, messages, count_tokens, '
      'input_tokens, tokenize, gemini, converse, not "chats", '
     "did you mean chat?")),
    ("{kind: openai, key: k, headers: {'x:y': v}}", "upstreams.a.headers: 'x:y' is not a header's name"),
    ('{kind: openai, key: k, headers: {x: "a\\r\\nb: c"}}', "upstreams.a.headers.x: must be ASCII characters on one line"),
    ('{kind: openai, key: "hunter2\\n"}',
     "upstreams.a.key: must be visible ASCII characters, without spaces or line breaks"),
    ('{kind: openai, key: k, http: "1\\n2"}', 'upstreams.a.http: must be one of auto, 1.1, 2, not "1\\n2"'),
    ("{kind: openai, key: k, ca_file: /nope.pem}", "upstreams.a.ca_file: no such file"),
    ("{kind: openai, key: k, http: 3}", 'upstreams.a.http: must be one of auto, 1.1, 2, not 3'),
    ("{kind: embedded, port: 80}", "upstreams.a.port: must be 0 (chosen) or 1024 to 65535, not 80"),
    ("{kind: openai, key: [k]}", "upstreams.a.key: must be text, not a list"),
])
def test_upstream_invalid_setting_is_reported(upstream: str, complaint: str) -> None:
    """An upstream's mistakes name the upstream."""
    assert [line.partition(": ")[2] for line in complaints(f"upstreams: {{a: {upstream}}}\n{ROUTE}")] == [complaint]


@pytest.mark.parametrize(("routes", "complaint"), [
    ("{m: [b]}", 'routes.m.upstreams[0]: there is no upstream "b"'),
    ('{m: ["${WHERE}"]}', 'routes.m.upstreams[0]: there is no upstream "${WHERE}"'),
    ("{m: {upstreams: []}}", "routes.m.upstreams: must name at least one upstream"),
    ("{m: [a, a]}", "routes.m.upstreams: must name each upstream once"),
    ("{m: {}}", "routes.m.upstreams: must name at least one upstream"),
    ("{m: {upstreams: a}}", "routes.m.upstreams: must be a list: [text, ...]"),
    ('{"m 1": [a]}', 'routes."m 1": a name must be 1 to 200 visible ASCII characters'),
    ("{}", "routes: at least one route is required: a name that clients send as `model`"),
])
def test_route_invalid_setting_is_reported(routes: str, complaint: str) -> None:
    """A route's mistakes name the route, and quote its dots and blanks."""
    lines = complaints(f"{UPSTREAM}routes: {routes}", {"WHERE": "nowhere"})
    assert [line.partition(": ")[2] for line in lines] == [complaint]


def test_settings_all_problems_are_reported_in_file_order() -> None:
    """A person mends a file once, not once a mistake."""
    lines = complaints("""\
server: {port: x, keys: {a: b}}
upstreams:
  a: {kind: nope}
  b:
    kind: openai
    key: ${UNSET}
    kind: openai
routes:
  m: [a, bb]
  n: {upstreams: [c], timeouts: {total: 1}}
""")
    assert [line.split(": ")[:2] for line in lines] == [
        ["f.yaml:1:16", "server.port"], ["f.yaml:1:29", "server.keys.a"], ["f.yaml:3:13", "upstreams.a.kind"],
        ["f.yaml:6:10", "upstreams.b.key"], ["f.yaml:7:5", "upstreams.b.kind"], ["f.yaml:9:10", "routes.m.upstreams[1]"],
        ["f.yaml:10:19", "routes.n.upstreams[0]"], ["f.yaml:10:34", "routes.n.timeouts.total"],
    ]


@pytest.mark.parametrize(("text", "complaint"), [
    ("a: [1\n", "f.yaml:2:1: not YAML: did not find expected ',' or ']'"),
    ("a: {key: ${X}}",
     "f.yaml:1:11: not YAML: did not find expected ',' or '}'; inside { } write \"${...}\" with quotes"),
    ("\tx: 1", "f.yaml:1:1: not YAML: found character that cannot start any token"),
    ("- a\n- b", "f.yaml:1:1: must be a mapping (server, upstreams, routes, ...)"),
    ("a: *b", "f.yaml:1:4: not YAML: found undefined alias"),
    ("a: 1\n---\nb: 2", "f.yaml:2:1: not YAML: but found another document"),
])
def test_settings_invalid_yaml_is_reported(text: str, complaint: str) -> None:
    """What cannot be read at all is placed too."""
    assert complaints(text)[0] == complaint


def test_control_characters_are_not_yaml() -> None:
    """A byte that no YAML may hold is an error like any other."""
    assert complaints("a: \x00")[0].startswith("f.yaml: not YAML: ")


@pytest.mark.parametrize(("text", "complaint"), [
    ("${NOPE}", "the environment variable NOPE is not set"),
    ("${EMPTY}", "the environment variable EMPTY is empty"),
    ("${no pe}", "${no pe} is not a reference: write ${NAME} or ${NAME:-default}"),
    ("x${NOPE", "${ without }"),
])
def test_settings_invalid_reference_is_reported(text: str, complaint: str) -> None:
    """An unset variable is named, with its line."""
    lines = complaints(f"{UPSTREAM.replace('}}', f', key: {text!r}}}}}')}{ROUTE}", {"EMPTY": ""})
    assert lines == [f"f.yaml:1:61: upstreams.a.key: {complaint}"]


def test_values_from_the_environment_are_never_shown() -> None:
    """A secret that landed in the wrong setting stays unseen, whatever is wrong with it there."""
    for setting in ("server: {port: '${S}'}", "server: {auth: '${S}'}", "log: {requests: '${S}'}",
                    "upstreams: {a: {kind: '${S}'}}", "routes: {m: ['${S}']}", "server: {keys: {a: '${S}'}}"):
        lines = complaints(setting, {"S": "hunter2hunter2"})
        assert lines
        assert "hunter2" not in "".join(lines)


def test_override_invalid_value_names_variable_or_flag() -> None:
    """A wrong flag or variable is named in place of a line."""
    assert complaints(BASE, {}, Override(("server", "port"), "x", "--port")) == [
        '--port: server.port: must be a whole number from 0 to 65535, not "x"']


@pytest.mark.parametrize(("upstream", "host"), [
    ("{kind: openai, key: k, engine_metrics: auto}", "api.openai.com"),
    ("{kind: anthropic, key: k, base_url: 'http://h', engine_metrics: vllm}", "h")])
def test_engine_metrics_of_a_hosted_api_are_refused(upstream: str, host: str) -> None:
    (line,) = complaints(f"upstreams: {{a: {upstream}}}\n{ROUTE}")
    assert f"engine_metrics: must be off for {host}" in line


def test_embedded_engine_not_runnable_is_reported() -> None:
    """A model that is not there is a mistake in the settings, not a crash loop later."""
    with pytest.raises(SettingsError, match=r"x:1:\d+: upstreams.e.model: '/nope.gguf' cannot be read"):
        load_settings(SettingsText("x", "upstreams: {e: {kind: embedded, model: /nope.gguf}}\nroutes: {m: [e]}"), {},
             check_engine=_cannot_read, kinds=KINDS)


def _cannot_read(config: EngineConfig) -> None:
    raise ValueError(f"model {config.model!r} cannot be read")


def test_settings_unreadable_file_is_reported(tmp_path: Path) -> None:
    """A missing file, a folder and text in another encoding are told by name."""
    with pytest.raises(SettingsError, match=r"nope\.yaml: cannot be read: No such file"):
        read_settings_file(str(tmp_path / "nope.yaml"), {})
    with pytest.raises(SettingsError, match="cannot be read: Is a directory"):
        read_settings_file(str(tmp_path), {})
    (tmp_path / "latin.yaml").write_bytes(b"a: \xe9")
    with pytest.raises(SettingsError, match=r"latin\.yaml: not UTF-8 at byte 3"):
        read_settings_file(None, {"STAYFAST_CONFIG": str(tmp_path / "latin.yaml")})


def test_secrets_print_as_stars() -> None:
    """No way of printing settings shows a key, and a key is not pickled by accident."""
    secret = Secret("sk-hunter2")
    upstream = HttpUpstream(kind="openai", key=secret, headers={"x": Secret("hunter3")})
    shown = f"{secret} {secret!r} {upstream} {upstream!r} {[secret]}"
    assert "hunter" not in shown
    assert secret.reveal() == "sk-hunter2"
    assert len({secret, Secret("sk-hunter2"), Secret("other")}) == 2
    with pytest.raises(TypeError):
        pickle.dumps(secret)


def lower_floor_records() -> list[Any]:
    """The dataclasses of lower floors that a file may set, in the order of the file."""
    found: dict[type[Any], None] = {}
    waiting: list[Shape] = [RecordField(Settings)]
    while waiting:
        match waiting.pop():
            case OptionalField(inner) | ListField(inner) | TableField(inner):
                waiting.append(inner)
            case VariantField(by_kind):
                waiting += [RecordField(cls) for _, cls in by_kind]
            case RecordField(cls) if cls not in found:
                found[cls] = None
                waiting += [setting.shape for setting in record_settings(RecordField(cls))]
                waiting += [RecordField(setting.inlined_in[1]) for setting in record_settings(RecordField(cls))
                            if setting.inlined_in is not None]
            case _:
                pass
    return [cls for cls in found if not cls.__module__.startswith("stayfast.settings")]


@pytest.mark.parametrize("cls", lower_floor_records())
def test_config_classes_reject_values_outside_bounds(cls: type[Any]) -> None:
    """A value beyond a bound is refused by the dataclass itself, wherever it is made."""
    needed = {setting.name: "x" for setting in record_settings(RecordField(cls)) if setting.default is MISSING}
    for setting in record_settings(RecordField(cls)):
        shape = setting.shape.inner if isinstance(setting.shape, OptionalField) else setting.shape
        shape = shape.number if isinstance(shape, WordOrNumber) else shape
        if not isinstance(shape, PlainField) or shape.kind not in ("integer", "number") or setting.inlined_in:
            continue  # an inlined record is tried by itself
        assert setting.default is not MISSING
        kind, step = (int, 1) if shape.kind == "integer" else (float, 1e-6)
        about = setting.doc
        for bound, beyond in ((about.minimum, -step), (about.maximum, step * abs(about.maximum or 1)), (about.more_than, 0)):
            if bound is not None:
                with pytest.raises(ValueError, match=f"^{setting.name} must be"):
                    cls(**needed, **{setting.name: kind(bound + beyond)})


@pytest.mark.parametrize("cls", lower_floor_records())
def test_config_classes_declare_every_field(cls: Any) -> None:
    """A field that is added on a lower floor needs its words, or no file can set it."""
    assert set(read_declarations(cls)) == set(cls.__dataclass_fields__)


def test_config_classes_of_lower_packages_are_found() -> None:
    """Those that stand among their parent's settings, in a table and behind null as well."""
    names = {cls.__name__ for cls in lower_floor_records()}
    assert names >= {"Timeouts", "EngineConfig", "SizeConfig", "Price", "LanesConfig", "SharedConfig", "ModelRules"}
