"""All kinds of findings: the checks of a snapshot, and the kinds that other parts report themselves."""

from collections.abc import Iterable, Mapping

from stayfast.core.findings import Finding
from stayfast.core.snapshot import Snapshot
from stayfast.policy.findings import (
    caches,
    durable_work,
    engines,
    hedging,
    latency,
    load,
    machine,
    network,
    prefix_affinity,
    prices,
    prompt_caches,
    prompt_versions,
    prompts,
    rate_limits,
    replicas,
    stages,
    stores,
    targets,
    tenants,
    time_limits,
    upstream_health,
    waits,
)
from stayfast.policy.findings.check import Check
from stayfast.policy.findings.credentials import RENEWAL_FAILS
from stayfast.policy.findings.kv_events import KV_EVENTS_LOST


def _explain_targets(check: Check) -> Check:
    """What explains a missed promise explains missed targets of the same route, too."""
    is_cause = "latency.promise_missed" in check.explains
    return check._replace(explains=(*check.explains, targets.TARGET_MISSED)) if is_cause else check


CHECKS: tuple[Check, ...] = tuple(_explain_targets(check) for check in (
    *latency.CHECKS, *targets.CHECKS, *hedging.CHECKS, *time_limits.CHECKS, *waits.CHECKS, *stages.CHECKS,
    *rate_limits.CHECKS, *upstream_health.CHECKS, *load.CHECKS, *prompts.CHECKS, *prompt_caches.CHECKS,
    *prompt_versions.CHECKS, *caches.CHECKS, *stores.CHECKS, *engines.CHECKS, *prefix_affinity.CHECKS, *replicas.CHECKS,
    *network.CHECKS, *machine.CHECKS, *tenants.CHECKS, *durable_work.CHECKS, *prices.CHECKS))


def _report_elsewhere(_: Snapshot) -> Iterable[Finding]:
    return ()


# Found by parts that see more than a snapshot, and contained in `Snapshot.reported`.
REPORTED: tuple[Check, ...] = (
    Check("prompt.moving_prefix", "A part of the prompt changes between requests and ends the provider's cache.",
          _report_elsewhere,
          ("prompt.moving_part", "prompt.prefix_differs", "prompt.cache_dropped", "prompt.cache_rarely_read",
           "prompt.long_system", "prompt.version_broke_cache")),
    Check("prompt.cache_unread", "The provider's cache is written and never read.", _report_elsewhere,
          ("prompt.cache_rarely_read", "prompt.long_system")),
    Check("prompt.field_refused", "An upstream rejects a field that the prompt cache needs.", _report_elsewhere),
    Check("semantic.judge_unclear", "The model that compares answers of a semantic cache gives no verdicts.",
          _report_elsewhere),
    Check("fleet.settings_differ", "Gateways of one fleet have different settings.", _report_elsewhere),
    Check("fleet.versions_differ", "Gateways of one fleet have different versions.", _report_elsewhere),
    Check("fleet.lonely_breaker", "A breaker is open at one gateway only.", _report_elsewhere),
    Check("engine.embedded_restarts", "The embedded engine crashed.", _report_elsewhere),
    Check(KV_EVENTS_LOST, "The events of an engine's prefix cache do not arrive, or not all.", _report_elsewhere),
    Check(RENEWAL_FAILS, "The credential of an upstream is not renewed.", _report_elsewhere,
          ("breaker.open", "latency.promise_missed")),
)


def all_kinds() -> Mapping[str, Check]:
    """Checks and reported kinds by id."""
    return {kind.id: kind for kind in (*CHECKS, *REPORTED)}
