"""Settings of credentials that expire."""

from importlib.util import find_spec
from re import escape

import pytest

from stayfast.core.setting import Secret
from stayfast.settings import HttpUpstream, SettingsError, SettingsText, load_settings
from stayfast.settings import credentials as module
from stayfast.settings.credentials import AwsCredentials, EntraCredentials, GoogleCredentials
from stayfast.settings.effective import effective_settings

MARKER = "marker-3c9e"
BEDROCK = "kind: bedrock, region: us-east-1"


def credentials_of(text: str, upstream: str = 'kind: openai, base_url: "http://h/v1"') -> object:
    file = f"upstreams: {{a: {{{upstream}, credentials: {text}}}}}\nroutes: {{m: [a]}}"
    settings = load_settings(SettingsText("test", file), {"MARKER": MARKER})
    found = settings.upstreams["a"]
    assert isinstance(found, HttpUpstream)
    return found.credentials


def test_each_kind_is_decoded() -> None:
    assert credentials_of("{kind: entra}") == EntraCredentials()
    assert credentials_of("{kind: entra, tenant_id: t, client_id: c, client_secret: \"${MARKER}\"}") == EntraCredentials(
        tenant_id="t", client_id="c", client_secret=Secret(MARKER))
    assert credentials_of("{kind: google, managed: true}") == GoogleCredentials(managed=True)
    assert credentials_of("{kind: aws, profile: work}", BEDROCK) == AwsCredentials(profile="work")
    assert credentials_of("null") is None


@pytest.mark.parametrize(("text", "complaint"), [
    ("{kind: azure}", "must be one of entra, google, aws"), ("{}", "`kind` is missing"), ("[]", "must be a mapping"),
    ("{kind: entra, client_secret: x}", "tenant_id: is missing: client_secret requires it"),
    ("{kind: entra, client_secret: x, tenant_id: t}", "client_id: is missing"),
    ("{kind: entra, client_secret: x, managed: true}", "managed: must not be set with client_secret"),
    ("{kind: entra, tenant_id: t/x}", "must be letters, digits"),
    ("{kind: entra, authority: \"http://x\"}", "like https://login.microsoftonline.com"),
    ("{kind: entra, token_file: /nowhere/x, tenant_id: t, client_id: c}", "token_file: there is no such file"),
    ("{kind: google, file: /nowhere/x}", "file: there is no such file"),
    ("{kind: google, file: /x, managed: true}", "managed: must not be set with file"),
    ("{kind: google, scope: \"a b\"}", "a scope, without spaces"), ("{kind: aws}", "of kind aws are for kind bedrock only")])
def test_invalid_credentials_are_reported(text: str, complaint: str) -> None:
    with pytest.raises(SettingsError, match=escape(complaint)):
        credentials_of(text)


@pytest.mark.parametrize(("text", "complaint"), [
    ("{kind: aws, access_key_id: x}", "secret_access_key: is missing"),
    ("{kind: aws, session_token: x}", "access_key_id: is missing"),
    ("{kind: aws, access_key_id: x, secret_access_key: \"a b\"}", "secret_access_key: must be visible ASCII"),
    ("{kind: aws, access_key_id: x, secret_access_key: y, profile: p}", "profile: must not be set"),
    ("{kind: aws, external_id: x}", "role_arn: is missing"), ("{kind: aws, role_arn: x}", "like arn:aws:iam"),
    ("{kind: google}", "must be of kind aws for kind bedrock")])
def test_invalid_aws_credentials_are_reported(text: str, complaint: str) -> None:
    with pytest.raises(SettingsError, match=escape(complaint)):
        credentials_of(text, BEDROCK)


def test_key_and_authorization_header_exclude_credentials() -> None:
    for more in ("key: x", "headers: {Authorization: x}"):
        with pytest.raises(SettingsError, match="credentials"):
            credentials_of("{kind: google}", f'kind: openai, base_url: "http://h/v1", {more}')


def test_provider_with_credentials_needs_no_key() -> None:
    assert credentials_of("{kind: entra}", "kind: openai") == EntraCredentials()


