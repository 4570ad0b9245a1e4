"""The stages of a gateway, put together. Production, the laboratory and all tests come here."""

from collections.abc import Callable, Mapping
from random import Random

from stayfast.core.clock import Clock
from stayfast.core.events import Sink
from stayfast.pipeline.gateway import Gateway
from stayfast.pipeline.plan import CallKey, Route, RoutePolicy
from stayfast.pipeline.prompt_versions import PromptVersions
from stayfast.pipeline.refresh import BackgroundRefresh
from stayfast.pipeline.stages.admit.admission import Admission, Admit, AdmitAll
from stayfast.pipeline.stages.admit.entry import EntryLimits
from stayfast.pipeline.stages.admit.key_quota import KeyQuotas
from stayfast.pipeline.stages.admit.size_limit import SizeLimit
from stayfast.pipeline.stages.cache.coalesce import Coalescer
from stayfast.pipeline.stages.cache.idempotency import Idempotency, IdempotentAnswers
from stayfast.pipeline.stages.cache.lookup import Cache
from stayfast.pipeline.stages.cache.shared_call import SharedCall
from stayfast.pipeline.stages.call.caller import Caller
from stayfast.pipeline.stages.call.midstream_failover import Guarded
from stayfast.pipeline.stages.degrade import Degrade
from stayfast.pipeline.stages.route import Router
from stayfast.pipeline.stages.settle import Settle
from stayfast.pipeline.timing.timeouts import TimerWheel
from stayfast.policy.admission.priority import TenantTier
from stayfast.policy.admission.response_owners import ResponseOwners
from stayfast.policy.cache.idempotency import IdempotencyConfig


def assemble(routes: Mapping[str, Route], default: RoutePolicy, *, clock: Clock, rng: Random, sink: Sink,
             admit: Admit | None = None, tier_of: Callable[[str | None], TenantTier] = lambda tenant: TenantTier.STANDARD,
             idempotency: IdempotencyConfig | None = None, owners: ResponseOwners | None = None,
             key_quotas: KeyQuotas | None = None, old: Gateway | None = None,
             versions: PromptVersions | None = None) -> Gateway:
    """default: the policy of names that no route has. old: of a reload, whose running calls can still be joined, and whose
    idempotency keys stay known.
    """
    timers, admit = TimerWheel(clock), admit or AdmitAll()
    router = Router(routes, default, clock, rng, owners)
    caller_class = Guarded if any(route.on_stall != "wait" for route in routes.values()) else Caller
    caller = caller_class(clock, rng, sink, admit.is_shedding if isinstance(admit, Admission) else None)
    calls: dict[CallKey, SharedCall] = old.coalescer.calls if old is not None else {}
    config = idempotency or IdempotencyConfig()
    answers = old.idempotency.answers if old is not None else IdempotentAnswers(config)
    answers.configure(config)
    cache = Cache(clock, sink, calls)
    return Gateway(
        timers=timers, admit=admit,
        entry=EntryLimits(SizeLimit(router.policy_of, tier_of, timers), key_quotas or KeyQuotas(clock)),
        idempotency=Idempotency(answers, clock, sink, calls), cache=cache, router=router,
        coalescer=Coalescer(caller.start, cache, clock, calls), degrade=Degrade(cache.open_stale, clock, sink),
        settle=Settle(clock, sink, owners, versions), refresh=BackgroundRefresh(clock))
