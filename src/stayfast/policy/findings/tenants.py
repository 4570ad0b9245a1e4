"""Tenants that slow down others, or are slowed down themselves.

Problem: one tenant's load is everyone's queue, and the route's percentiles do not name it. Rule: compare each tenant with
the others, over 5 minutes.

    noisy         one tenant has over half of the tokens, and the others are slower than it or rejected
    long prompts  a tenant is slow by itself: its prompts are several times as long as those of the others
    at its quota  a limit of the tenant is used up, and its requests are rejected
    starved       a tenant is rejected or slow beyond the others, without more load or longer prompts

Source: "per tenant quotas to prevent one noisy user from burning your GPU queue" ("LLM Latency In Production: What Actually
Works"); "don't let one slow user degrade everyone else's experience" ("LLM Latency Optimization: How We Cut P99 from 12s to
1.8s"). When wrong: tenants of different upstreams or models differ without hurting each other.
"""

from collections.abc import Iterable, Mapping, Sequence
from statistics import median

from stayfast.core.findings import Confidence, Finding, FindingSite, SettingsChange
from stayfast.core.snapshot import Snapshot, TenantRow
from stayfast.core.units import format_seconds, format_share
from stayfast.policy.findings.check import Check
from stayfast.policy.findings.patches import PatchTree, change_settings
from stayfast.policy.findings.rows import NOW_S, observe, share_of

MIN_REQUESTS = 20  # of a tenant: its p95 is then one of its slowest two
NOISY = 0.5  # of all tokens
SUFFERS_SHED = 0.05  # of the other tenants' requests
WAITING = 5  # requests of others in the queue
SLOW = 3.0  # times the median p95 of the others
LONG_PROMPTS = 3.0  # times their median p95 of input tokens
USED_UP = 0.02  # of a limit is left
STARVED_SHED = 0.2
FAIR_SHED = 0.02
SOURCE = "/admin/snapshot tenants"


def _busy(snapshot: Snapshot) -> list[TenantRow]:
    return [row for row in snapshot.tenants if row.n >= MIN_REQUESTS]


def _is_at_quota(row: TenantRow) -> bool:
    return bool(row.left) and min(row.left.values()) <= USED_UP


def _shed(rows: Iterable[TenantRow]) -> float:
    """Share of rejected requests; those of tenants at their own quota do not count."""
    counted = [row for row in rows if not _is_at_quota(row)]
    return share_of(sum(row.n_shed for row in counted), sum(row.n for row in counted))


def _usual_p95_s(rows: Sequence[TenantRow]) -> float | None:
    values = [row.ttft_s.p95 for row in rows if row.ttft_s.p95]
    return median(values) if values else None


def _change_tenant(snapshot: Snapshot, effect: str, name: str, changes: PatchTree,
                   confidence: Confidence = "estimated") -> SettingsChange:
    """A change of one tenant's settings; without a patch if it has no key, and so no settings."""
    names = snapshot.setting("server", "keys")
    if not isinstance(names, Mapping) or name not in names:
        return SettingsChange(effect + " It needs a key of its own (server.keys).", confidence=confidence)
    return change_settings(effect, {"tenants": {name: changes}}, confidence)


