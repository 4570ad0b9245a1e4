"""The pass-through of one set of settings as objects."""

from random import Random

from stayfast.core.clock import Clock
from stayfast.core.events import Sink
from stayfast.http.client.client import HttpConfig
from stayfast.pipeline.passthrough.service import PassThrough
from stayfast.pipeline.passthrough.upstream import PassedUpstream
from stayfast.pipeline.stages.admit.admission import Admission
from stayfast.settings import HttpUpstream, Settings
from stayfast.upstreams.dialect import DialectUpstream
from stayfast.upstreams.passthrough.endpoint import PassedEndpoint
from stayfast.upstreams.rate_limited import RateLimitedUpstream
from stayfast.upstreams.state.registry import Registry
from stayfast.upstreams.state.upstream_state import UpstreamState


def http_config(upstream_settings: HttpUpstream) -> HttpConfig:
    """How an upstream is reached: its address, connections and certificates."""
    return HttpConfig(upstream_settings.base_url, max_connections=upstream_settings.max_connections or 0,
                      http=upstream_settings.http, keepalive_s=upstream_settings.keepalive_s,
                      ca_file=upstream_settings.ca_file, verify=upstream_settings.verify)


def make_pass_through(settings: Settings, registry: Registry, charge: Admission | None, old: PassThrough | None, *,
                      clock: Clock, rng: Random, sink: Sink) -> PassThrough | None:
    """None: it is off. charge: the quotas; None: there are none. old: before a reload, whose unchanged upstreams stay."""
    config = settings.passthrough
    if not config.is_on:
        return None
    upstreams = {}
    for name in config.upstreams:
        member, before = registry[name], old.upstreams.get(name) if old is not None else None
        if before is not None and before.member is member:
            upstreams[name] = before
            continue
        upstream_settings, dialect = settings.upstreams[name], dialect_of(member)
        assert isinstance(upstream_settings, HttpUpstream)  # checked with the settings
        assert dialect is not None
        endpoint = PassedEndpoint(dialect, http_config(upstream_settings), sink, clock)
        upstreams[name] = PassedUpstream(member, endpoint, upstream_settings.breaker, rng, clock)
    return PassThrough(config, upstreams, charge=charge, clock=clock, sink=sink)


def passed_rows(passing: PassThrough | None) -> list[tuple[tuple[str, ...], float]]:
    """Passed requests in flight, by upstream."""
    return [] if passing is None else [((name,), upstream.n_in_flight) for name, upstream in passing.upstreams.items()]


def dialect_of(member: UpstreamState) -> DialectUpstream | None:
    """The endpoint of an upstream, behind its rate if it has one; None: it is not on the network."""
    upstream = member.upstream.inner if isinstance(member.upstream, RateLimitedUpstream) else member.upstream
    return upstream if isinstance(upstream, DialectUpstream) else None
