"""Entries of `model_list`: upstreams, routes, order, patterns, credentials, and what is not taken."""

from typing import Any

import pytest

from stayfast.settings.litellm_import.importer import import_litellm
from stayfast.settings.litellm_import.ledger import ImportVerdict
from stayfast.settings.load import SettingsText
from stayfast.settings.problems import SettingsError
from stayfast.settings.upstreams import HttpUpstream
from tests.unit.litellm_import.rig import import_text, load_written, reasons, verdicts


def entry(model: str, name: str = "m", **params: Any) -> str:
    """One entry on a line."""
    rest = "".join(f", {key}: {value}" for key, value in params.items())
    return f"- {{model_name: {name!r}, litellm_params: {{model: {model!r}{rest}}}}}\n"


def upstream(text: str) -> HttpUpstream:
    """The only upstream of an import, as it loads."""
    [found] = load_written(import_text(f"model_list:\n{text}")).upstreams.values()
    assert isinstance(found, HttpUpstream)
    return found


@pytest.mark.parametrize(("model", "params", "host", "name"), [
    ("gpt-4o", {}, "api.openai.com", "gpt-4o"),
    ("openai/gpt-4o", {}, "api.openai.com", "gpt-4o"),
    ("claude-sonnet-4-5", {}, "api.anthropic.com", "claude-sonnet-4-5"),
    ("azure/dep", {"api_base": "'https://my-res.openai.azure.com/'", "api_key": "os.environ/A"},
     "my-res.openai.azure.com", "dep"),
    ("azure_ai/claude-haiku-4-5", {"api_base": "'https://r.services.ai.azure.com/anthropic'", "api_key": "os.environ/A"},
     "r.services.ai.azure.com", "claude-haiku-4-5"),
    ("bedrock/converse/us.anthropic.claude-x-v1:0", {"aws_region_name": "eu-west-1"},
     "bedrock-runtime.eu-west-1.amazonaws.com", "us.anthropic.claude-x-v1:0"),
    ("bedrock/eu-central-1/anthropic.claude-x", {}, "bedrock-runtime.eu-central-1.amazonaws.com", "anthropic.claude-x"),
    ("vertex_ai/gemini-2.5-pro", {"vertex_project": "p", "vertex_location": "europe-west1"},
     "europe-west1-aiplatform.googleapis.com", "gemini-2.5-pro"),
    ("vertex_ai/claude-opus-4-5@20251101", {"vertex_project": "p", "vertex_location": "global"},
     "aiplatform.googleapis.com", "claude-opus-4-5@20251101"),
    ("gemini/gemini-2.5-flash", {}, "generativelanguage.googleapis.com", "gemini-2.5-flash"),
    ("groq/llama-3.3-70b-versatile", {}, "api.groq.com", "llama-3.3-70b-versatile"),
    ("together_ai/meta-llama/Llama-3", {}, "api.together.xyz", "meta-llama/Llama-3"),
    ("openrouter/openai/gpt-4o", {}, "openrouter.ai", "openai/gpt-4o"),
    ("hosted_vllm/q/w", {"api_base": "'http://10.0.0.7:8000/v1'"}, "10.0.0.7", "q/w"),
    ("ollama/llama3", {}, "127.0.0.1", "llama3"),
    ("deepinfra/x", {"api_base": "'https://api.deepinfra.com/v1/openai'"}, "api.deepinfra.com", "x"),
    ("anything", {"custom_llm_provider": "mistral"}, "api.mistral.ai", "anything"),
])
def test_prefix_of_a_model_names_the_upstream(model: str, params: dict[str, Any], host: str, name: str) -> None:
    """Address, and the model's name there."""
    found = import_text(f"model_list:\n{entry(model, **params)}")
    settings = load_written(found)
    [(upstream_name, made)] = settings.upstreams.items()
    assert isinstance(made, HttpUpstream)
    assert made.host == host
    assert settings.model_for("m", upstream_name) == name
    assert verdicts(found)["model_list[0].litellm_params.model"] is not ImportVerdict.NOT_TAKEN


@pytest.mark.parametrize("model", ["cohere/command-r", "huggingface/x/y", "watsonx/x", "sagemaker/x", "replicate/x",
                                   "bedrock/agent/x", "vertex_ai/mistral-large", "no-such/x", "deepinfra/x", "hosted_vllm/x",
                                   "azure/dep", "os.environ/MODEL"])
