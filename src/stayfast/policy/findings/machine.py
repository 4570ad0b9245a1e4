"""The gateway's own processes: CPU, memory, event loop, descriptors, clock, log.

Problem: a starved gateway makes all upstreams look slow. Rule: look at what the process gets from its machine before what
upstreams do.

    CPU throttled by the cgroup   the loop runs late although the process seems idle
    loop late (p95), GC pauses    every stream pauses together
    memory that grows             after the caches have filled, it is a leak
    descriptors                   no new connections beyond the limit

Source: LiteLLM's "invisible latency gap" (time before the handler) and its 2 to 5 s for DEBUG logs of 2 MB bodies; ntpd
steps a clock that is over 128 ms off. When wrong: memory that grows with traffic grows until the traffic is steady.
"""

from collections.abc import Iterable, Iterator

from stayfast.core.findings import Evidence, Finding, FindingSite, SettingsChange
from stayfast.core.snapshot import MachineRow, Snapshot
from stayfast.core.units import format_duration, format_seconds, format_share
from stayfast.policy.findings.check import Check
from stayfast.policy.findings.patches import change_settings
from stayfast.policy.findings.rows import GIB, MIB, MINUTE_S, NOW_S, n_answered, observe, share_of

SETTLED_S = 60.0  # after the start, when imports and probes are done
GROWN_S = 3600.0  # a slope over less is that of a start
FILLED_S = 3 * 3600.0  # caches have filled or will not
GROWTH = 0.05  # of the process an hour: doubled within a day
MIN_GROWTH_BYTES = 32 * MIB  # per hour; below it is fragmentation
SOON_H = 24.0  # the limit is reached within a day
NEAR_LIMIT = 0.85  # of the memory limit; the kernel reclaims, then kills
FEW_DESCRIPTORS = 0.8  # used; connections to clients may take half of them, the rest are upstreams and files
THROTTLED = 0.05  # of the cgroup's periods of 100 ms; each costs up to 100 ms for all streams
MUCH_THROTTLED = 0.25
LATE_S = 0.05  # p95; the default of alerts.loop_lag_s
STALL_S = 0.5  # p99: readers notice a stopped stream at about half a second
MIN_LAGS = 100  # samples
GC_PAUSE_S = 0.05  # as for the loop: a pause stops it
MIN_PAUSES = 5
CLOCK_STEP_S = 0.5  # four of ntpd's step limits: leases and time limits of minutes do not mind less
MIN_DEBUG_REQUESTS = 60  # in 5 minutes
BUSY = 0.8  # of one core: queueing time is four times the service time (M/M/1: rho / (1 - rho))
MIN_CPUS = 2.0
SOURCE = "/admin/snapshot machines"


def _settled(snapshot: Snapshot) -> Iterator[tuple[MachineRow, FindingSite]]:
    for row in snapshot.machines:
        if row.uptime_s >= SETTLED_S:
            yield row, FindingSite(worker=row.worker)


def _cache_room(snapshot: Snapshot) -> float:
    """Bytes that response caches in memory may still take, in each worker."""
    room = 0.0
    for row in snapshot.caches:
        most = snapshot.setting("routes", row.route, "cache", "max_bytes")
        if isinstance(most, int | float) and row.n_bytes is not None:
            room += max(0.0, most - row.n_bytes)
    return room


def find_memory_growth(snapshot: Snapshot) -> Iterable[Finding]:
    """Workers whose memory grows after their caches are full."""
    room = _cache_room(snapshot)
    for row, where in _settled(snapshot):
        growth = row.rss_growth_bytes_per_h
        if growth is None or row.uptime_s < GROWN_S or growth < max(MIN_GROWTH_BYTES, GROWTH * row.rss_bytes):
            continue
        if row.uptime_s < FILLED_S and growth <= room:
            continue
        left = row.memory_limit_bytes - row.rss_bytes if row.memory_limit_bytes else None
        hours = left / growth if left is not None else None
        until = f" Its limit is reached in {format_duration(max(60.0, round(hours * 60) * 60))}." if (
            hours is not None and hours < SOON_H) else ""
        yield Finding(
            "machine.memory_grows", "warn", where,
            f"The worker's memory grows by {growth / MIB:.0f} MiB an hour; it has {row.rss_bytes / MIB:.0f} MiB.{until}",
            "Something is stored and not released: an own turn or extension, or a leak of the gateway.",
            evidence=(observe("rss_growth_bytes_per_h", growth, "bytes/h", None, SOURCE),
                      observe("rss_bytes", row.rss_bytes, "bytes", None, SOURCE), observe("uptime_s", row.uptime_s, "s")),
            do=(SettingsChange("Report it with /debug/state of now and of an hour ago. Until then: a restart at a quiet "
                               "hour; `stayfast prove leaks` measures the gateway's own part.", confidence="unknown"),),
            verify=f"{SOURCE}: rss_growth_bytes_per_h is about 0 for an hour")


