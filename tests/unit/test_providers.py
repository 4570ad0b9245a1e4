"""The table of providers, and what `provider:` and `kind:` make of it."""

import re

import pytest

from stayfast.core.types import Api
from stayfast.settings import HttpUpstream, Settings, SettingsError, SettingsText, load_settings
from stayfast.settings.effective import SettingsReport
from stayfast.settings.price_table import list_prices_at, read_price_table
from stayfast.settings.providers import ADDRESS_FIELDS, ProviderRow, all_providers
from stayfast.settings.upstreams import NATIVE_APIS

NAMES = re.split(r"\s+", """\
openai anthropic azure azure-anthropic bedrock bedrock-openai bedrock-anthropic gemini gemini-openai vertex
vertex-openai vertex-anthropic xai groq mistral deepseek openrouter together fireworks cerebras sambanova perplexity nvidia
nebius hyperbolic moonshot github cloudflare databricks ollama lmstudio localai vllm sglang llamacpp tgi trtllm
litellm""")
KEYS = {row.key_variable: f"key-of-{name}" for name, row in all_providers().items() if row.key_variable}
ROWS = list(all_providers().items())


def load(upstream: str, variables: dict[str, str] | None = None) -> Settings:
    text = f"upstreams: {{a: {{{upstream}}}}}\nroutes: {{m: [a]}}\n"
    return load_settings(SettingsText("f.yaml", text), KEYS if variables is None else variables)


def upstream(text: str, variables: dict[str, str] | None = None) -> HttpUpstream:
    found = load(text, variables).upstreams["a"]
    assert isinstance(found, HttpUpstream)
    return found


def complaint(text: str, variables: dict[str, str] | None = None) -> str:
    with pytest.raises(SettingsError) as caught:
        load(text, variables)
    [line] = str(caught.value).splitlines()
    return line


def parts_of(row: ProviderRow) -> str:
    """What a user of the provider has to write."""
    parts = "".join(f", {name}: my-{name}" for name in row.address_fields)
    return parts if row.base_url else f"{parts}, base_url: 'http://host:1'"


def test_providers_table_has_all_names() -> None:
    assert list(all_providers()) == NAMES


@pytest.mark.parametrize(("name", "row"), ROWS)
def test_providers_row_is_consistent(name: str, row: ProviderRow) -> None:
    assert set(row.apis) <= NATIVE_APIS[row.kind]
    assert set(row.paths) <= set(row.apis)
    assert bool(row.price_list) == bool(row.price_hosts)
    assert not row.price_list or row.price_list in read_price_table().providers
    assert set(re.findall(r"\{(\w+)\}", row.base_url)) <= {*ADDRESS_FIELDS, "google_host"}
    assert row.is_local is not bool(row.key_variable or row.credentials), name
    assert row.is_local or row.base_url.startswith("https://")
    assert row.engine_metrics == "off" or row.is_local


@pytest.mark.parametrize(("name", "row"), ROWS)
@pytest.mark.parametrize("word", ["provider", "kind"])
def test_upstream_with_provider_has_its_row(word: str, name: str, row: ProviderRow) -> None:
    found = upstream(f"{word}: {name}{parts_of(row)}")
    assert (found.provider, found.kind, found.key_header) == (name, row.kind, row.key_header)
    assert found.native_apis == frozenset(row.apis)
    assert (found.key.reveal() if found.key is not None else "") == KEYS.get(row.key_variable, "")
    assert (found.request_usage, found.supports_continuation, found.engine_metrics) == (
        row.request_usage, row.supports_continuation, row.engine_metrics)
    assert "{" not in found.base_url


@pytest.mark.parametrize(("text", "url"), [
    ("provider: azure, resource: r", "https://r.openai.azure.com/openai/v1"),
    ("provider: azure, base_url: 'https://r.openai.azure.com/', key: k", "https://r.openai.azure.com/openai/v1"),
    ("provider: bedrock, region: eu-west-1", "https://bedrock-runtime.eu-west-1.amazonaws.com"),
    ("provider: vertex, project: p, region: europe-west1",
     "https://europe-west1-aiplatform.googleapis.com/v1/projects/p/locations/europe-west1/publishers/google"),
    ("provider: vertex, project: p, region: global",
     "https://aiplatform.googleapis.com/v1/projects/p/locations/global/publishers/google"),
    ("provider: vertex-anthropic, project: p, region: us",
     "https://aiplatform.us.rep.googleapis.com/v1/projects/p/locations/us/publishers/anthropic"),
    ("provider: cloudflare, account: c1", "https://api.cloudflare.com/client/v4/accounts/c1/ai/v1"),
    ("provider: cloudflare, account: '${GROQ_API_KEY}'", "https://api.cloudflare.com/client/v4/accounts/key-of-groq/ai/v1"),
    ("kind: vllm, base_url: 'http://10.0.0.7:8000'", "http://10.0.0.7:8000/v1"),
    ("kind: perplexity", "https://api.perplexity.ai"),
    ("kind: openai, base_url: 'http://10.0.0.7:8000'", "http://10.0.0.7:8000/v1"),
    ("provider: '${GROQ_API_KEY:-}groq', key: k", "https://api.groq.com/openai/v1"),
])
def test_upstream_address_of_provider(text: str, url: str) -> None:
    variables = KEYS if "${GROQ_API_KEY}" in text else {**KEYS, "GROQ_API_KEY": ""}
    assert upstream(text, variables).base_url == url


