"""What a gateway shares with others, put together from the settings."""

import os
import socket
from collections.abc import Mapping
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
from stayfast.pipeline.stages.admit.admission import JUDGES
from stayfast.policy.admission.overload import ANY_TENANT
from stayfast.policy.admission.quota import QuotaConfig
from stayfast.policy.fleet.config import FleetConfig
from stayfast.settings import Settings
from stayfast.workers.channels import WorkerPeers
from stayfast.workers.fleet.quota_leases import LeaseMemory, QuotaLeases
from stayfast.workers.shared_memory import SharedCounters

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
    """The quotas of all tenants that there can be, by name."""
    names = sorted({*settings.server.keys, *settings.tenants, ANONYMOUS, JUDGES} - {ANY_TENANT})
    found = ((name, settings.tenants.get(name) or settings.tenants.get(ANY_TENANT)) for name in names)
    return {name: tenant.quota for name, tenant in found if tenant is not None and tuple(tenant.quota.limits())}


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
