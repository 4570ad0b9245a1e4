"""What routes get by default when all of their upstreams are engines of one's own."""

import sys

import pytest

from stayfast.settings import Settings, SettingsError, SettingsText, load_settings
from stayfast.settings.engine_routes import ENGINES

UPSTREAMS = """upstreams:
  a: {kind: vllm, base_url: "http://a:1"}
  b: {provider: sglang, base_url: "http://b:1"}
  c: {kind: llamacpp, base_url: "http://c:1"}
  d: {kind: openai, base_url: "http://d:1/v1"}
  t: {kind: tgi, base_url: "http://t:1"}
  r: {kind: trtllm, base_url: "http://r:1"}
"""


def settings_of(route: str) -> Settings:
    return load_settings(SettingsText("f.yaml", f"{UPSTREAMS}routes: {{m: {route}}}"), {})


@pytest.mark.parametrize(("route", "affinity", "tokenizer"), [
    ("[a, b]", "prefix", "upstream"),
    ("{upstreams: [a, b], affinity: {ttl_s: 60}}", "prefix", "upstream"),
    ("[a, c]", "prefix", ""),
    ("[t, r]", "prefix", ""),
    ("[a]", "off", "upstream"),
    ("[a, d]", "off", ""),
    ("{upstreams: [a, b], affinity: {mode: sessions}, context: {tokenizer: cl100k_base}}", "sessions", "cl100k_base"),
    ("{upstreams: [a, b], affinity: {mode: 'off'}}", "off", "upstream"),
    ("{upstreams: [a, b], pick: order}", "off", "upstream")])
def test_engine_routes_get_affinity_and_counts_unless_set(route: str, affinity: str, tokenizer: str) -> None:
    settings = settings_of(route)
    found = settings.routes["m"]
    assert (found.affinity.mode, found.context.tokenizer) == (affinity, tokenizer)
    assert settings.sources.get("routes.m.affinity.mode", ENGINES) in (ENGINES, "f.yaml:8")


def test_engine_routes_defaults_have_their_source() -> None:
    """`stayfast check --effective` shows where they come from."""
    sources = settings_of("[a, b]").sources
    assert sources["routes.m.affinity.mode"] == sources["routes.m.context.tokenizer"] == ENGINES
    assert sources["routes.m.upstreams"] == "f.yaml:8"


@pytest.mark.parametrize("kind", ["vllm", "sglang", "llamacpp", "tgi", "trtllm"])
def test_engine_kinds_read_their_metrics_and_request_usage(kind: str) -> None:
    text = f"upstreams: {{a: {{kind: {kind}, base_url: 'http://a:1'}}}}\nroutes: {{m: [a]}}"
    upstream = load_settings(SettingsText("f.yaml", text), {}).upstreams["a"]
    assert getattr(upstream, "engine_metrics", "") == "auto"
    assert getattr(upstream, "request_usage", False) is True


@pytest.mark.parametrize(("upstream", "pool", "named"), [
    ("", "{min_warm: 3}", "routes.m.pool.min_warm: must be at most 2"),
    (", kv_events: {endpoint: 'tcp://a:5557'}", "{min_warm: 2}", "upstreams.a.kv_events: needs a package")])
def test_engine_routes_that_cannot_work_name_the_field(
        monkeypatch: pytest.MonkeyPatch, upstream: str, pool: str, named: str) -> None:
    """More ready replicas than there are upstreams; KV events without pyzmq."""
    monkeypatch.setitem(sys.modules, "zmq", None)
    text = f"""upstreams:
  a: {{kind: vllm, base_url: 'http://a:1'{upstream}}}
  b: {{kind: vllm, base_url: 'http://b:1'}}
routes: {{m: {{upstreams: [a, b], pool: {pool}}}}}"""
    with pytest.raises(SettingsError) as caught:
        load_settings(SettingsText("f.yaml", text), {})
    assert named in str(caught.value)