def test_model_that_cannot_be_reached_is_not_taken(model: str) -> None:
    """Neither its upstream nor its route is written, and every value of the entry is listed."""
    found = import_text(f"model_list:\n{entry(model)}{entry('openai/x', 'other')}")
    assert list(load_written(found).routes) == ["other"]
    listed = {path: verdict for path, verdict in verdicts(found).items() if path.startswith("model_list[0]")}
    assert set(listed.values()) == {ImportVerdict.NOT_TAKEN}
    assert len(listed) == 2


def test_entries_with_equal_address_and_key_share_an_upstream() -> None:
    """Another key, or a limit of one model, makes another one."""
    found = import_text("model_list:\n" + entry("openai/a", "a", api_key="os.environ/K") + entry("openai/b", "b",
                        api_key="os.environ/K") + entry("openai/c", "c", api_key="os.environ/L")
                        + entry("openai/d", "d", api_key="os.environ/K", rpm=5))
    settings = load_written(found)
    assert {name: route.upstreams for name, route in settings.routes.items()} == {
        "a": ("openai",), "b": ("openai",), "c": ("openai-2",), "d": ("openai-3",)}
    limited = settings.upstreams["openai-3"]
    assert isinstance(limited, HttpUpstream)
    assert limited.rate.requests_per_minute == 5


def test_two_models_of_one_key_in_a_group_get_an_upstream_each() -> None:
    """An upstream has one model name for a route."""
    settings = load_written(import_text("model_list:\n" + entry("openai/a") + entry("openai/b")))
    [first, second] = settings.routes["m"].upstreams
    assert (settings.model_for("m", first), settings.model_for("m", second)) == ("a", "b")


def test_the_same_entry_twice_is_one_place() -> None:
    """It is listed as taken differently."""
    found = import_text("model_list:\n" + entry("openai/a") * 2)
    assert load_written(found).routes["m"].upstreams == ("openai",)
    assert verdicts(found)["model_list[1].model_name"] is ImportVerdict.DIFFERENT


def test_orders_that_differ_make_a_list() -> None:
    """The lowest order is first."""
    settings = load_written(import_text("model_list:\n" + entry("openai/a", order=2) + entry("anthropic/b", order=1)))
    assert settings.routes["m"].upstreams == ("anthropic", "openai")
    assert settings.routes["m"].pick == "order"


def test_equal_orders_share_a_tier() -> None:
    """Later orders are the fallback, before that of the settings."""
    settings = load_written(import_text(
        "model_list:\n" + entry("openai/a", order=1) + entry("groq/a", order=1) + entry("mistral/b", order=2)
        + entry("xai/c", "n") + "router_settings: {fallbacks: [{m: [n]}]}\n"))
    route = settings.routes["m"]
    assert route.upstreams == ("openai", "groq")
    assert route.on_overrun.fallback is not None
    assert [(tier.upstreams, tier.model) for tier in route.on_overrun.fallback.tiers] == [
        (("mistral",), "b"), (("xai",), "c")]


def test_organizations_of_a_list_are_an_upstream_each() -> None:
    """With the header of each."""
    settings = load_written(import_text("model_list:\n" + entry("openai/a", organization="[o1, os.environ/ORG]")))
    headers = [made.headers["openai-organization"].reveal() for made in settings.upstreams.values()
               if isinstance(made, HttpUpstream)]
    assert headers == ["o1", "some-value"]


def test_wildcard_forwards_other_names() -> None:
    """`openai/*` behind `*` goes to OpenAI unchanged."""
    settings = load_written(import_text("model_list:\n" + entry("openai/*", "*") + entry("openai/gpt-4o", "mine")))
    assert settings.model_for("*", "openai") is None
    assert settings.model_for("mine", "openai") == "gpt-4o"


def test_pattern_becomes_a_route_for_each_listed_model() -> None:
    """An entry of its own takes precedence over the pattern."""
    found = import_text("model_list:\n" + entry("groq/*", "groq/*") + entry("mistral/x", "groq/openai/gpt-oss-20b"))
    settings = load_written(found)
    assert settings.routes["groq/openai/gpt-oss-120b"].upstreams == ("groq",)
    assert settings.model_for("groq/openai/gpt-oss-120b", "groq") == "openai/gpt-oss-120b"
    assert settings.routes["groq/openai/gpt-oss-20b"].upstreams == ("mistral",)
    assert verdicts(found)["model_list[0].model_name"] is ImportVerdict.DIFFERENT


