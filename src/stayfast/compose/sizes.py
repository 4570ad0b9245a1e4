"""Bounds of prompts, where a route has any."""

from stayfast.pipeline.alarms import Alarms
from stayfast.pipeline.oversize import Sized
from stayfast.pipeline.stages.admit import Admit
from stayfast.pipeline.stages.route import Router
from stayfast.policy.admission import ANY_TENANT, TenantConfig
from stayfast.policy.priority import Tier
from stayfast.settings import Settings


def sized(admit: Admit, settings: Settings, router: Router, alarms: Alarms) -> Admit:
    """Admission that looks at the length first; as it is, where no route has a bound."""
    if not any(route.size.is_bounded for route in settings.routes.values()):
        return admit
    tenants = settings.tenants
    others = tenants.get(ANY_TENANT) or TenantConfig()

    def tier(tenant: str | None) -> Tier:
        return tenants.get(tenant, others).tier if tenant is not None else others.tier

    return Sized(admit, router.terms, tier, alarms)


def unsized(admit: Admit) -> Admit:
    """What admits behind the look at the length."""
    return admit.inner if isinstance(admit, Sized) else admit
