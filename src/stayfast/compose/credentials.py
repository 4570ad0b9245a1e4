"""The credentials of upstreams: made from the settings, renewed while a system uses them."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from importlib import import_module
from typing import Any

from stayfast.core.clock import Clock, Rng
from stayfast.core.events import Sink
from stayfast.core.findings import Finding
from stayfast.core.setting import Secret
from stayfast.http.client.client import split_base_url
from stayfast.observe.metrics.counters import Samples
from stayfast.observe.metrics.definitions import CREDENTIAL_MISSING
from stayfast.policy.findings.credentials import find_failing_renewal
from stayfast.settings import HttpUpstream, Settings
from stayfast.settings.credentials import AwsCredentials, Credentials, EntraCredentials
from stayfast.upstreams.authentication import Authenticator, AwsKeys
from stayfast.upstreams.credentials.fetching import Fetch, fetch_in_thread
from stayfast.upstreams.credentials.renewed import BearerToken, RenewedCredential
from stayfast.upstreams.sigv4 import SigV4

FIRST_S = 5.0  # for first credentials, before a system serves; later ones arrive in the background
Sources = Mapping[str, RenewedCredential[Any]]  # by upstream


def make_credentials(settings: Settings, old: tuple[Settings, Sources] | None, clock: Clock, rng: Rng, sink: Sink
                     ) -> dict[str, RenewedCredential[Any]]:
    """A source for each upstream with `credentials`. old: at a reload; unchanged ones remain, with what they hold."""
    sources: dict[str, RenewedCredential[Any]] = {}
    for name, upstream in settings.upstreams.items():
        wanted = _credentials_of(settings, name)
        if wanted is None or not isinstance(upstream, HttpUpstream):
            continue
        if old is not None and name in old[1] and _credentials_of(old[0], name) == wanted:
            sources[name] = old[1][name]
        else:
            fetch = fetch_in_thread(name, _make_fetch(wanted, upstream.aws_region, clock))
            sources[name] = RenewedCredential(name, wanted.kind, fetch, clock=clock, rng=rng, sink=sink)
    return sources


def _credentials_of(settings: Settings, name: str) -> Credentials | None:
    upstream = settings.upstreams.get(name)
    return upstream.credentials if isinstance(upstream, HttpUpstream) else None


def make_authenticator(source: RenewedCredential[Any] | None, upstream: HttpUpstream) -> Authenticator | None:
    """What makes headers of a credential: a bearer token, or a signature by keys of AWS; None: a constant key."""
    if source is None:
        return None
    if source.kind == "aws":
        return SigV4(source, upstream.aws_region, split_base_url(upstream.base_url).authority)
    return BearerToken(source)


def _make_fetch(wanted: Credentials, region: str, clock: Clock) -> Fetch[Any]:
    """The function that fetches a credential, from the module of its kind, whose packages are needed only here."""
    fetch: Fetch[Any]
    if isinstance(wanted, EntraCredentials):
        entra = import_module("stayfast.upstreams.credentials.entra")
        fetch = entra.make_fetch(entra.EntraIdentity(
            wanted.scope, wanted.authority, wanted.tenant_id, wanted.client_id, _reveal(wanted.client_secret),
            wanted.token_file, wanted.managed))
    elif isinstance(wanted, AwsCredentials):
        aws = import_module("stayfast.upstreams.credentials.aws")
        keys = None
        if wanted.access_key_id is not None:
            keys = AwsKeys(_reveal(wanted.access_key_id), _reveal(wanted.secret_access_key),
                           _reveal(wanted.session_token) or None)
        fetch = aws.make_fetch(aws.AwsIdentity(keys, wanted.profile, wanted.role_arn, _reveal(wanted.external_id), region),
                               clock)
    else:
        google = import_module("stayfast.upstreams.credentials.google")
        fetch = google.make_fetch(google.GoogleIdentity(wanted.scope, wanted.file, wanted.managed))
    return fetch


def _reveal(secret: Secret | None) -> str:
    return secret.reveal() if secret is not None else ""


def credential_findings(sources: Sources) -> list[Finding]:
    """One for each upstream whose renewals fail."""
    found = (find_failing_renewal(source.state) for source in sources.values())
    return [finding for finding in found if finding is not None]


def credential_gauges(sources: Sources) -> Samples:
    """Which credentials are missing."""
    return {CREDENTIAL_MISSING.name: [((name,), float(source.missing() is not None)) for name, source in sources.items()]}


def explain_missing_credentials(sources: Sources, upstreams: Iterable[str]) -> str | None:
    """Why no upstream can be called; None: one has a valid credential, or needs none."""
    missing = {name: sources[name].missing() if name in sources else None for name in upstreams}
    if not missing or None in missing.values():
        return None
    return "no upstream has a valid credential (" + "; ".join(f"{name}: {why}" for name, why in missing.items()) + ")"


class CredentialTasks:
    """The Tasks that renew the credentials of a process. Belongs to one loop."""

    def __init__(self, spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]) -> None:
        self._spawn = spawn
        self._running: dict[RenewedCredential[Any], asyncio.Task[None]] = {}

    async def start(self, sources: Sources) -> None:
        """Start those that do not run, and wait until each was fetched once, at most FIRST_S."""
        new = [source for source in sources.values() if source not in self._running]
        self._running |= {source: self._spawn(source.run()) for source in new}
        try:
            async with asyncio.timeout(FIRST_S):
                for source in new:
                    await source.wait_until_tried()
        except TimeoutError:
            return  # readiness names those that are missing

    def keep_only(self, sources: Sources) -> None:
        """Stop all others. What they hold stays valid for requests that still use it."""
        wanted = set(sources.values())
        for source in [source for source in self._running if source not in wanted]:
            self._running.pop(source).cancel()

    @property
    def n_running(self) -> int:
        return len(self._running)
