"""Credentials by the real libraries of Entra, Google and AWS, from issuers on loopback."""

import asyncio
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from stayfast.core.clock import SystemClock
from stayfast.upstreams.authentication import AwsKeys
from stayfast.upstreams.credentials import aws, entra, google
from stayfast.upstreams.credentials.fetching import explain_failure, fetch_in_thread
from stayfast.upstreams.credentials.renewed import RenewalFailed
from tests.server.token_rig import SECRET, TOKEN, federation, issuers, service_account
from tests.unit.http.client.tls_peers import Trust

pytestmark = pytest.mark.sockets
SCOPE = "https://cognitiveservices.azure.com/.default"
METADATA = """
from stayfast.upstreams.credentials.google import GoogleIdentity, make_fetch
issued = make_fetch(GoogleIdentity("scope", is_managed={managed}))()
print(issued.credential, issued.ends_at)
"""


@pytest.fixture
def trust(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trust:
    """The authority that azure-identity's HTTP client trusts; Entra is reached over TLS only."""
    trust = Trust(tmp_path)
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", trust.ca_file)
    return trust


@pytest.fixture
def no_aws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """An environment in which botocore finds nothing."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_ROLE_ARN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    return monkeypatch


def is_in_an_hour(ends_at: float) -> bool:
    return 3500 < ends_at - time.time() < 3601


def test_entra_client_secret_gives_a_token_at_each_fetch(trust: Trust) -> None:
    with issuers(trust.server()) as server:
        fetch = entra.make_fetch(entra.EntraIdentity(SCOPE, f"https://127.0.0.1:{server.port}", "tenant", "app", SECRET))
        issued = fetch()
        fetch()  # no cache in between: a renewal reaches the issuer
    assert issued.credential == TOKEN
    assert is_in_an_hour(issued.ends_at)
    path, form = server.asked[0]
    assert path == "/tenant/oauth2/v2.0/token"
    assert (form["client_secret"], form["scope"], form["grant_type"]) == (SECRET, SCOPE, "client_credentials")
    assert len(server.asked) == 2


def test_entra_token_file_is_sent_as_assertion(trust: Trust, tmp_path: Path) -> None:
    (tmp_path / "federated").write_text(SECRET)
    with issuers(trust.server()) as server:
        issued = entra.make_fetch(entra.EntraIdentity(SCOPE, f"https://127.0.0.1:{server.port}", "tenant", "app",
                                                      token_file=str(tmp_path / "federated")))()
    assert issued.credential == TOKEN
    assert server.asked[0][1]["client_assertion"] == SECRET


def test_entra_managed_identity_of_an_app_service(monkeypatch: pytest.MonkeyPatch) -> None:
    """The endpoint of App Service, Functions and Container Apps; that of machines has a fixed address."""
    with issuers() as server:
        monkeypatch.setenv("IDENTITY_ENDPOINT", f"http://127.0.0.1:{server.port}/msi/token")
        monkeypatch.setenv("IDENTITY_HEADER", SECRET)
        server.life_s = 7200
        issued = entra.make_fetch(entra.EntraIdentity(SCOPE, "https://login.microsoftonline.com", is_managed=True))()
    assert issued.credential == TOKEN
    assert issued.ends_at > time.time()


def test_entra_refusal_names_its_code_and_no_secret(trust: Trust, capfd: pytest.CaptureFixture[str]) -> None:
    """The issuer quotes the whole form in its error; azure-identity logs it."""
    with issuers(trust.server()) as server:
        server.status = 401
        with pytest.raises(Exception, match="AADSTS7000215") as failed:
            entra.make_fetch(entra.EntraIdentity(SCOPE, f"https://127.0.0.1:{server.port}", "tenant", "app", SECRET))()
    why = explain_failure(failed.value)
    assert "AADSTS7000215" in why
    assert SECRET not in why
    assert SECRET not in "".join(capfd.readouterr())


def test_google_service_account_signs_for_a_token(tmp_path: Path) -> None:
    with issuers() as server:
        issued = google.make_fetch(google.GoogleIdentity("scope", str(service_account(tmp_path, server.port))))()
    assert issued.credential == TOKEN
    assert is_in_an_hour(issued.ends_at)
    assert server.asked[0][1]["assertion"].count(".") == 2


def test_google_workload_identity_federation_exchanges_its_token(tmp_path: Path) -> None:
    with issuers() as server:
        issued = google.make_fetch(google.GoogleIdentity("scope", str(federation(tmp_path, server.port))))()
    assert issued.credential == TOKEN
    assert server.asked[0][1]["subject_token"] == SECRET


def test_google_application_default_credentials_are_those_of_the_variable(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with issuers() as server:
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(service_account(tmp_path, server.port)))
        assert google.make_fetch(google.GoogleIdentity("scope"))().credential == TOKEN


@pytest.mark.parametrize("managed", [True, False])
def test_google_metadata_server_gives_the_machines_token(tmp_path: Path, *, managed: bool) -> None:
    """Of its own process, as google-auth reads the address when it is imported."""
    with issuers() as server:
        done = subprocess.run([sys.executable, "-c", METADATA.format(managed=managed)], capture_output=True, text=True,
                              check=False, timeout=60, env={
                                  "PATH": "", "HOME": str(tmp_path), "GCE_METADATA_HOST": f"127.0.0.1:{server.port}",
                                  "GCE_METADATA_IP": f"127.0.0.1:{server.port}"})
    assert done.stdout.startswith(TOKEN), done.stderr
    assert is_in_an_hour(float(done.stdout.split()[1]))


@pytest.mark.parametrize(("content", "why"), [
    ('{"type": "external_account_authorized_user"}', "must be service_account"), ("[]", "must be service_account"),
    ("{", "JSONDecodeError"), ('{"type": "service_account"}', "MalformedError")])
def test_google_file_that_cannot_be_used_is_explained(tmp_path: Path, content: str, why: str) -> None:
    (tmp_path / "a.json").write_text(content)
    fetch = fetch_in_thread("vertex", google.make_fetch(google.GoogleIdentity("scope", str(tmp_path / "a.json"))))
    with pytest.raises(RenewalFailed, match=why):
        asyncio.run(fetch())


def test_aws_given_keys_have_no_end(no_aws: pytest.MonkeyPatch) -> None:
    keys = AwsKeys("AKIA", SECRET)
    issued = aws.make_fetch(aws.AwsIdentity(keys), SystemClock())()
    assert issued == (keys, float("inf"))
    assert SECRET not in f"{issued!r} {keys!r} {aws.AwsIdentity(keys)!r}"


def test_aws_profile_is_read_again_at_each_renewal(no_aws: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "credentials"
    fetch = aws.make_fetch(aws.AwsIdentity(profile="work"), SystemClock())
    for key in ("AKIAFIRST", "AKIASECOND"):
        file.write_text(f"[work]\naws_access_key_id = {key}\naws_secret_access_key = {SECRET}\n")
        assert fetch().credential == AwsKeys(key, SECRET)


def test_aws_container_endpoint_gives_keys_with_an_end(no_aws: pytest.MonkeyPatch) -> None:
    with issuers() as server:
        no_aws.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"http://127.0.0.1:{server.port}/aws/container")
        issued = aws.make_fetch(aws.AwsIdentity(), SystemClock())()
    assert issued.credential == AwsKeys("ASIACONTAINER", SECRET, TOKEN)
    assert is_in_an_hour(issued.ends_at)


def test_aws_role_is_assumed_by_sts(no_aws: pytest.MonkeyPatch) -> None:
    with issuers() as server:
        no_aws.setenv("AWS_ENDPOINT_URL_STS", f"http://127.0.0.1:{server.port}")
        issued = aws.make_fetch(aws.AwsIdentity(AwsKeys("AKIA", SECRET), role_arn="arn:aws:iam::123456789012:role/r",
                                                external_id="x-1"), SystemClock())()
    assert issued.credential == AwsKeys("ASIAROLE", SECRET, TOKEN)
    assert is_in_an_hour(issued.ends_at)
    form: dict[str, Any] = server.asked[0][1]
    assert (form["RoleArn"], form["ExternalId"]) == ("arn:aws:iam::123456789012:role/r", "x-1")


def test_aws_nothing_found_is_explained(no_aws: pytest.MonkeyPatch) -> None:
    with pytest.raises(Exception, match="botocore finds no credentials"):
        aws.make_fetch(aws.AwsIdentity(), SystemClock())()
