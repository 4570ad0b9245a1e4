"""A snapshot of one gateway (all its workers): what the page, `top`, `doctor` and `plan` read.

Figures of windows, gauges of now, the effective settings. Names and figures only: never a prompt, an answer, a key.
Instants are seconds since the epoch, durations seconds, shares 0 to 1. None: unknown.
`Snapshot` is the whole (`GET /admin/snapshot`, files for `doctor`); `LiveFrame` is the small part that is sent every second.
"""

from collections.abc import Iterable
from typing import Any

import msgspec

from stayfast.core.findings import Finding
from stayfast.core.prompt_versions import PromptVersionRow

SNAPSHOT_VERSION = 1
WINDOWS_S = (60.0, 300.0, 3600.0)
HEAT_BOUNDS_S = tuple(0.01 * 2 ** (i / 2) for i in range(29))  # upper bounds of the heatmap's rows; one more is unbounded


class Spread(msgspec.Struct, frozen=True, omit_defaults=True):
    """Percentiles of values of one unit, from merged histograms (within 1.1 %)."""

    n: int = 0
    p50: float | None = None
    p95: float | None = None
    p99: float | None = None
    most: float | None = None


class TrafficRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """Requests of one route that one upstream answered, in one window. upstream "": all of the route. Requests of jobs are
    not counted.
    """

    route: str
    upstream: str
    window_s: float
    n: int = 0  # requests that ended
    n_streamed: int = 0
    n_failed: int = 0  # 5xx, 429
    n_rejected: int = 0  # other 4xx
    n_shed: int = 0
    n_degraded: int = 0
    n_left: int = 0  # clients that disconnected
    n_deadline: int = 0  # ended by a time limit
    n_late: int = 0  # TTFT beyond the promise, failures included
    n_client_retries: int = 0  # requests that the client's SDK marks as its own retry
    ttft_s: Spread = Spread()
    usable_s: Spread = Spread()
    e2e_s: Spread = Spread()
    tpot_s: Spread = Spread()
    gap_most_s: Spread = Spread()  # longest gap of each answer
    queue_s: Spread = Spread()  # accept to start
    own_s: Spread = Spread()  # gateway overhead before the first token
    stages_s: dict[str, Spread] = {}
    stages_at_p99_s: dict[str, float] = {}  # mean by stage over the requests whose TTFT is near the p99
    stages_at_p50_s: dict[str, float] = {}
    over_stages: dict[str, int] = {}  # stages that exceeded their allowance
    n_attempts: int = 0
    n_retries: int = 0
    n_fallbacks: int = 0
    n_hedges: int = 0
    n_hedges_won: int = 0
    n_hedges_refused: int = 0
    n_stalls: int = 0
    n_truncated: int = 0
    faults: dict[str, int] = {}  # of attempts: an upstream's error status or a fault's name
    n_input_tokens: int = 0
    n_cached_tokens: int = 0  # part of n_input_tokens that the provider read from its prompt cache
    n_output_tokens: int = 0
    cost_usd: dict[str, float] = {}  # by role of the attempt: first, hedge, retry, ...
    n_unpriced: int = 0  # attempts with tokens but without a price
    cache: dict[str, int] = {}  # results of the route's own cache
    saved_usd: float = 0.0


class PromptRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """Shapes of the prompts of one route in the last hour, from a sample of requests. Sizes in estimated tokens."""

    route: str
    n: int = 0
    input_tokens: Spread = Spread()
    system_tokens: Spread = Spread()  # system prompt
    tool_tokens: Spread = Spread()  # definitions of tools
    history_tokens: Spread = Spread()  # earlier turns of the conversation
    retrieved_tokens: Spread = Spread()  # documents in the last user message; estimated by its length
    n_messages: Spread = Spread()
    growth_tokens: float | None = None  # tokens that one more message adds, by regression
    max_tokens: Spread = Spread()  # output cap that clients ask for
    n_uncapped: int = 0
    n_logit_bias: int = 0
    n_logit_biases: int = 0  # different ones
    n_repeated: int | None = None  # equal to an earlier one of the sample, with a temperature or seed that a cache accepts
    n_images: int = 0
    client_timeout_s: Spread = Spread()  # read time-out that the SDK states
    output_tokens: Spread = Spread()
    shared_prefix_ratio: float | None = None  # share of the prompt that is equal to the request before, at its beginning
    ttft_by_input: float | None = None  # correlation of the time to the first token with input tokens, -1 to 1
    ttft_by_load: float | None = None  # with requests in flight at that upstream
    e2e_by_output: float | None = None
    s_per_1k_input: float | None = None  # slope of TTFT by 1000 input tokens


class UpstreamRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """One upstream now. Counts are of the last 5 minutes unless the name says otherwise."""

    name: str
    kind: str = ""
    models: tuple[str, ...] = ()
    is_proven: bool = False
    in_flight: int = 0
    waiting: int = 0
    limit: float | None = None
    limit_why: str = ""
    breaker: str = "closed"
    breaker_why: str = ""
    n_breaker_changes_1h: int = 0
    suspended_s: float = 0.0  # from now
    ttft_s: Spread = Spread()  # of attempts, from their start
    tokens_per_s: Spread = Spread()  # output speed of single answers
    n_attempts: int = 0
    n_failed: int = 0
    handshake_s: Spread = Spread()
    connect_s: Spread = Spread()  # TCP alone, where it was measured
    n_opened: int = 0
    n_reused: int = 0
    n_tls_resumed: int = 0
    quota_left: dict[str, float] = {}  # by dimension: share that its rate-limit headers say is left
    quota_left_1h: dict[str, float] = {}  # least in the last hour
    clumped_ratio: float | None = None  # share of streams whose chunks came all at once: a proxy buffers
    batching: str = ""  # from its timings: continuous, static, single; empty: unknown
    price_age_days: float | None = None  # of the oldest list price in use
    is_from_table: bool = False  # some model here has a list price, none of its own
    n_prefix_answers: int = 0  # on routes with prefix affinity; these three: newest first, half in about 350 answers
    prefix_hit_ratio: float | None = None  # share of their input tokens from its cache, by usage; None: it reports none
    prefix_belief_ratio: float | None = None  # the share that routing believed to be there
    engine: dict[str, float] = {}  # of a self-hosted engine: names of `core.snapshot.ENGINE_FIGURES`
    bound_by: str = ""  # what limits that engine: memory, prefill, decode, gateway, none, unknown; empty: no engine is read
    phase: str = ""  # of a replica: loading, warming, ready, sleeping, draining; empty: it is none
    phase_why: str = ""
    cold_start_s: float | None = None  # p90 of its starts; None: none was seen


# running, waiting: requests; *_ratio: 0 to 1; spec_accepted_ratio: accepted draft tokens over proposed; is_sleeping: 0/1
ENGINE_FIGURES = ("running", "waiting", "waiting_tokens", "max_running", "kv_used_ratio", "kv_tokens", "block_tokens",
                  "kv_hit_ratio", "spec_accepted_ratio", "spec_accepted_length", "preemptions_per_s",
                  "prefill_tokens_per_s", "decode_tokens_per_s", "inter_token_s", "queue_p95_s", "prefill_p95_s",
                  "decode_p95_s", "is_sleeping", "gpu_memory_bytes",
                  "gpu_memory_growth_bytes_per_h", "cold_starts_1h", "cold_start_s", "age_s")


class MachineRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """One worker process, over the last 5 minutes."""

    worker: int
    uptime_s: float = 0.0
    cpu_ratio: float | None = None  # of one core
    n_cpus: float | None = None  # usable ones: affinity and cgroup quota
    throttled_ratio: float | None = None  # share of the cgroup's periods that were throttled
    rss_bytes: int = 0
    rss_growth_bytes_per_h: float | None = None  # None: observed for too short a time
    memory_limit_bytes: int | None = None
    loop_lag_s: Spread = Spread()
    gc_pause_s: Spread = Spread()
    descriptors: int = 0
    max_descriptors: int = 0
    clock_step_s: float = 0.0  # largest jump of the wall clock against the monotonic one
    log_level: str = ""
    n_lost_lines: int = 0


class StoreRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """One shared store. purposes: cache, jobs, fleet."""

    name: str
    kind: str
    purposes: tuple[str, ...] = ()
    is_open: bool = True
    why_not: str = ""
    n_calls: int = 0
    n_failed: int = 0
    call_s: Spread = Spread()
    n_evicted: int | None = None  # by the server itself, in the window
    eviction_policy: str = ""
    memory_ratio: float | None = None


class CacheRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """The cache of one route, over the last hour."""

    route: str
    mode: str
    n_lookups: int = 0
    n_exact: int = 0
    n_semantic: int = 0
    n_coalesced: int = 0
    n_bypassed: int = 0
    n_entries: int | None = None
    n_bytes: int | None = None
    n_evicted: int | None = None
    saved_usd: float = 0.0
    saved_s: float = 0.0
    semantic_state: str = ""  # off, shadow, serving, ...
    error_most: float | None = None  # upper 95 % bound of wrong semantic hits


class TenantRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """One tenant, over the last 5 minutes; at most 50, the largest first."""

    name: str
    tier: str = ""
    n: int = 0
    n_shed: int = 0
    n_failed: int = 0
    n_tokens: int = 0
    cost_usd: float = 0.0
    running: int = 0
    waiting: int = 0
    ttft_s: Spread = Spread()
    input_tokens: Spread = Spread()
    left: dict[str, float] = {}  # share of each limit that is left


class JobRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """Durable work of one route."""

    route: str
    queued: int = 0
    running: int = 0
    deferred: int = 0
    oldest_s: float = 0.0
    overdue_s: float = 0.0
    n_ended: dict[str, int] = {}  # by state, last hour
    wait_s: Spread = Spread()
    run_s: Spread = Spread()
    batch_s: Spread = Spread()  # completion times of whole batches, last hour
    batch_deviation: float | None = None  # standard deviation of these over their mean


class FleetRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """Gateways that share state."""

    id: str
    version: str = ""
    age_s: float = 0.0
    n_open_breakers: int = 0