def find_full_memory(snapshot: Snapshot) -> Iterable[Finding]:
    """Workers close to their memory limit."""
    limit = min((row.memory_limit_bytes for row, _ in _settled(snapshot) if row.memory_limit_bytes), default=0)
    total = sum(row.rss_bytes for row in snapshot.machines)
    share = share_of(total, limit)
    if share >= NEAR_LIMIT:
        yield Finding(
            "machine.memory_near_limit", "act", FindingSite(),
            f"All workers together use {format_share(share)} of the memory limit of {limit / GIB:.2g} GiB.",
            "Beyond the limit the kernel ends a worker, with all its streams.",
            evidence=(observe("memory used", total, "bytes", None, SOURCE),
                      observe("memory_limit_bytes", limit, "bytes", None, SOURCE)),
            do=(change_settings("Half of the memory for buffered whole answers.",
                                {"server": {"max_buffered_bytes": 128 * MIB}}),
                SettingsChange("Or a higher limit of the container, or smaller caches (routes.X.cache.max_bytes).")),
            verify=f"{SOURCE}: rss_bytes falls under {NEAR_LIMIT * 100:g} % of the limit")


def find_few_descriptors(snapshot: Snapshot) -> Iterable[Finding]:
    """Workers with most of their file descriptors in use."""
    for row, where in _settled(snapshot):
        share = share_of(row.descriptors, row.max_descriptors)
        if share < FEW_DESCRIPTORS:
            continue
        yield Finding(
            "machine.descriptors", "act" if share >= 0.95 else "warn", where,
            f"{row.descriptors} of {row.max_descriptors} file descriptors are in use.",
            "Each connection takes one. At the limit no client and no upstream gets a connection.",
            evidence=(observe("descriptors", row.descriptors, "", None, SOURCE),
                      observe("max_descriptors", row.max_descriptors, "", None, SOURCE)),
            do=(SettingsChange("A higher limit for the process: `ulimit -n 65536`, LimitNOFILE=65536 in systemd.",
                               confidence="measured"),
                change_settings("Idle client connections close sooner.", {"server": {"idle_timeout_s": 15}})),
            verify=f"{SOURCE}: descriptors fall under {FEW_DESCRIPTORS * 100:g} % of max_descriptors")


def find_throttling(snapshot: Snapshot) -> Iterable[Finding]:
    """Workers whose cgroup withholds the CPU."""
    for row, where in _settled(snapshot):
        share = row.throttled_ratio or 0.0
        if share < THROTTLED:
            continue
        quota = f" of {row.n_cpus:g} cores" if row.n_cpus is not None else ""
        yield Finding(
            "machine.throttled", "act" if share >= MUCH_THROTTLED else "warn", where,
            f"The CPU quota{quota} stopped the process in {format_share(share)} of all periods.",
            "When the quota of a period (100 ms) is used, everything stops until the next one: all streams pause together.",
            evidence=(observe("throttled_ratio", share, "ratio", NOW_S, SOURCE),
                      observe("cpu_ratio", row.cpu_ratio or 0.0, "cores", NOW_S, SOURCE)),
            do=(SettingsChange("A higher CPU limit of the container, or none: requests alone reserve CPU. The pauses of up "
                               "to 100 ms end.", confidence="measured"),
                change_settings("If the limit must remain: fewer workers than cores of the quota.",
                                {"workers": max(1, int(row.n_cpus or 1))})),
            verify=f"{SOURCE}: throttled_ratio is under {THROTTLED * 100:g} %; stayfast_loop_lag_seconds p95 falls")


