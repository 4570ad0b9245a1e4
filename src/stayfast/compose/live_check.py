"""`stayfast check --live`: whether each upstream can be reached now: name, connection, TLS, credential, model, one token."""

import asyncio
import os
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import suppress
from math import isfinite
from random import Random
from typing import Any, NamedTuple

from stayfast.compose.routes import models_requested
from stayfast.compose.system import Observers, build
from stayfast.core.clock import Clock
from stayfast.core.types import Api
from stayfast.core.units import format_seconds
from stayfast.http.client.client import BaseUrl, split_base_url
from stayfast.http.client.dialer import make_client_context
from stayfast.pipeline.attempts.readiness import ProbeConfig, ProbeResult, read_one_token
from stayfast.settings import HttpUpstream, Settings
from stayfast.settings.upstreams import EmbeddedUpstream, EncoderUpstreamSettings, TurnUpstreamSettings
from stayfast.upstreams.credentials.renewed import RenewedCredential
from stayfast.upstreams.embedded import ParentEngine

CONNECT_S = 5.0
FAR_S = 0.1  # one way across a continent and back
EXPIRES_DAYS = 14  # renewals run 30 days before the end
_DAY_S = 86_400.0
_CREDENTIALS, _MISSING = (401, 402, 403), 404


class LiveStep(NamedTuple):
    """One line: what was tried, whether it works, and the figure or the reason."""

    upstream: str
    what: str  # dns, connect, tls, or a model
    works: bool
    text: str


async def check_upstreams(settings: Settings, clock: Clock, rng: Random) -> AsyncIterator[LiveStep]:
    """Try all upstreams, one after the other. Upstreams that are functions or embedded models are not called."""
    observers = Observers(settings, clock)
    system = build(settings, observers, {name: ParentEngine(name, dict) for name in settings.engines}, clock, rng)
    for name, upstream in settings.upstreams.items():
        if isinstance(upstream, EmbeddedUpstream | TurnUpstreamSettings | EncoderUpstreamSettings):
            yield LiveStep(name, upstream.kind, True, "runs inside the gateway; not tried")
            continue
        if isinstance(upstream, HttpUpstream):
            is_reached = True
            async for step in _reach(name, upstream, clock):
                is_reached = is_reached and step.works
                yield step
            if name in system.credentials:
                step = await _fetch_credential(name, system.credentials[name])
                is_reached = is_reached and step.works
                yield step
            if not is_reached:
                continue
        member = system.registry[name]
        models = list(dict.fromkeys(models_requested(settings, name)))
        if not models:
            yield LiveStep(name, "model", True, "no route names a model for it; not asked for a token")
        for model in models if member.upstream.can_serve(Api.CHAT) else []:
            result = await read_one_token(member, model, ProbeConfig(), clock, observers.sink)
            yield LiveStep(name, model, not result.code, _describe_token(result, model))
    system.registry.close()
    for store in system.stores.values():
        await store.close()


async def _fetch_credential(name: str, source: RenewedCredential[Any]) -> LiveStep:
    await source.renew()
    if (why := source.missing()) is not None:
        return LiveStep(name, "credential", False, f"kind {source.kind}: {why}. See docs/credentials.md.")
    left_s = source.state.left_s
    ends = f"ends in {format_seconds(left_s)}" if isfinite(left_s) else "without an end"
    return LiveStep(name, "credential", True, f"kind {source.kind}, {ends}")


def _describe_token(result: ProbeResult, model: str) -> str:
    if result.ttft_s is not None:
        what = "embedding" if result.api is Api.EMBEDDINGS else "first token"
        return f"{what} after {format_seconds(result.ttft_s)}"
    hint = ""
    if result.upstream_status in _CREDENTIALS:
        hint = " The upstream refuses the key: check the variable that `key` names, and the account."
    elif result.upstream_status == _MISSING:
        hint = f" Check base_url, and the model's name at this upstream (`model` of the route; here {model})."
    return f"{result.message}.{hint}".replace("..", ".")


async def _reach(name: str, upstream: HttpUpstream, clock: Clock) -> AsyncIterator[LiveStep]:
    """The steps to a connection; the last one that fails ends it."""
    base = split_base_url(upstream.base_url)
    began_at = clock.now()
    try:
        async with asyncio.timeout(CONNECT_S):
            found = await asyncio.get_running_loop().getaddrinfo(base.host, base.port, type=socket.SOCK_STREAM)
    except OSError as error:
        yield LiveStep(name, "dns", False, f"{base.host} cannot be resolved ({_reason(error)}). Check base_url and the "
                       "machine's resolver.")
        return
    addresses = {address[4][0] for address in found}
    yield LiveStep(name, "dns", True, f"{base.host}: {len(addresses)} address{'es' * (len(addresses) != 1)} in "
                   f"{format_seconds(clock.now() - began_at)}")
    began_at = clock.now()
    try:
        await _open(base, None)
    except OSError as error:
        yield LiveStep(name, "connect", False, f"port {base.port} cannot be reached ({_reason(error)}). Check the port, a "
                       "firewall, and that it runs.")
        return
    took_s = clock.now() - began_at
    far = "; far away: every new connection costs this twice or more. Is there an endpoint nearer?" if took_s > FAR_S else ""
    yield LiveStep(name, "connect", True, f"{format_seconds(took_s)}{far}")
    if base.is_tls:
        yield await _try_tls(name, upstream, base, clock)


async def _try_tls(name: str, upstream: HttpUpstream, base: BaseUrl, clock: Clock) -> LiveStep:
    began_at = clock.now()
    try:
        context = make_client_context(upstream.ca_file, verify=upstream.verify, protocols=("h2", "http/1.1"))
        tls = await _open(base, context)
    except ssl.SSLCertVerificationError as error:
        return LiveStep(name, "tls", False, f"the certificate is refused: {error.verify_message}. Set ca_file to the "
                        "issuer's certificate, or correct the machine's clock.")
    except OSError as error:
        return LiveStep(name, "tls", False, f"no handshake ({_reason(error)}).")
    took, left = format_seconds(clock.now() - began_at), ""
    certificate = tls.getpeercert() if tls is not None else None
    if certificate and "notAfter" in certificate:
        days = (ssl.cert_time_to_seconds(str(certificate["notAfter"])) - clock.wall()) / _DAY_S
        left = f", certificate ends in {days:.0f} days" + ("; renew it" if days < EXPIRES_DAYS else "")
    version = f"{tls.version()} {tls.selected_alpn_protocol() or 'http/1.1'}, " if tls is not None else ""
    return LiveStep(name, "tls", True, f"{version}{took} with the connection{left}")


async def _open(base: BaseUrl, context: ssl.SSLContext | None) -> ssl.SSLObject | None:
    """Open a connection and close it; returns what is known of its TLS."""
    async with asyncio.timeout(CONNECT_S):
        _, writer = await asyncio.open_connection(base.host, base.port, ssl=context,
                                                  server_hostname=base.host if context is not None else None)
    tls: ssl.SSLObject | None = writer.get_extra_info("ssl_object")
    writer.close()
    with suppress(OSError, ssl.SSLError):
        await writer.wait_closed()
    return tls


def _reason(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer in {CONNECT_S:g} s"
    if error.errno is not None and error.errno > 0:  # errors of the resolver have negative numbers of their own
        return os.strerror(error.errno)
    return error.strerror or type(error).__name__