@pytest.mark.parametrize(("model", "name"), [("azure_ai/*", "azure/*"), ("openai/*", "single"), ("openai/gpt-*", "*"),
                                             ("openai/none-such-*", "x-*")])
def test_pattern_without_listed_models_is_not_taken(model: str, name: str) -> None:
    """No route is written for it."""
    params = {"api_base": "'https://r.openai.azure.com'", "api_key": "os.environ/A"}
    found = import_text("model_list:\n" + entry(model, name, **params))
    assert found.n_routes == 0
    assert verdicts(found)["model_list[0].litellm_params.model"] is ImportVerdict.NOT_TAKEN


def test_host_alone_and_missing_key_are_named_as_differences() -> None:
    """LiteLLM appends no /v1, and sends OPENAI_API_KEY to any address."""
    found = import_text("model_list:\n" + entry("openai/x", api_base="'http://h:8000/v1'"))
    assert "OPENAI_API_KEY" in reasons(found, "model_list[0].litellm_params.api_base")
    assert "key" not in found.text.partition("upstreams:")[2]
    bare = import_text("model_list:\n" + entry("openai/x", api_base="'http://h:8000'", api_key="os.environ/K"))
    assert "/v1" in reasons(bare, "model_list[0].litellm_params.api_base")


def test_prices_become_those_of_a_million_tokens() -> None:
    """Of the entry, for its model at this upstream."""
    made = upstream(entry("openai/x", input_cost_per_token="0.00000015", output_cost_per_token="6e-7",
                          cache_read_input_token_cost="7.5e-8"))
    price = made.prices["x"]
    assert (price.input_per_mtok, price.output_per_mtok, price.cached_read_per_mtok) == (0.15, 0.6, 0.075)


def test_setting_of_another_provider_is_not_taken() -> None:
    """A region at OpenAI, an api-version at Groq."""
    found = import_text("model_list:\n" + entry("groq/x", region_name="eu", api_version="v", vertex_project="p"))
    listed = verdicts(found)
    assert {listed[f"model_list[0].litellm_params.{name}"] for name in ("region_name", "api_version", "vertex_project")} == {
        ImportVerdict.NOT_TAKEN}


@pytest.mark.parametrize(("model", "params", "lines"), [
    ("azure/x", {"api_base": "'https://r.openai.azure.com'", "tenant_id": "os.environ/T", "client_id": "c",
                 "client_secret": "os.environ/S"},
     ["kind: entra", 'tenant_id: "${T}"', "client_id: c", 'client_secret: "${S}"']),
    ("vertex_ai/gemini-x", {"vertex_project": "p", "vertex_credentials": "/etc/key.json"},
     ["kind: google", 'file: "/etc/key.json"']),
    ("bedrock/x", {"aws_access_key_id": "os.environ/I", "aws_secret_access_key": "os.environ/S",
                   "aws_role_name": "arn:aws:r"},
     ["kind: aws", 'access_key_id: "${I}"', 'secret_access_key: "${S}"', 'role_arn: "arn:aws:r"']),
    ("bedrock/x", {"aws_profile_name": "team"}, ["kind: aws", "profile: team"]),
])
def test_identity_becomes_credentials(model: str, params: dict[str, Any], lines: list[str]) -> None:
    """Instead of a key."""
    text = import_text(f"model_list:\n{entry(model, **params)}").text
    assert [line.strip() for line in text.partition("credentials:\n")[2].splitlines()[:len(lines)]] == lines
    assert "    key:" not in text


def test_credential_that_no_entry_names_is_not_taken() -> None:
    """And a name without a credential."""
    found = import_text("model_list:\n" + entry("openai/x", litellm_credential_name="none")
                        + "credential_list: [{credential_name: c, credential_values: {api_key: os.environ/K}}]\n")
    assert verdicts(found)["credential_list[0].credential_values.api_key"] is ImportVerdict.NOT_TAKEN
    assert verdicts(found)["model_list[0].litellm_params.litellm_credential_name"] is ImportVerdict.NOT_TAKEN