def find_loop_stalls(snapshot: Snapshot) -> Iterable[Finding]:
    """Event loops that run late."""
    limit_s = snapshot.setting("alerts", "loop_lag_s")
    late_s = float(limit_s) if isinstance(limit_s, int | float) else LATE_S
    for row, where in _settled(snapshot):
        p95_s, p99_s = row.loop_lag_s.p95 or 0.0, row.loop_lag_s.p99 or 0.0
        if row.loop_lag_s.n < MIN_LAGS or (p95_s < late_s and p99_s < STALL_S):
            continue
        yield Finding(
            "machine.loop_stalls", "act" if p95_s >= 2 * late_s else "warn", where,
            f"The event loop runs {format_seconds(p95_s)} late at the p95 and {format_seconds(p99_s)} at the p99.",
            "Something holds the loop: too little CPU, a blocking call of an own turn, or very large bodies.",
            evidence=(observe("loop lag p95", p95_s, "s", NOW_S, "stayfast_loop_lag_seconds"),
                      observe("loop lag p99", p99_s, "s", NOW_S, "stayfast_loop_lag_seconds"),
                      observe("cpu_ratio", row.cpu_ratio or 0.0, "cores", NOW_S, SOURCE)),
            do=(change_settings("Another worker takes half of the requests.", {"workers": snapshot.n_workers + 1})
                if (row.cpu_ratio or 0.0) >= BUSY else
                SettingsChange("The CPU is not full, so the loop waits for something: find the blocking call (py-spy "
                               "dump), and run it in a thread.", confidence="unknown"),),
            verify="stayfast_loop_lag_seconds p95 falls under 50 ms")


def find_gc_pauses(snapshot: Snapshot) -> Iterable[Finding]:
    """Long pauses of the garbage collector."""
    for row, where in _settled(snapshot):
        p99_s = row.gc_pause_s.p99 or 0.0
        if row.gc_pause_s.n < MIN_PAUSES or p99_s < GC_PAUSE_S:
            continue
        yield Finding(
            "machine.gc_pauses", "warn", where,
            f"Collections of garbage stop the worker for {format_seconds(p99_s)} (p99).",
            "A full collection visits every object: many are alive, as in large own structures of a turn.",
            evidence=(observe("gc pause p99", p99_s, "s", NOW_S, SOURCE),
                      observe("pauses", row.gc_pause_s.n, "", NOW_S, SOURCE),
                      observe("rss_bytes", row.rss_bytes, "bytes", None, SOURCE)),
            do=(SettingsChange("In an own turn: gc.freeze() after loading, fewer and larger objects (arrays, bytes)."),
                SettingsChange("Smaller recent lists and caches in memory: recent.size, routes.X.cache.max_bytes.")),
            verify=f"{SOURCE}: gc_pause_s p99 falls under {format_seconds(GC_PAUSE_S)}")


def find_clock_steps(snapshot: Snapshot) -> Iterable[Finding]:
    """A wall clock that jumps against the monotonic one."""
    rows = [row for row, _ in _settled(snapshot) if abs(row.clock_step_s) >= CLOCK_STEP_S]
    if not rows:
        return
    step_s = max((row.clock_step_s for row in rows), key=abs)
    yield Finding(
        "machine.clock_jumps", "warn", FindingSite(),
        f"The wall clock jumped by {step_s:+.3g} s.",
        "The machine's clock was set, or a virtual machine was paused. Signed links, cache lifetimes, quotas of days and "
        "jobs of several machines use it; time limits of requests do not.",
        evidence=(observe("clock_step_s", step_s, "s", NOW_S, SOURCE),),
        do=(SettingsChange("A time service that slews (chrony with makestep only at boot); no pauses of the virtual "
                           "machine.",
                           confidence="unknown"),),
        verify=f"{SOURCE}: clock_step_s is about 0")


def find_debug_log(snapshot: Snapshot) -> Iterable[Finding]:
    """The log level debug under traffic."""
    n = n_answered(snapshot.rows(NOW_S))
    if n < MIN_DEBUG_REQUESTS or not any(row.log_level == "debug" for row in snapshot.machines):
        return
    yield Finding(
        "machine.debug_log", "warn", FindingSite(),
        f"The log level is debug, with {n} requests in 5 minutes.",
        "Debug lines cost CPU on the event loop for every request.",
        evidence=(observe("requests", n, "", NOW_S, "stayfast_requests_total"),),
        do=(change_settings("Less CPU per request; problems are still logged.", {"log": {"level": "info"}}),),
        verify="stayfast_overhead_seconds falls")


def _least_use(snapshot: Snapshot) -> tuple[float, float] | None:
    """Use of the least busy worker, in cores, and the usable cores; None if a worker is not full, or not known."""
    rows = [row for row, _ in _settled(snapshot) if row.cpu_ratio is not None]
    if not rows or len(rows) < snapshot.n_workers - snapshot.n_silent_workers:
        return None
    least, n_cpus = min(row.cpu_ratio or 0.0 for row in rows), max(row.n_cpus or 0.0 for row in rows)
    return (least, n_cpus) if least >= BUSY and n_cpus else None


def _cpu_evidence(snapshot: Snapshot, least: float, n_cpus: float) -> tuple[Evidence, ...]:
    return (observe("cpu_ratio, least of all workers", least, "cores", NOW_S, SOURCE),
            observe("workers", snapshot.n_workers, "", None, SOURCE), observe("n_cpus", n_cpus, "", None, SOURCE))


