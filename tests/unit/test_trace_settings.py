"""Settings of tracing: off by default, checked, and clear about what is missing."""

import subprocess
import sys

import pytest

from stayfast.compose.system import Observers
from stayfast.compose.telemetry import peer_addresses
from stayfast.lab.simulated.settings import KINDS
from stayfast.observe.tracing.config import ENDPOINT, Peer, TraceConfig
from stayfast.settings import Settings, SettingsError, SettingsText, load_settings
from stayfast.testing import SimLoop

REST = """
upstreams:
  near: {kind: openai, base_url: "http://127.0.0.1:8000"}
  far: {kind: anthropic, key: k}
  played: {kind: simulated}
routes: {m: [near, far, played]}
"""
IMPORTED = """
import sys
import stayfast.compose, stayfast.cli
WITH_OTLP = ("opentelemetry", "google.protobuf", "stayfast.observe.tracing.otlp")
print([name for name in sys.modules if name.startswith(WITH_OTLP)])
"""


def settings(tracing: str, **variables: str) -> Settings:
    """Settings with that section."""
    return load_settings(SettingsText("test", f"tracing: {tracing}\n{REST}"), variables, kinds=KINDS)


def observers(of: Settings) -> Observers:
    """The sinks of a gateway with those settings."""
    loop = SimLoop()
    loop.close()
    return Observers(of, loop)


def test_tracing_is_off_by_default() -> None:
    """No sink at all, so nothing is paid."""
    assert settings("{}").tracing.exporter == "none"
    assert observers(settings("{}")).tracing is None


def test_tracing_off_imports_nothing() -> None:
    """A gateway without tracing needs no package of OpenTelemetry's."""
    done = subprocess.run([sys.executable, "-c", IMPORTED], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_tracing_settings_are_loaded() -> None:
    """One more sink; OpenTelemetry's own variables serve by reference."""
    text = '{exporter: otlp, endpoint: "${OTEL_EXPORTER_OTLP_ENDPOINT:-http://127.0.0.1:4318}", sample: 0.1}'
    assert settings(text).tracing.endpoint == ENDPOINT
    found = settings(text, OTEL_EXPORTER_OTLP_ENDPOINT="https://collector:4318")
    assert found.tracing.endpoint == "https://collector:4318"
    sinks = observers(found)
    assert sinks.tracing is not None
    assert sum(sinks.tracing.start_trace(None).is_sampled for _ in range(1_000)) in range(50, 160)


def test_tracing_headers_are_never_shown() -> None:
    """Headers are secrets in the settings and in the objects made from them."""
    found = settings('{exporter: otlp, headers: {authorization: "Bearer ${KEY}"}}', KEY="sk-hidden")
    config = TraceConfig(headers={name: value.reveal() for name, value in found.tracing.headers.items()})
    assert config.headers == {"authorization": "Bearer sk-hidden"}
    assert "sk-hidden" not in repr(found) + repr(config) + repr(observers(found).tracing)


@pytest.mark.parametrize(("text", "complaint"), [
    ("{exporter: jaeger}", "tracing.exporter"), ("{sample: 1.5}", "tracing.sample"), ("{timeout_s: 0}", "tracing.timeout_s"),
    ('{endpoint: "collector:4318"}', "tracing.endpoint"), ('{endpoint: "http://u:p@h"}', "tracing.endpoint"),
    ('{endpoint: "http://h:99999"}', "tracing.endpoint"), ('{headers: {"a b": c}}', "tracing.headers"),
    ('{headers: {a: "b\\nc"}}', "tracing.headers"),
])
def test_tracing_invalid_setting_is_refused(text: str, complaint: str) -> None:
    """Each names its place."""
    with pytest.raises(SettingsError) as raised:
        settings(text)
    assert complaint in str(raised.value)
    assert "u:p@" not in str(raised.value)


def test_tracing_missing_package_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the start, with the command that mends it, and only where tracing is asked for."""
    monkeypatch.setattr("stayfast.observe.tracing.config.find_spec", lambda name: None)
    settings("{}")
    with pytest.raises(SettingsError, match=r"tracing\.exporter.*pip install '\.\[otel\]' in Stayfast's checkout"):
        settings("{exporter: otlp}")


def test_tracing_peers_follow_upstreams() -> None:
    """Who stands behind the upstreams on the network, and where."""
    assert peer_addresses(settings("{}")) == {
        "near": Peer("openai", "127.0.0.1", 8000), "far": Peer("anthropic", "api.anthropic.com", 443)}
