"""The terms on which a tenant's job is queued: its rank, the tenant's share, when it may start and when it is aged."""

from collections.abc import Mapping

import msgspec

from stayfast.core.constants import BYTES_A_TOKEN
from stayfast.core.types import Request
from stayfast.jobs.config import JobsConfig
from stayfast.policy.admission.overload import ANY_TENANT, TenantConfig
from stayfast.policy.admission.priority import Points, PriorityClass, Urgency
from stayfast.policy.jobs.order import aged_at, rank_of
from stayfast.policy.jobs.windows import parse_window

USUAL_OUTPUT = 256  # tokens of an answer without a limit


class JobRanking(msgspec.Struct, frozen=True):
    """As in core.jobs.NewJob."""

    rank: int
    weight: float
    run_at: float
    aged_at: float


class QueueTerms:
    """The terms of one set of settings."""

    __slots__ = ("_aging_s", "_tenants", "_windows")

    def __init__(self, config: JobsConfig, tenants: Mapping[str, TenantConfig], points: Points) -> None:
        self._aging_s = config.aging_s
        self._tenants = {name: (config, PriorityClass(points, config.tier, config.priority))
                         for name, config in {ANY_TENANT: TenantConfig(), **tenants}.items()}
        self._windows = {route: parse_window(text) for route, text in config.windows.items()}

    def terms_of(self, tenant: str | None, model: str, now: float, *, deadline_at: float | None = None,
                 urgency: Urgency | None = None, is_retry: bool = False, is_batch: bool = False) -> JobRanking:
        """now: Unix seconds. is_batch: a line of a batch, which waits for the off-peak window of its route."""
        config, standing = self._tenants.get(tenant or ANY_TENANT) or self._tenants[ANY_TENANT]
        window = self._windows.get(model) if is_batch else None
        run_at = window.next_opening(now) if window is not None else now
        rank = rank_of(standing, Urgency.BATCH if is_batch else urgency, is_retry=is_retry)
        return JobRanking(rank, config.weight, run_at, aged_at(run_at, self._aging_s, deadline_at))


def estimate_tokens(request: Request) -> int:
    """The tokens of prompt and answer for which a job counts in its tenant's share."""
    n_output = 0 if not request.api.can_stream else (request.max_output_tokens or USUAL_OUTPUT) * request.n_choices
    return max(1, round(len(request.body) / BYTES_A_TOKEN) + n_output)
