"""One record for each tenant: its terms and what it has used. Kept for the life of the process."""

from collections.abc import Callable, Mapping
from functools import partial

from stayfast.core.constants import BYTES_A_TOKEN
from stayfast.core.types import NEVER_STREAMED, Request
from stayfast.policy.admission.fair_share import TenantShare
from stayfast.policy.admission.overload import ANY_TENANT, TenantConfig
from stayfast.policy.admission.price import TOKENS_PER_PRICE, Prices, price_of
from stayfast.policy.admission.priority import Points, PriorityClass
from stayfast.policy.admission.quota import Bucket, TenantQuota, make_local_bucket

_FIRST_OUTPUT = 256.0  # tokens, before the tenant's first answer, without max_tokens
_FIRST_LONG_OUTPUT = 1024.0  # a long answer, before the first one
_LEARNS = 0.05
_MOST_READ = 4.0  # computed tokens for each estimated one, at most
Buckets = Callable[[str, str, float, float, float], Bucket]  # of a tenant, a limit's name, capacity, rate and now


def own_buckets(_: str, limit: str, capacity: float, per_s: float, now: float) -> Bucket:
    return make_local_bucket(limit, capacity, per_s, now)


class Tenant:
    """The state of one tenant. Belongs to one loop; nothing here awaits."""

    __slots__ = ("_buckets", "_n_estimated", "_n_read", "config", "long_output", "name", "quota", "share", "standing",
                 "usual_cost_usd", "usual_output")

    def __init__(self, name: str, config: TenantConfig, points: Points, now: float, buckets: Buckets = own_buckets) -> None:
        self.name = name
        self.share = TenantShare(name, config.weight)
        self._buckets = buckets
        self.quota = TenantQuota(config.quota, now, partial(buckets, name))
        self.usual_output = _FIRST_OUTPUT  # tokens; moving mean of its answers
        self.long_output = _FIRST_LONG_OUTPUT  # tokens; moving maximum
        self.usual_cost_usd = 0.0  # of a request; moving mean
        self._n_read = self._n_estimated = 1.0  # prompt tokens: computed by upstreams, and estimated
        self.configure(config, points, now)

    def configure(self, config: TenantConfig, points: Points, now: float) -> None:
        """Take new terms; used quota stays used."""
        self.config = config
        self.standing = PriorityClass(points, config.tier, config.priority)
        self.share.weight = config.weight
        if config.quota != self.quota.config:
            self.quota = TenantQuota(config.quota, now, partial(self._buckets, self.name), self.quota)

    def estimate(self, request: Request) -> tuple[float, float]:
        """The maximum tokens of prompt and answer of a request."""
        n_input = len(request.body) / BYTES_A_TOKEN
        if request.api in NEVER_STREAMED:
            return n_input, 0.0
        most = request.max_output_tokens
        return n_input, (self.usual_output if most is None else most) * request.n_choices

    def most_cost_usd(self, request: Request, n_input: float, dearest: Prices) -> float:
        """The maximum cost of a request at these prices, with its longest allowed answer, or one as long as the longest
        recent answer. At least the usual cost, because the estimate is incomplete; without a price, exactly the usual cost.
        """
        price = price_of(dearest, request.model)
        if price is None:
            return self.usual_cost_usd
        usd = n_input * price.input_per_mtok
        if request.api not in NEVER_STREAMED:
            most = request.max_output_tokens
            usd += (self.long_output if most is None else most) * request.n_choices * price.output_per_mtok
        return max(usd / TOKENS_PER_PRICE, self.usual_cost_usd)

    def estimate_work(self, n_input: float, n_output: float) -> tuple[float, float]:
        """Estimated tokens that an upstream computes and writes, from the maximum tokens of a request."""
        return n_input * self._n_read / self._n_estimated, min(n_output, self.usual_output)

    def learn_computed_tokens(self, n_input: float, n_read: float) -> None:
        """An upstream computed `n_read` tokens of a prompt that was estimated at `n_input`."""
        self._n_read += (min(n_read, _MOST_READ * n_input) - self._n_read) * _LEARNS
        self._n_estimated += (n_input - self._n_estimated) * _LEARNS  # two means, so that prompts count by their length

    def learn_usage(self, n_output: float, cost_usd: float) -> None:
        """The usage of an answered request."""
        self.usual_output += (n_output - self.usual_output) * _LEARNS
        self.long_output = max(n_output, self.long_output + (n_output - self.long_output) * _LEARNS)
        self.usual_cost_usd += (cost_usd - self.usual_cost_usd) * _LEARNS

    def __repr__(self) -> str:
        return f"<Tenant {self.name!r} {self.config.tier.value}: {self.share!r} {self.quota!r}>"


class Tenants:
    """All tenants that sent a request. Bounded by the keys in the settings."""

    __slots__ = ("_buckets", "_configs", "_points", "_tenants")

    def __init__(self, configs: Mapping[str, TenantConfig], points: Points, buckets: Buckets = own_buckets) -> None:
        """buckets: makes those of a new tenant's quota."""
        self._buckets = buckets
        self._configs = configs
        self._points = points
        self._tenants: dict[str | None, Tenant] = {}

    def get(self, name: str | None, now: float) -> Tenant:
        """The record of a tenant; None: requests without a key."""
        tenant = self._tenants.get(name)
        if tenant is None:
            tenant = self._tenants[name] = Tenant(name or "anonymous", self._config(name), self._points, now, self._buckets)
        return tenant

    def configure(self, configs: Mapping[str, TenantConfig], points: Points, now: float) -> None:
        self._configs, self._points = configs, points
        for name, tenant in self._tenants.items():
            tenant.configure(self._config(name), points, now)

    def newest(self, n: int) -> list[Tenant]:
        return sorted(self._tenants.values(), key=lambda tenant: tenant.share.seen_at, reverse=True)[:n]

    def _config(self, name: str | None) -> TenantConfig:
        named = self._configs.get(name) if name is not None else None
        return named or self._configs.get(ANY_TENANT) or TenantConfig()

    def __repr__(self) -> str:
        return f"<Tenants: {len(self._tenants)}>"
