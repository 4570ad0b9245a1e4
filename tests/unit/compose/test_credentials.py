"""compose.credentials: which sources a system has, how long they run, and what readiness and findings read of them."""

import asyncio
from random import Random
from typing import Any

from stayfast.compose.credentials import CredentialTasks, credential_gauges, make_authenticator
from stayfast.compose.system import Observers, System, build
from stayfast.core.events import Fanout
from stayfast.http.server.connection import ConnectionTasks
from stayfast.observe.metrics.definitions import CREDENTIAL_MISSING
from stayfast.settings import HttpUpstream, SettingsText, load_settings
from stayfast.testing import SimLoop, run
from stayfast.upstreams.credentials.renewed import IssuedCredential, RenewedCredential

TEXT = """
upstreams:
  az: {{provider: azure, resource: r, keepalive_s: {keepalive_s}, probe: false}}
  vertex: {{provider: vertex, project: p, region: {region}, credentials: {{kind: google, managed: {managed}}}, probe: false}}
  bed: {{provider: bedrock, region: {region}, probe: false}}
routes:
  m: [az, vertex, bed]
"""
ALONE = """
upstreams:
  az: {provider: azure, resource: r, probe: false}
routes:
  m: [az]
"""


def system(old: System | None = None, text: str | None = None, **changes: object) -> System:
    shown = text or TEXT.format(**{"keepalive_s": 50, "region": "us-east-1", "managed": "true", **changes})
    settings = load_settings(SettingsText("test", shown), {})
    loop = SimLoop()
    try:
        return build(settings, Observers(settings, loop), {}, loop, Random(1), old=old)
    finally:
        loop.close()


def test_system_has_a_source_for_each_upstream_without_a_key() -> None:
    assert {name: source.kind for name, source in system().credentials.items()} == {
        "az": "entra", "vertex": "google", "bed": "aws"}


def test_reload_keeps_sources_of_unchanged_credentials() -> None:
    """Another keepalive makes a new upstream, which needs no new token."""
    old = system()
    new = system(old, keepalive_s=60, managed="false")
    assert new.credentials["az"] is old.credentials["az"]
    assert new.registry["az"] is not old.registry["az"]
    assert new.credentials["vertex"] is not old.credentials["vertex"]
    assert system(old, ALONE).credentials.keys() == {"az"}


def test_unready_where_no_upstream_has_a_credential() -> None:
    unready = system(text=ALONE).unready()
    assert unready is not None
    assert unready.startswith("no upstream has a valid credential (az: ")
    with_key = ALONE.replace("routes:", "  own: {provider: openai, key: k, probe: false}\nroutes:")
    assert system(text=with_key).unready() is None


def test_keys_of_aws_sign_requests_with_region_and_host() -> None:
    keys = "credentials: {kind: aws, access_key_id: AKIA, secret_access_key: s3cret}"
    built = system(text=f"upstreams: {{bed: {{provider: bedrock, region: eu-west-1, {keys}}}}}\nroutes: {{m: [bed]}}")
    source, upstream = built.credentials["bed"], built.settings.upstreams["bed"]
    assert isinstance(upstream, HttpUpstream)
    asyncio.run(renew(source))
    authenticator = make_authenticator(source, upstream)
    assert authenticator is not None
    headers = dict(authenticator.headers_for("POST", "/model/m/converse", b"{}", 1e9))
    assert headers["authorization"].startswith("AWS4-HMAC-SHA256 Credential=AKIA/20010909/eu-west-1/bedrock/aws4_request")
    assert "s3cret" in authenticator.secrets()
    assert "s3cret" not in f"{headers} {source!r}"


async def renew(source: RenewedCredential[Any]) -> None:
    await source.renew()


def test_missing_credentials_are_a_gauge() -> None:
    assert credential_gauges(system(text=ALONE).credentials) == {CREDENTIAL_MISSING.name: [(("az",), 1.0)]}


def test_tasks_start_and_stop_with_their_sources() -> None:
    async def main(loop: SimLoop) -> None:
        n_fetched = {"a": 0, "b": 0}

        def source(name: str, wait_s: float = 0.0) -> RenewedCredential[str]:
            async def fetch() -> IssuedCredential[str]:
                await asyncio.sleep(wait_s)
                n_fetched[name] += 1
                return IssuedCredential("t", loop.wall() + 100)
            return RenewedCredential(name, "entra", fetch, clock=loop, rng=Random(1), sink=Fanout())

        tasks = CredentialTasks(ConnectionTasks(lambda error: None).spawn)
        first, slow = source("a"), source("b", 7.0)
        await tasks.start({"a": first})
        assert loop.now() == 0
        assert first.current() == "t"
        await tasks.start({"a": first, "b": slow})
        assert loop.now() == 5.0  # a slow issuer does not hold the start up
        assert tasks.n_running == 2
        tasks.keep_only({"b": slow})
        await asyncio.sleep(600)
        assert n_fetched["a"] == 1
        assert n_fetched["b"] > 5
        tasks.keep_only({})
        await asyncio.sleep(0)
        assert tasks.n_running == 0
        assert asyncio.all_tasks() == {asyncio.current_task()}
    run(main)
