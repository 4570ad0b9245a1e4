"""Shared stores: unreachable, slow, full, or evicting what must not be lost.

Problem: a request does not fail without its store, so a sick store shows only as missing hits. Rule:

    down      the store is not open, or half of its calls fail
    slow      the p95 of a call is over half of its time limit: soon every call is a miss
    evicts    the server removes keys by itself, and limits or jobs are among them
    full      it may not evict, and its memory is nearly used: writes fail next

Source: Redis's documentation of maxmemory-policy. When wrong: evictions of a server that only caches are its work.
"""

from collections.abc import Iterable

from stayfast.core.findings import Finding, FindingSite, SettingsChange
from stayfast.core.snapshot import Snapshot, StoreRow
from stayfast.core.units import format_seconds, format_share
from stayfast.policy.findings.check import Check
from stayfast.policy.findings.patches import change_settings
from stayfast.policy.findings.rows import NOW_S, observe, share_of

MIN_CALLS = 20
MIN_CALLS_P95 = 100
FAILING = 0.5  # the limit of the alert StayfastCacheStoreIll
SLOW = 0.5  # of the time limit, at the p95
EMBEDDED = "sqlite"  # a file of this machine: its delay is the disk's
LIMIT_S = 0.02  # default time limit of a shared cache
SLOW_EMBEDDED_S = 1.0  # jobs in a file: each write waits for the disk, and no interactive request for either
SLOW_S = 0.05  # of stores without a setting: the fleet's and the jobs' server are on the way of admission
NEARLY_FULL = 0.9
SOURCE = "/admin/snapshot stores"


def _purposes(row: StoreRow) -> str:
    return " and ".join(row.purposes) or "caches"


def find_down(snapshot: Snapshot) -> Iterable[Finding]:
    """Stores that do not answer."""
    for row in snapshot.stores:
        failed = share_of(row.n_failed, row.n_calls)
        if row.is_open and (row.n_calls < MIN_CALLS or failed < FAILING):
            continue
        state = f"{format_share(failed)} of {row.n_calls} calls fail" if row.is_open else (
            f"{row.why_not or 'it is closed'}, {row.n_calls} calls in 5 minutes")
        yield Finding(
            "store.down", "act", FindingSite(store=row.name),
            f"The store {row.name} does not serve its {_purposes(row)}: {state}.",
            "It is unreachable, full or too slow. " + (
                "Without it each gateway admits by its last share of limits." if "fleet" in row.purposes else
                "New jobs get 503." if "jobs" in row.purposes else "Each cached route makes its own calls."),
            evidence=(observe("failed calls", failed, "ratio", NOW_S, SOURCE),
                      observe("calls", row.n_calls, "", NOW_S, SOURCE)),
            do=(SettingsChange("Check its server, network and memory; the log's cache_store, fleet or jobs lines have the "
                               "error.", confidence="unknown"),),
            verify=f"{SOURCE}: {row.name} is open, and its calls succeed")


def find_slow(snapshot: Snapshot) -> Iterable[Finding]:
    """Stores whose calls come close to their time limit."""
    for row in snapshot.stores:
        limit_s = snapshot.setting("stores", row.name, "timeout_s")
        is_cache = isinstance(limit_s, int | float) and row.purposes == ("cache",)
        bound_s = SLOW * float(limit_s) if is_cache else SLOW_S
        p95_s = row.call_s.p95 or 0.0
        if row.kind == EMBEDDED and not is_cache:
            bound_s = SLOW_EMBEDDED_S
        is_down = not row.is_open or share_of(row.n_failed, row.n_calls) >= FAILING
        if is_down or row.call_s.n < MIN_CALLS_P95 or p95_s < bound_s:
            continue
        yield Finding(
            "store.slow", "warn", FindingSite(store=row.name),
            f"Calls of the store {row.name} take {format_seconds(p95_s)} at the p95"
            + (f"; the limit is {format_seconds(float(limit_s))}." if is_cache else "."),
            "Each request waits for it. A call beyond the limit counts as a miss." if is_cache else
            "Jobs are accepted and finished only after a write to its disk." if row.kind == EMBEDDED else
            "Admission and jobs wait for it.",
            evidence=(observe("call p95", p95_s, "s", NOW_S, SOURCE), observe("calls", row.n_calls, "", NOW_S, SOURCE)),
            do=_speed_up(row, is_cache=is_cache),
            verify=f"{SOURCE}: call_s p95 of {row.name} falls under {format_seconds(bound_s)}")


def _speed_up(row: StoreRow, *, is_cache: bool) -> tuple[SettingsChange, ...]:
    local = change_settings("Answers used often are in this process's own memory.",
                            {"stores": {row.name: {"local_bytes": 64 * 2**20}}})
    if row.kind == EMBEDDED:
        disk = SettingsChange("A faster or less busy disk, no network file system; cores that are not full.")
        return (disk, local) if is_cache else (disk, SettingsChange("With many jobs: PostgreSQL, jobs.store."))
    server = SettingsChange("A server in the same zone, without slow commands of others (SLOWLOG) and without swapping.")
    return server, local if is_cache else SettingsChange("Or a server of its own for this purpose.")


def find_evictions(snapshot: Snapshot) -> Iterable[Finding]:
    """Servers that evict keys of limits or jobs."""
    for row in snapshot.stores:
        owned = [purpose for purpose in row.purposes if purpose != "cache"]
        if not row.n_evicted or not owned:
            continue
        yield Finding(
            "store.evicts_state", "act", FindingSite(store=row.name),
            f"{row.name} evicted {row.n_evicted} keys in 5 minutes (policy {row.eviction_policy or 'unknown'}), and holds "
            f"the state of {' and '.join(owned)}.",
            "An evicted counter of a quota starts again at zero: limits admit too much. Evicted wake-ups delay jobs.",
            evidence=(observe("evicted", row.n_evicted, "", NOW_S, SOURCE),
                      *([observe("memory used", row.memory_ratio, "ratio", None, SOURCE)] if row.memory_ratio else [])),
            do=(SettingsChange("Redis: maxmemory-policy noeviction for this state, and a server of its own for cached "
                               "answers (allkeys-lru).", confidence="measured"),),
            verify=f"{SOURCE}: n_evicted of {row.name} is 0")


def find_full(snapshot: Snapshot) -> Iterable[Finding]:
    """Servers that may not evict, and are nearly full."""
    for row in snapshot.stores:
        used = row.memory_ratio or 0.0
        if used < NEARLY_FULL or row.eviction_policy.startswith("allkeys"):
            continue
        yield Finding(
            "store.nearly_full", "warn", FindingSite(store=row.name),
            f"{row.name} uses {format_share(used)} of its memory (policy {row.eviction_policy or 'unknown'}).",
            "It may not evict all keys, so writes fail when it is full: answers are not stored, limits not shared.",
            evidence=(observe("memory used", used, "ratio", None, SOURCE),),
            do=(SettingsChange("More memory (maxmemory)" + (
                ", or maxmemory-policy allkeys-lru: it holds only cached answers." if row.purposes == ("cache",) else "."),
                confidence="measured"),),
            verify=f"{SOURCE}: memory_ratio of {row.name} falls under {NEARLY_FULL:g}")


CHECKS = (
    Check("store.down", "a shared store does not answer", find_down, ("cache.hits_low", "store.slow", "jobs.unserved")),
    Check("store.slow", "a shared store is slow", find_slow, ("cache.hits_low",)),
    Check("store.evicts_state", "the server evicts the state of limits or jobs", find_evictions),
    Check("store.nearly_full", "a server that may not evict is nearly full", find_full,
          ("store.evicts_state", "store.down")),
)
