"""Quotas of stored keys, in addition to their tenants' ones: reserve before a request, settle at its end."""

from collections.abc import Callable
from functools import partial
from math import ceil

from stayfast.core.clock import Clock
from stayfast.core.constants import MAX_RETRY_AFTER_S
from stayfast.core.errors import Shed
from stayfast.pipeline.admission.tenants import Buckets, Tenant, own_buckets
from stayfast.pipeline.exchange import Exchange, OutcomeRecord
from stayfast.pipeline.stages.admit.admission import count_used
from stayfast.policy.admission.overload import TenantConfig
from stayfast.policy.admission.priority import Points
from stayfast.policy.admission.quota import Amount, QuotaConfig, Refusal

ReadQuota = Callable[[str], QuotaConfig | None]  # by the id of a key; None: it has none
MAX_SPENDERS = 10_000  # keys with a quota whose buckets this process holds


def no_quota(_: str) -> QuotaConfig | None:
    """Without stored keys."""
    return None


class KeyQuotas:
    """The buckets of keys. Belongs to one loop; survives a reload. The bucket of a key beyond MAX_SPENDERS that was used the
    longest ago is full again.
    """

    __slots__ = ("_buckets", "_clock", "_read_quota", "_spenders")

    def __init__(self, clock: Clock, read_quota: ReadQuota = no_quota, buckets: Buckets = own_buckets) -> None:
        """buckets: for all workers of this gateway."""
        self._clock = clock
        self._read_quota = read_quota
        self._buckets = buckets
        self._spenders: dict[str, Tenant] = {}  # a key learns the length of its answers as a tenant does

    def reserve(self, ex: Exchange) -> Callable[[], None] | None:
        """Reserve the estimated use of a request; returns what settles it. Raises Shed (429)."""
        key_id, now = ex.arrival.key_id, self._clock.now()
        config = self._read_quota(key_id)
        if config is None:
            return None
        spender = self._find(key_id, config, now)
        n_input, n_output = spender.estimate(ex.request)
        quota = spender.quota
        most_usd = spender.most_cost_usd(ex.request, n_input, ex.policy.dearest) if quota.has_cost else 0.0
        reserved = (1.0, n_input + n_output, most_usd)
        refusal = quota.reserve(reserved, now)
        if refusal is not None:
            raise _over_quota(ex, spender, refusal, now)
        return partial(self._settle, spender, ex.record, reserved, n_input)

    def _find(self, key_id: str, config: QuotaConfig, now: float) -> Tenant:
        spender = self._spenders.pop(key_id, None)
        if spender is None:
            spender = Tenant(f"key {key_id}", TenantConfig(quota=config), Points(), now, self._buckets)
            if len(self._spenders) >= MAX_SPENDERS:
                del self._spenders[next(iter(self._spenders))]
        elif spender.quota.config != config:
            spender.configure(TenantConfig(quota=config), Points(), now)
        self._spenders[key_id] = spender
        return spender

    def _settle(self, spender: Tenant, record: OutcomeRecord, reserved: Amount, n_input: float) -> None:
        used = count_used(record, n_input)
        spender.quota.reconcile(reserved, used.amount(record), self._clock.now())
        if used.ttft_s is not None:
            spender.learn_usage(used.n_output, used.cost_usd)

    def __repr__(self) -> str:
        return f"<KeyQuotas: {len(self._spenders)}>"


def _over_quota(ex: Exchange, spender: Tenant, refusal: Refusal, now: float) -> Shed:
    limit, digits = refusal.limit.replace("_", " "), ".4f" if refusal.limit.startswith("cost") else ".0f"
    ex.record.note(f"over the quota of {spender.name} on {limit}")
    return Shed(f"Rate limit reached for this key on {limit}: limit {refusal.capacity:{digits}}, left "
                f"{max(0.0, refusal.level):{digits}}, requested {refusal.wanted:{digits}}. Please try again in "
                f"{ceil(refusal.wait_s * 10) / 10:g} s.", reason=refusal.limit, status=429, code="rate_limit_exceeded",
                retry_after_s=min(refusal.wait_s, MAX_RETRY_AFTER_S), is_final=refusal.wait_s > MAX_RETRY_AFTER_S,
                allowances=spender.quota.allowances(now))
