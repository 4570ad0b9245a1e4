"""The section `passthrough` of a settings file."""

import pytest

from stayfast.lab.simulated.settings import KINDS
from stayfast.settings import Settings, SettingsError, SettingsText, load_settings
from stayfast.settings.consistency import find_warnings
from stayfast.settings.effective import SettingsReport

REST = """\
upstreams:
  u: {kind: openai, base_url: "http://u.example", probe: false}
  ant: {kind: anthropic, base_url: "http://a.example", probe: false}
  gem: {kind: gemini, base_url: "http://g.example", probe: false}
  sim: {kind: simulated}
routes: {m: [sim, gem, ant]}
"""


def read(text: str) -> Settings:
    return load_settings(SettingsText("p.yaml", f"{REST}passthrough: {text}\n"), {}, kinds=KINDS)


def test_passthrough_name_alone_is_the_upstream() -> None:
    settings = read("u")
    assert settings.passthrough.upstream == "u"
    assert settings.passthrough.is_on
    assert find_warnings(settings) == []  # u is used
    report = SettingsReport(settings).read()
    assert report.settings["passthrough"]["upstream"] == "u"
    assert report.sources["passthrough.upstream"] == "p.yaml:7"


def test_passthrough_is_off_by_default() -> None:
    settings = load_settings(SettingsText("p.yaml", REST), {}, kinds=KINDS)
    assert not settings.passthrough.is_on
    assert not read("null").passthrough.is_on


def test_passthrough_paths_are_read() -> None:
    passed = read("{paths: {/v1/images: u, /v1/files: ant, /v1/batches: ant}, total_s: 30}").passthrough
    assert passed.upstreams == {"u", "ant"}
    assert (passed.upstream, passed.total_s) == (None, 30)


@pytest.mark.parametrize(("section", "where", "message"), [
    ("openai", "passthrough.upstream", 'there is no upstream "openai"'),
    ("sim", "passthrough.upstream", "requests are passed to endpoints on the network only"),
    ("gem", "passthrough.upstream", "is of kind gemini, whose paths are not those"),
    ("{paths: {/v1/images: x}}", "passthrough.paths", 'there is no upstream "x"'),
    ("{paths: {/v1/chat/completions: u}}", "passthrough.paths", "the gateway serves this path itself"),
    ("{paths: {/v1/models: u}}", "passthrough.paths", "the gateway serves this path itself"),
    ("{paths: {/v1/jobs/x: u}}", "passthrough.paths", "the gateway serves this path itself"),
    ("{paths: {/v1/files: u}}", "passthrough.paths", "name /v1/batches as well"),
    ("{paths: {/v1: u}}", "passthrough.paths", "is not a prefix"),
    ("{paths: {/v1/a/../b: u}}", "passthrough.paths", "is not a prefix"),
    ("{paths: {/admin/x: u}}", "passthrough.paths", "is not a prefix"),
    ("[u]", "passthrough", "must be a mapping"),
])
def test_passthrough_wrong_value_is_named_with_what_to_write(section: str, where: str, message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        read(section)
    assert where in str(caught.value)
    assert message in str(caught.value)