def find_idle_cores(snapshot: Snapshot) -> Iterable[Finding]:
    """Full workers while other cores are idle."""
    use = _least_use(snapshot)
    if use is None or use[1] < MIN_CPUS or snapshot.n_workers >= int(use[1]):
        return
    least, n_cpus = use
    yield Finding(
        "machine.idle_cores", "warn", FindingSite(),
        f"{snapshot.n_workers} worker(s) use {format_share(least)} of a core each, and {n_cpus:g} cores are usable.",
        "One worker uses one core; requests wait for it while other cores are idle.",
        _cpu_evidence(snapshot, least, n_cpus),
        (change_settings(f"Up to {n_cpus / max(1, snapshot.n_workers):.2g} times the requests at the same wait.",
                         {"workers": min(256, int(n_cpus))}),),
        "stayfast_loop_lag_seconds and stayfast_queue_wait_seconds fall")


def find_full_cpu(snapshot: Snapshot) -> Iterable[Finding]:
    """Full workers on all cores."""
    use = _least_use(snapshot)
    if use is None or (use[1] >= MIN_CPUS and snapshot.n_workers < int(use[1])):
        return
    least, n_cpus = use
    yield Finding(
        "machine.cpu_full", "warn", FindingSite(),
        f"All {snapshot.n_workers} worker(s) use at least {format_share(least)} of a core, and there are no other cores.",
        "The machine is full: every token waits for CPU.", _cpu_evidence(snapshot, least, n_cpus),
        (SettingsChange("Another gateway, or a machine with more cores."),),
        "stayfast_loop_lag_seconds and stayfast_queue_wait_seconds fall")


def find_lost_lines(snapshot: Snapshot) -> Iterable[Finding]:
    """Log lines that were dropped."""
    n = sum(row.n_lost_lines for row in snapshot.machines)
    if n:
        yield Finding(
            "machine.lost_lines", "info", FindingSite(), f"{n} log lines were lost.",
            "Whatever reads the log is too slow; the gateway drops lines and never waits for it.",
            evidence=(observe("n_lost_lines", n, "", NOW_S, SOURCE),),
            do=(change_settings("One line less for each request.", {"log": {"requests": False}}),
                SettingsChange("Or a faster reader of standard error.")),
            verify=f"{SOURCE}: n_lost_lines does not rise")


def find_silent_workers(snapshot: Snapshot) -> Iterable[Finding]:
    """Workers that do not answer the others, after the start."""
    is_young = snapshot.started_at is not None and snapshot.at - snapshot.started_at < MINUTE_S
    if snapshot.n_silent_workers > 0 and not is_young:
        yield Finding(
            "machine.silent_workers", "act", FindingSite(),
            f"{snapshot.n_silent_workers} of {snapshot.n_workers} workers do not answer.",
            "A worker is stuck in a blocking call, or crashes and restarts.",
            evidence=(observe("silent workers", snapshot.n_silent_workers, "", None, "stayfast_workers"),),
            do=(SettingsChange("See standard error of the parent; a stuck worker: py-spy dump, then end it, and the parent "
                               "starts another.", confidence="unknown"),),
            verify='stayfast_workers{state="silent"} is 0')


CHECKS = (
    Check("machine.throttled", "the cgroup's CPU quota stops the process", find_throttling,
          ("machine.loop_stalls", "machine.gc_pauses", "machine.cpu_full", "machine.idle_cores", "machine.silent_workers")),
    Check("machine.gc_pauses", "collections of garbage stop a worker", find_gc_pauses, ("machine.loop_stalls",)),
    Check("machine.debug_log", "the log level is debug under traffic", find_debug_log,
          ("machine.lost_lines", "machine.loop_stalls", "gateway.overhead")),
    Check("machine.idle_cores", "workers are full while cores are idle", find_idle_cores, ("machine.loop_stalls",)),
    Check("machine.cpu_full", "all cores are full", find_full_cpu, ("machine.loop_stalls",)),
    Check("machine.loop_stalls", "the event loop runs late", find_loop_stalls, ("gateway.late_start", "gateway.overhead")),
    Check("machine.memory_grows", "the memory of a worker grows", find_memory_growth, ("machine.memory_near_limit",)),
    Check("machine.memory_near_limit", "the memory limit is almost reached", find_full_memory),
    Check("machine.descriptors", "most file descriptors are in use", find_few_descriptors),
    Check("machine.clock_jumps", "the wall clock jumps", find_clock_steps),
    Check("machine.lost_lines", "log lines were lost", find_lost_lines),
    Check("machine.silent_workers", "workers do not answer", find_silent_workers),
)
