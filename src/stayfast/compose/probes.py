"""The probes of one worker: what they read of the running system, and the stores and engines of the settings."""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from importlib import import_module

from stayfast.compose.current import CurrentSystem
from stayfast.core.clock import Clock
from stayfast.core.setting import Secret
from stayfast.observe.log import LogSink
from stayfast.observe.snapshot.probes import WorkerProbes
from stayfast.observe.snapshot.store_probes import JOBS, ServerMemory, StoreSite
from stayfast.observe.snapshot.tenant_traffic import MAX_TENANTS, TenantNow
from stayfast.pipeline.stages.admit.admission import Admission
from stayfast.settings import Settings
from stayfast.settings.upstreams import RedisStoreSettings
from stayfast.workers.fleet.lease_leader import STORE as FLEET


def make_probes(worker: int, current: CurrentSystem, log: LogSink, n_lost: Callable[[], int], clock: Clock) -> WorkerProbes:
    """n_lost: lines that the log has lost."""
    return WorkerProbes(worker, clock, lambda: (log.level, n_lost()), partial(tenants_now, current, clock))


def tenants_now(current: CurrentSystem, clock: Clock) -> Mapping[str, TenantNow]:
    """What admission has of the newest tenants."""
    admit = current.admission()
    if not isinstance(admit, Admission):
        return {}
    now = clock.now()
    return {tenant.name: TenantNow(tenant.config.tier.value, tenant.share.n_running, tenant.share.n_waiting,
                                   {limit: max(0.0, level) / most for limit, (level, most)
                                    in tenant.quota.levels(now).items() if most})
            for tenant in admit.tenants.newest(MAX_TENANTS)}


def store_sites(settings: Settings) -> dict[str, StoreSite]:
    """The stores of the settings, by their names in events."""
    sites = {}
    for name, store in settings.stores.items():
        url = store.url if isinstance(store, RedisStoreSettings) else None
        sites[name] = StoreSite(store.kind, ("cache",), memory_reader(url) if url is not None else None)
    if settings.fleet.url is not None:
        sites.setdefault(FLEET, StoreSite("redis", ("fleet",), memory_reader(settings.fleet.url)))
    sites.setdefault(JOBS, StoreSite("sqlite" if settings.jobs.store is None else "postgres", ("jobs",)))
    return sites


def memory_reader(url: Secret) -> Callable[[], Awaitable[ServerMemory | None]]:
    """Reads the memory of a Redis or Valkey server; nothing if its package is missing."""
    async def read() -> ServerMemory | None:
        try:
            redis = import_module("stayfast.stores.redis_memory")  # here: it needs a package that only an extra brings
        except ModuleNotFoundError:
            return None
        found = await redis.read_memory_info(url.reveal())
        return ServerMemory(*found) if found is not None else None

    return read