def test_included_file_adds_its_models_and_overrides_sections() -> None:
    """Lists are joined; of other sections the included file's applies, and the other's values are listed."""
    more = "model_list:\n" + entry("openai/b", "b") + "general_settings: {max_request_size_mb: 1}\n"
    found = import_text("include: [more.yaml]\nmodel_list:\n" + entry("openai/a", "a") + "general_settings: {otel: true}\n",
                        {"more.yaml": more})
    settings = load_written(found)
    assert list(settings.routes) == ["a", "b"]
    assert settings.server.max_body_bytes == 1 << 20
    assert settings.tracing.exporter == "none"
    assert verdicts(found)["general_settings.otel"] is ImportVerdict.NOT_TAKEN


def test_file_that_includes_itself_is_refused() -> None:
    """Directly, or by way of another."""
    def read(name: str, including: str) -> SettingsText:
        return SettingsText(name, "include: [config.yaml]")

    with pytest.raises(SettingsError, match=r"includes itself: config.yaml -> other.yaml -> config.yaml"):
        import_litellm(SettingsText("config.yaml", "include: [other.yaml]"), read)


def test_duplicate_key_is_listed() -> None:
    """The first one applies."""
    found = import_text("router_settings:\n  num_retries: 1\n  num_retries: 2\n")
    assert "max_attempts: 2" in found.text
    assert [verdict for path, verdict in verdicts(found).items() if "problem" in path] == [ImportVerdict.NOT_TAKEN]


def test_aliases_that_multiply_are_refused() -> None:
    """Before they use memory."""
    lines = ["a0: &a0 [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]"] + [
        f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 8)]
    with pytest.raises(SettingsError, match="more than 100000 values"):
        import_text("\n".join(lines))


def test_entries_of_other_apis_become_paths_that_are_passed_through() -> None:
    """The first entry of a path has it; their models are no routes."""
    modes = "".join(f"- {{model_name: {name}, litellm_params: {{model: openai/{model}, api_key: os.environ/{key}}}, "
                    f"model_info: {{mode: {mode}}}}}\n" for name, model, key, mode in (
        ("dall-e-3", "dall-e-3", "A", "image_generation"), ("whisper", "whisper-1", "A", "audio_transcription"),
        ("other", "whisper-1", "B", "audio_transcription"), ("night", "gpt-4o", "A", "batch")))
    found = import_text(f"model_list:\n{modes}")
    settings = load_written(found)
    assert settings.passthrough.paths == {"/v1/images": "openai", "/v1/audio": "openai"}
    assert list(settings.routes) == ["night"]
    listed = verdicts(found)
    assert listed["model_list[1].model_name"] is ImportVerdict.DIFFERENT
    assert "whisper-1" in reasons(found, "model_list[1].model_name")
    assert listed["model_list[2].model_name"] is ImportVerdict.NOT_TAKEN


def test_names_that_settings_cannot_have_are_not_taken_and_texts_are_not_resolved() -> None:
    """A name with a space is refused with its reason; `${NAME}` in a model is text there, as in LiteLLM."""
    found = import_text(f"model_list:\n{entry('openai/x', 'GPT 4')}{entry('openai/we${HOME}', 'm')}")
    settings = load_written(found)
    assert list(settings.routes) == ["m"]
    assert settings.model_for("m", "openai") == "we${HOME}"
    assert "ASCII" in reasons(found, "model_list[0].model_name")
    assert "${HOME}" not in found.text.replace("$${HOME}", "")


def test_empty_sections_are_nothing() -> None:
    """`router_settings:` without a value, and `general_settings: {}`, are in no list of what is not taken."""
    found = import_text(f"model_list:\n{entry('openai/x')}router_settings:\ngeneral_settings: {{}}\nlitellm_settings: []\n")
    assert verdicts(found)["router_settings"] is ImportVerdict.TAKEN
    assert verdicts(found)["general_settings"] is ImportVerdict.TAKEN


@pytest.mark.parametrize(("more", "becomes"), [
    ("", "nothing; without enable_pre_call_checks no prompt is refused for its length"),
    ("router_settings: {enable_pre_call_checks: true}\n", "`max_input_tokens` of the route; ")])
def test_length_limit_is_listed_as_what_became_of_it(more: str, becomes: str) -> None:
    text = "model_list:\n- {model_name: m, litellm_params: {model: openai/x}, model_info: {max_input_tokens: 8000}}\n"
    found = import_text(text + more)
    assert reasons(found, "model_list[0].model_info.max_input_tokens").startswith(becomes)
    assert ("max_input_tokens: 8000" in found.text) == bool(more)