@pytest.mark.parametrize(("kind", "extra"), [("entra", "azure"), ("google", "google"), ("aws", "bedrock")])
def test_missing_package_is_named_with_its_command(kind: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def find_none(name: str) -> object:
        if name.startswith("azure."):
            raise ModuleNotFoundError(name)
        return None if name in ("google.auth", "botocore") else find_spec(name)

    monkeypatch.setattr(module, "find_spec", find_none)
    with pytest.raises(SettingsError, match=rf"pip install '\.\[{extra}\]'"):
        credentials_of(f"{{kind: {kind}}}", BEDROCK if kind == "aws" else "kind: openai")


@pytest.mark.parametrize(("upstream", "expected"), [
    ("provider: vertex, project: p, region: europe-west1", GoogleCredentials()),
    ("provider: vertex-openai, project: p, region: europe-west1", GoogleCredentials()),
    ("provider: azure, resource: r", EntraCredentials()), ("provider: bedrock, region: us-east-1", AwsCredentials()),
    ("provider: azure, resource: r, key: k", None), ("provider: bedrock, region: us-east-1, key: k", None),
    ('provider: vertex, base_url: "http://elsewhere/v1"', None)])
def test_provider_without_key_uses_its_credentials(upstream: str, expected: object) -> None:
    """At its own address only: a token is not sent to one that somebody wrote."""
    settings = load_settings(SettingsText("test", f"upstreams: {{a: {{{upstream}}}}}\nroutes: {{m: [a]}}"), {})
    found = settings.upstreams["a"]
    assert isinstance(found, HttpUpstream)
    assert found.credentials == expected


def test_provider_uses_its_key_where_the_variable_is_set() -> None:
    text = "upstreams: {a: {provider: azure, resource: r}, b: {provider: bedrock, region: us-east-1}}\nroutes: {m: [a, b]}"
    settings = load_settings(SettingsText("test", text), {"AZURE_OPENAI_API_KEY": "k1", "AWS_BEARER_TOKEN_BEDROCK": "k2"})
    found = [settings.upstreams[name] for name in "ab"]
    assert [(one.key, one.credentials) for one in found if isinstance(one, HttpUpstream)] == [
        (Secret("k1"), None), (Secret("k2"), None)]


def test_region_of_a_signature_is_that_of_the_host() -> None:
    text = ('upstreams: {a: {kind: bedrock, base_url: "https://bedrock-runtime.eu-west-1.amazonaws.com", '
            "credentials: {kind: aws}}}\nroutes: {m: [a]}")
    found = load_settings(SettingsText("test", text), {}).upstreams["a"]
    assert isinstance(found, HttpUpstream)
    assert found.aws_region == "eu-west-1"
    with pytest.raises(SettingsError, match="region: is missing"):
        load_settings(SettingsText("test", text.replace("eu-west-1.amazonaws", "example")), {})


def test_secrets_of_credentials_are_shown_nowhere() -> None:
    text = ("{kind: aws, access_key_id: \"${MARKER}\", secret_access_key: \"${MARKER}\", session_token: \"${MARKER}\", "
            "role_arn: \"arn:aws:iam::1:role/r\", external_id: \"${MARKER}\"}")
    settings = load_settings(SettingsText("test", "upstreams: {a: {" + BEDROCK + ", credentials: " + text
                                          + "}, b: {kind: openai, credentials: {kind: entra, tenant_id: t, client_id: c, "
                                          'client_secret: "${MARKER}"}}}\nroutes: {m: [a, b]}'), {"MARKER": MARKER})
    shown = effective_settings(settings)
    assert MARKER not in f"{settings!r} {shown}"
    assert shown["upstreams"]["b"]["credentials"]["client_secret"] == "(hidden)"


def test_credentials_of_microsoft_for_gemini_are_an_error() -> None:
    text = ("upstreams: {a: {provider: vertex, project: p, region: r, credentials: {kind: entra}}}\nroutes: {m: [a]}\n")
    with pytest.raises(SettingsError, match="must not be of kind entra for kind gemini"):
        load_settings(SettingsText("s.yaml", text), {})