@pytest.mark.parametrize(("text", "message"), [
    ("provider: groq", "upstreams.a.key: the environment variable GROQ_API_KEY is not set"),
    ("provider: azure, key: k", "upstreams.a.resource: is missing: the address of azure contains it"),
    ("kind: bedrock", "upstreams.a.region: is missing: the address of bedrock contains it"),
    ("kind: vertex, region: us", "upstreams.a.project: is missing: the address of vertex contains it"),
    ("provider: groq, key: k, region: us", "upstreams.a.region: has no place in the address of groq"),
    ("kind: openai, base_url: 'http://h', region: us", "upstreams.a.region: has no place in the address of openai"),
    ("provider: azure, key: k, resource: 'r/x'",
     'upstreams.a.resource: must be letters, digits and . _ -, not "r/x"'),
    ("provider: groq, kind: anthropic, key: k", "upstreams.a.kind: must be openai for provider groq, or unset"),
    ("kind: llamacpp", "upstreams.a.base_url: is missing: llamacpp has no common address"),
    ("kind: groqq", ("upstreams.a.kind: must be one of openai, anthropic, gemini, bedrock, embedded, turn, encoder, not "
                     '"groqq"; write provider: groq')),
    ("provider: groq, key: k, paths: {messages: /x}",
     "upstreams.a.paths: must be among chat, completions, embeddings, rerank, responses for kind openai, not messages"),
    ("provider: groq, key: k, paths: {chat: x}", ("upstreams.a.paths.chat: must be a path that begins with /, "
     "in braces only {model} or {A|B}, not x")),
    ("provider: groq, key: k, paths: {chat: '/{modle}/chat'}", ("upstreams.a.paths.chat: must be a path that begins with /, "
     'in braces only {model} or {A|B}, not "/{modle}/chat"')),
    ("provider: groq, base_url: '${GROQ_URL}', key: k",
     "upstreams.a.base_url: the environment variable GROQ_URL is not set"),
    ("kind: openai, base_url: '${OPENAI_URL}', key: k",
     "upstreams.a.base_url: the environment variable OPENAI_URL is not set"),
    ("provider: groq, base_url: [x], key: k",
     "upstreams.a.base_url: must be like https://host/v1, without user, password, ? and #, not a list"),
    ("provider: groq, key: k, engine_metrics: auto",
     "upstreams.a.engine_metrics: must be off for api.groq.com: only engines of your own have /metrics"),
])
def test_upstream_with_wrong_provider_settings_is_reported(text: str, message: str) -> None:
    line = complaint(text, {})
    assert re.sub(r"^f\.yaml:\d+:\d+: ", "", line).replace('not "x"', "not x") == message


@pytest.mark.parametrize("upstream", [
    "provider: [groq]", "provider: null", "provider: {a: b}", "kind: [groq]", "kind: {}", "provider: groq, kind: embedded",
    "provider: groq, headers: 5, key: k", "provider: '${MISSING}'", "kind: '${MISSING}'", "provider: '${'"])
def test_upstream_malformed_provider_is_a_settings_error(upstream: str) -> None:
    with pytest.raises(SettingsError, match=r"upstreams\.a"):
        load(upstream, {})


def test_upstream_unknown_provider_is_reported_alone() -> None:
    assert "upstreams.a.provider: must be one of openai, anthropic, azure," in (line := complaint("provider: grooq"))
    assert line.endswith('not "grooq", did you mean groq?')
    assert complaint("provider: azure_openai").endswith("; write provider: azure")


def test_upstream_own_settings_win_over_its_provider() -> None:
    found = upstream("provider: vllm, base_url: 'http://h:1/v1', request_usage: false, apis: [chat], engine_metrics: 'off', "
                     "supports_continuation: false, key_header: x-key, key: k")
    assert (found.native_apis, found.engine_metrics, found.key_header) == (frozenset({Api.CHAT}), "off", "x-key")
    assert not found.request_usage
    assert not found.supports_continuation


def test_upstream_default_key_is_not_sent_to_an_address_of_its_own() -> None:
    """Whoever wrote the address names the key for it."""
    for text in ("provider: groq, base_url: 'http://h/v1'", "kind: openai, base_url: 'http://h/v1'",
                 "provider: azure, resource: r, headers: {Api-Key: other}"):
        assert upstream(text).key is None


def test_upstream_openai_protocol_at_another_address_is_no_provider() -> None:
    found = upstream("kind: openai, base_url: 'http://h/v1'")
    assert (found.provider, Api.RESPONSES in found.native_apis) == ("", False)
    assert Api.RESPONSES in upstream("kind: openai").native_apis
    assert Api.RESPONSES in upstream("provider: openai, base_url: 'https://eu.api.openai.com/v1', key: k").native_apis


def test_effective_settings_name_the_provider_as_source() -> None:
    report = SettingsReport(load("kind: groq")).read()
    assert report.settings["upstreams"]["a"]["provider"] == "groq"
    sources = {path.removeprefix("upstreams.a."): source for path, source in report.sources.items() if "upstreams.a" in path}
    assert {path: sources[path] for path in ("kind", "base_url", "key", "provider")} == {
        "kind": "provider groq", "base_url": "provider groq", "key": "provider groq", "provider": "f.yaml:1"}


@pytest.mark.parametrize(("name", "row"), [(name, row) for name, row in ROWS if row.price_list])
def test_prices_of_provider_are_found_at_its_address(name: str, row: ProviderRow) -> None:
    """One table names the addresses of both; a regional address of Vertex AI has other prices."""
    parts = parts_of(row).replace("my-region", "global")
    assert list_prices_at(upstream(f"provider: {name}{parts}").base_url) or name == "bedrock"


def test_paths_choose_by_stream() -> None:
    assert upstream("provider: vertex-anthropic, project: p, region: us").paths == {
        "messages": "/models/{model}:{rawPredict|streamRawPredict}"}