class Snapshot(msgspec.Struct, frozen=True, omit_defaults=True):
    """One gateway at one instant."""

    at: float
    gateway: str = ""
    stayfast: str = ""  # version of the program
    version: int = SNAPSHOT_VERSION
    n_workers: int = 1
    n_silent_workers: int = 0
    started_at: float | None = None
    traffic: tuple[TrafficRow, ...] = ()
    prompts: tuple[PromptRow, ...] = ()
    prompt_versions: tuple[PromptVersionRow, ...] = ()
    upstreams: tuple[UpstreamRow, ...] = ()
    machines: tuple[MachineRow, ...] = ()
    stores: tuple[StoreRow, ...] = ()
    caches: tuple[CacheRow, ...] = ()
    tenants: tuple[TenantRow, ...] = ()
    jobs: tuple[JobRow, ...] = ()
    fleet: tuple[FleetRow, ...] = ()
    n_waiting: int = 0  # requests that wait for admission
    retry_after_s: float | None = None
    reported: tuple[Finding, ...] = ()  # findings that other parts made themselves
    settings: dict[str, Any] = {}  # effective settings as in the file; secrets are "(hidden)"
    sources: dict[str, str] = {}  # by dotted path of a setting: where it comes from; missing: its default

    def rows(self, window_s: float) -> Iterable[TrafficRow]:
        """The traffic of whole routes in one of WINDOWS_S."""
        return (row for row in self.traffic if not row.upstream and row.window_s == window_s)

    def rows_by_upstream(self, window_s: float) -> Iterable[TrafficRow]:
        """The same, one row for each upstream of a route."""
        return (row for row in self.traffic if row.upstream and row.window_s == window_s)

    def setting(self, *path: str) -> Any:
        """An effective setting, such as `setting("routes", "chat", "hedge", "mode")`; None if it does not exist."""
        found: Any = self.settings
        for name in path:
            found = found.get(name) if isinstance(found, dict) else None
        return found


class LiveRoute(msgspec.Struct, frozen=True, omit_defaults=True):
    """One route in a frame. Rates and percentiles are of the last minute, `heat` and `n` of the last second."""

    route: str
    n: int = 0
    rps: float = 0.0
    failed_ratio: float = 0.0
    shed_ratio: float = 0.0
    degraded_ratio: float = 0.0
    late_ratio: float = 0.0
    hedged_ratio: float = 0.0
    cached_ratio: float = 0.0
    ttft_s: Spread = Spread()
    e2e_s: Spread = Spread()
    output_tokens_per_s: float = 0.0
    usd_per_h: float = 0.0
    promise_s: float | None = None  # objective for the first token
    promise_share: float | None = None
    heat: tuple[tuple[int, int], ...] = ()  # (row of HEAT_BOUNDS_S, requests)
    n_heat_failed: int = 0  # requests without a first token


class LiveEngine(msgspec.Struct, frozen=True, omit_defaults=True):
    """A self-hosted engine in a frame. None: unknown. hit_ratio: prompt tokens that were in its cache, by the engine's
    counters, else by the usage of its answers. tokens_per_s: of all answers, in the last minute.
    """

    running: float | None = None
    max_running: float | None = None
    hit_ratio: float | None = None
    kv_used_ratio: float | None = None
    tokens_per_s: float | None = None
    prefill_tokens_per_s: float | None = None
    age_s: float = 0.0  # of these figures


class LiveUpstream(msgspec.Struct, frozen=True, omit_defaults=True):
    """One upstream in a frame."""

    name: str
    rps: float = 0.0
    in_flight: int = 0
    waiting: int = 0
    limit: float | None = None
    limit_why: str = ""
    breaker: str = "closed"
    phase: str = ""  # of a replica; empty: it is none
    why: str = ""  # of the breaker or the suspension
    bound_by: str = ""  # as in UpstreamRow
    suspended_s: float = 0.0
    failed_ratio: float = 0.0
    ttft_s: Spread = Spread()
    quota_left: float | None = None  # of its scarcest dimension
    stalls_per_min: float = 0.0
    heat: tuple[tuple[int, int], ...] = ()
    engine: LiveEngine | None = None  # None: it has no metrics


class LiveFinding(msgspec.Struct, frozen=True, omit_defaults=True):
    id: str
    severity: str
    where: str
    summary: str
    since: float | None = None


class LiveFrame(msgspec.Struct, frozen=True, omit_defaults=True):
    """One second, at most 20 kB as JSON: the busiest 24 routes and upstreams; the others are summed as `(other)`."""

    at: float
    n: int  # frames of this gateway since its start; the event's id
    gateway: str = ""
    stayfast: str = ""
    n_workers: int = 1
    n_silent_workers: int = 0
    uptime_s: float = 0.0
    is_draining: bool = False
    loop_lag_p99_s: float = 0.0
    cpu_ratio: float | None = None  # of all workers, in cores
    rss_bytes: int = 0
    jobs_queued: int = 0
    jobs_running: int = 0
    routes: tuple[LiveRoute, ...] = ()
    upstreams: tuple[LiveUpstream, ...] = ()
    findings: tuple[LiveFinding, ...] = ()  # the loudest ten, evaluated every 5 seconds
