"""What a gateway shares with others, put together from the settings."""

import os
import socket
from collections.abc import Mapping
from functools import partial
from importlib import import_module
from random import Random
from typing import Any

from stayfast.core.clock import Clock
from stayfast.core.events import Sink
from stayfast.observe.metrics.counters import Samples
from stayfast.observe.metrics.definitions import (
    QUOTA_EXACT,
    QUOTA_SLACK,
    QUOTA_STORE_CALLS,
    QUOTA_STORE_LOST,
)
from stayfast.pipeline.admission.tenants import Buckets, own_buckets
from stayfast.pipeline.stages.admit.admission import JUDGES
from stayfast.policy.admission.overload import ANY_TENANT
from stayfast.policy.admission.quota import QuotaConfig, TenantQuota
from stayfast.policy.fleet.config import FleetConfig
from stayfast.settings import HttpUpstream, Settings
from stayfast.upstreams.base import Upstream
from stayfast.upstreams.rate_limited import RateLimitedUpstream, UpstreamRate
from stayfast.workers.channels import WorkerPeers
from stayfast.workers.fleet.quota_leases import LeaseMemory, QuotaLeases
from stayfast.workers.shared_memory import SharedCounters
from stayfast.workers.sync import WorkerSync

ANONYMOUS = "anonymous"


def gateway_id(config: FleetConfig, boot: str) -> str:
    """Identifies this gateway from its start to its end. boot: new with each start, the same in all workers."""
    name = config.gateway or "".join(char if char.isalnum() or char in "_.-" else "-" for char in socket.gethostname())
    return f"{name[:64] or 'gateway'}~{boot}"


def boot_name(siblings: WorkerPeers | None) -> str:
    """New with each start of the gateway, the same in all workers."""
    if siblings is not None and siblings.directory is not None and siblings.others:
        return "".join(char for char in siblings.directory.name if char.isalnum())[-16:]
    return os.urandom(4).hex()


def make_quota_leases(gateway: str, settings: Settings, siblings: WorkerPeers | None, clock: Clock, sink: Sink
                      ) -> QuotaLeases | None:
    """The quotas that gateways share; None: there is no other gateway. gateway: the id of this one."""
    config = settings.fleet
    if config.url is None:
        return None
    redis = import_module("stayfast.stores.fleet.redis_quota")  # here: it needs a package that only an extra brings
    store = redis.RedisQuota(config.url.reveal(), config.prefix)
    return QuotaLeases(store, gateway, _memory(siblings), clock, sink,
                       rng=Random(os.urandom(8)))


def _memory(siblings: WorkerPeers | None) -> LeaseMemory:
    if siblings is None or siblings.directory is None or not siblings.others:
        return LeaseMemory()
    try:
        return LeaseMemory(SharedCounters(siblings.directory), siblings.n, 1 + len(siblings.others))
    except (OSError, ValueError):
        return LeaseMemory()  # each worker is a gateway of its own then


def tenant_quotas(settings: Settings) -> Mapping[str, QuotaConfig]:
    """The quotas of all tenants that there can be, and of providers, by name."""
    names = sorted({*settings.server.keys, *settings.tenants, ANONYMOUS, JUDGES} - {ANY_TENANT})
    providers = {upstream_name(name): known.rate for name, known in settings.upstreams.items()
                 if isinstance(known, HttpUpstream)}
    found = ((name, settings.tenants.get(name) or settings.tenants.get(ANY_TENANT)) for name in names)
    quotas = {name: tenant.quota for name, tenant in found if tenant is not None} | providers
    return {name: quota for name, quota in quotas.items() if tuple(quota.limits())}


def upstream_name(name: str) -> str:
    """The name of an upstream's limits among those of tenants."""
    return f"upstream {name}"


def limit_rate(upstream: Upstream, config: QuotaConfig, leases: QuotaLeases | None, buckets: Buckets,
               clock: Clock, *, are_requests_daily: bool = False) -> Upstream:
    """The upstream behind its provider's limits, if there are any. are_requests_daily: see `wire.rate_headers`."""
    if not tuple(config.limits()):
        return upstream
    name = upstream_name(upstream.name)
    quota = TenantQuota(config, clock.now(), partial(buckets, name))
    rate = UpstreamRate(name, quota, clock, are_requests_daily=are_requests_daily) if leases is None else UpstreamRate(
        name, quota, clock, n_gateways=lambda: leases.leader.n_gateways, wait_for_grant=leases.wait_for_grant,
        are_requests_daily=are_requests_daily)
    return RateLimitedUpstream(upstream, rate, clock)


def shared_buckets(leases: QuotaLeases | None, workers: WorkerSync | None) -> Buckets:
    """Makes buckets for all gateways, for all workers of this one, or for this process."""
    if leases is not None:
        return leases.bucket
    return workers.quota_bucket if workers is not None else own_buckets


def quota_gauges(leases: QuotaLeases | None) -> Samples:
    """Gauges of shared quotas, by the worker that calls the store."""
    if leases is None or not leases.leader.is_leading:
        return {}
    states = list(leases.states())
    return {QUOTA_SLACK.name: [((state.tenant, state.limit), state.slack) for state in states],
            QUOTA_EXACT.name: [((state.tenant, state.limit), int(state.is_exact)) for state in states],
            QUOTA_STORE_LOST.name: [((), int(leases.leader.is_lost))]}


def quota_counters(leases: QuotaLeases | None) -> Samples:
    """Counters of shared quotas."""
    return {QUOTA_STORE_CALLS.name: [((result,), n) for result, n in leases.leader.calls.items()]} if leases else {}


def quota_state(leases: QuotaLeases | None) -> Mapping[str, Any]:
    """Shared quotas, for JSON; empty: none."""
    if leases is None:
        return {}
    leader = leases.leader
    limits = [{"tenant": state.tenant, "limit": state.limit, "stock": state.stock, "slack": state.slack,
               "is_exact": state.is_exact, "demand_per_s": state.demand_per_s} for state in leases.states()]
    return {"quotas": {"is_leader": leader.is_leading, "is_lost": leader.is_lost, "why_lost": leader.why_lost,
                       "gateways": leader.n_gateways, "calls": leader.calls, "limits": limits}}