def find_noisy(snapshot: Snapshot) -> Iterable[Finding]:
    """A tenant with most of the load, whose others wait or are rejected."""
    rows = _busy(snapshot)
    total = sum(row.n_tokens for row in snapshot.tenants)
    for row in rows:
        others = [other for other in rows if other.name != row.name]
        share = share_of(row.n_tokens, total)
        if not others or share < NOISY:
            continue
        shed, waiting = _shed(others), sum(other.waiting for other in others)
        if shed < SUFFERS_SHED and waiting < WAITING:
            continue
        per_minute = int(row.n_tokens / (NOW_S / 60))
        yield Finding(
            "tenant.noisy", "act", FindingSite(tenant=row.name),
            f"{row.name} has {format_share(share)} of all tokens; of the other tenants' requests {format_share(shed)} are "
            f"rejected and {waiting} wait.",
            "One tenant fills the places that all share.",
            evidence=(observe("share of tokens", share, "ratio", NOW_S, SOURCE),
                      observe("rejected requests of others", shed, "ratio", NOW_S, SOURCE),
                      observe("waiting requests of others", waiting, "", None, SOURCE)),
            do=(_change_tenant(snapshot, f"Half of its present rate of {per_minute} tokens a minute: the others get the "
                                         "rest.",
                               row.name, {"quota": {"tokens_per_minute": max(1, per_minute // 2)}}),
                _change_tenant(snapshot, "Or a smaller share while others wait, and no limit otherwise.", row.name,
                               {"weight": 0.5})),
            verify=f"{SOURCE}: n_shed and ttft_s p95 of the others fall; `stayfast prove noisy`")


def find_long_prompts(snapshot: Snapshot) -> Iterable[Finding]:
    """A tenant that is slow by the length of its own prompts."""
    for row, others, usual_s in _slow_tenants(snapshot):
        sizes = [other.input_tokens.p95 for other in others if other.input_tokens.p95]
        usual, own = (median(sizes) if sizes else 0.0), row.input_tokens.p95 or 0.0
        if not usual or own < LONG_PROMPTS * usual:
            continue
        slow_s = row.ttft_s.p95 or 0.0
        has_places = snapshot.setting("admission", "max_in_flight") is not None
        yield Finding(
            "tenant.long_prompts", "warn", FindingSite(tenant=row.name),
            f"The first token of {row.name} takes {format_seconds(slow_s)} (p95), that of the others "
            f"{format_seconds(usual_s)}; its prompts are {own / usual:.1f} times as long.",
            "Its long prompts make its own requests slow, and those of others that run at the same time on the same engine.",
            evidence=(observe("ttft p95", slow_s, "s", NOW_S, SOURCE),
                      observe("ttft p95 of others", usual_s, "s", NOW_S, SOURCE),
                      observe("input_tokens p95", own, "tokens", NOW_S, SOURCE),
                      observe("input_tokens p95 of others", usual, "tokens", NOW_S, SOURCE)),
            do=(change_settings("Long prompts run in a lane of their own and do not delay others.",
                                {"admission": {"lanes": {"long_input_tokens": max(1, int(LONG_PROMPTS * usual))}}})
                if has_places else
                SettingsChange("With admission.max_in_flight set: admission.lanes separate long from short prompts."),
                SettingsChange("In its application: shorter prompts, or batches for long documents.")),
            verify=f"{SOURCE}: ttft_s p95 of the other tenants falls")


def _slow_tenants(snapshot: Snapshot) -> Iterable[tuple[TenantRow, list[TenantRow], float]]:
    rows = _busy(snapshot)
    for row in rows:
        others = [other for other in rows if other.name != row.name]
        usual_s = _usual_p95_s(others)
        if usual_s and (row.ttft_s.p95 or 0.0) >= SLOW * usual_s:
            yield row, others, usual_s


def find_used_quota(snapshot: Snapshot) -> Iterable[Finding]:
    """Tenants that are rejected by their own quota."""
    for row in _busy(snapshot):
        if not _is_at_quota(row) or row.n_shed == 0:
            continue
        name, left = min(row.left.items(), key=lambda item: item[1])
        most = snapshot.setting("tenants", row.name, "quota", name)
        if most is None:
            most = snapshot.setting("tenants", "*", "quota", name)
        do = (_change_tenant(snapshot, "Twice the limit, if its use is wanted.", row.name, {"quota": {name: 2 * most}})
              if isinstance(most, int | float) else
              SettingsChange("A higher limit of the tenant, if its use is wanted."))
        yield Finding(
            "tenant.at_quota", "info", FindingSite(tenant=row.name),
            f"{row.name} has {format_share(left)} of its {name} left; {row.n_shed} of its requests were rejected.",
            "Its own quota rejects them; others are not affected.",
            evidence=(observe(f"{name} left", left, "ratio", None, SOURCE),
                      observe("rejected", row.n_shed, "", NOW_S, SOURCE)),
            do=(do,), verify=f"{SOURCE}: n_shed of {row.name} falls")


def find_starved(snapshot: Snapshot) -> Iterable[Finding]:
    """Tenants that are rejected or slow beyond the others without a cause of their own."""
    rows = _busy(snapshot)
    if len(rows) < 2:
        return
    fair = share_of(1.0, len(rows))
    total = sum(row.n_tokens for row in rows)
    for row in rows:
        others = [other for other in rows if other.name != row.name]
        shed = share_of(row.n_shed, row.n)
        if _is_at_quota(row) or row.tier == "batch" or share_of(row.n_tokens, total) > fair:
            continue
        if shed < STARVED_SHED or _shed(others) > FAIR_SHED:
            continue
        yield Finding(
            "tenant.starved", "warn", FindingSite(tenant=row.name),
            f"{format_share(shed)} of the requests of {row.name} are rejected, of the others' "
            f"{format_share(_shed(others))}.",
            "It uses no more than its share and has quota left, so its weight or priority puts it behind the others.",
            evidence=(observe("rejected", shed, "ratio", NOW_S, SOURCE),
                      observe("rejected of others", _shed(others), "ratio", NOW_S, SOURCE),
                      observe("share of tokens", share_of(row.n_tokens, total), "ratio", NOW_S, SOURCE)),
            do=(_change_tenant(snapshot, "A fair share again, at no lower priority.", row.name,
                               {"weight": 1, "priority": 0, "tier": "standard"}),),
            verify=f"{SOURCE}: n_shed of {row.name} falls to that of the others")


CHECKS = (
    Check("tenant.noisy", "one tenant's load makes others wait", find_noisy,
          ("tenant.starved", "load.shedding", "load.long_queue", "load.near_limit", "time.stage_dominates")),
    Check("tenant.long_prompts", "a tenant with long prompts is slow, and slows down others", find_long_prompts),
    Check("tenant.at_quota", "a tenant's quota is used up", find_used_quota),
    Check("tenant.starved", "a tenant gets less than its share", find_starved),
)
