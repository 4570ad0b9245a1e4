"""All metrics: names, labels and buckets. docs/reference/metrics.md describes each (tested).

Labels are routes, upstreams, stages, outcomes and other names from the settings or the code, so clients cannot add series.
Step names of turns are the author's; only the first MAX_STEP_NAMES per upstream get their own series.
"""

from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

# 41 % apart or a little more; each bound that promises are usually made of: 0.1, 0.5, 1, 2, 5, 10 and 30 s
LATENCY_BOUNDS_S = (0.01, 0.014, 0.02, 0.03, 0.04, 0.055, 0.075, 0.1, 0.14, 0.2, 0.28, 0.37, 0.5, 0.7, 1.0, 1.4, 2.0, 2.7,
                    3.7, 5.0, 7.0, 10.0, 14.0, 20.0, 30.0, 42.0, 60.0, 100.0, 164.0)
GAP_BOUNDS_S = tuple(0.001 * 2 ** (i / 2) for i in range(23))  # 1 ms to 2 s
JOB_BOUNDS_S = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0, 3600.0, 7200.0,
                14_400.0, 28_800.0, 57_600.0, 104_857.6)  # to 29 h
OWN_BOUNDS_S = tuple(0.0001 * 2**i for i in range(17))  # 0.1 ms to 6.6 s

GEN_AI_BOUNDS_S = tuple(0.01 * 2**i for i in range(14))  # the buckets of OpenTelemetry's GenAI conventions
GEN_AI_TTFT_BOUNDS_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
GEN_AI_TOKEN_BOUNDS = tuple(float(4**i) for i in range(14))  # 1 to 67,108,864

MAX_STEP_NAMES = 64

_WHERE = ("route", "upstream")
_REQUEST_LABELS = ("route", "upstream", "outcome")


class Family(NamedTuple):
    """One metric. `bounds_s`: of a histogram. `slo`: its name in `slo_bounds_s`, which adds exact buckets."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    text: str
    labels: tuple[str, ...] = ()
    bounds_s: tuple[float, ...] = ()
    slo: str = ""


def _counter(name: str, text: str, *labels: str) -> Family:
    return Family(f"stayfast_{name}_total", "counter", text, labels)


def _gauge(name: str, text: str, *labels: str) -> Family:
    return Family(f"stayfast_{name}", "gauge", text, labels)


REQUESTS = _counter("requests", "Requests by route, API and status (499: client disconnected).", "route", "api", "status")
REFUSED = _counter("refused", "Requests refused before routing.", "status", "code")
CLIENT_LEFT = _counter("client_left", "Clients that disconnected before the end.", "route", "phase")
DEADLINE_EXCEEDED = _counter("deadline_exceeded", "Requests ended by a time limit, by stage.", "route", "stage", "limit")
STAGE_OVERRUNS = _counter("stage_overruns", "Requests by the first stage that exceeded its allowance.", "route", "stage")
DEGRADED = _counter("degraded", "Requests answered by fallback, smaller tier, stale, template or a part.", "route", "kind")
CUT_ANSWERS = _counter("cut_answers", "Answers that an output limit ended, by whose it was.", "route", "by")
ATTEMPTS = _counter("attempts", "Calls to upstreams by outcome, fault and error status.", "route", "upstream", "outcome",
                    "fault", "status")
RETRIES = _counter("retries", "Calls to upstreams after the first one of a request.", *_WHERE)
HEDGES = _counter("hedges", "Hedges by result (won, lost, failed), and hedges not sent.", "route", "result")
EJECTIONS = _counter("ejections", "Ejections of an upstream from a route as an outlier.", *_WHERE)
RETRIES_WITHHELD = _counter("retries_withheld", "Retries refused by the retry budget.", *_WHERE)
RESCUES = _counter("rescues", "Answers that stalled or broke off, by result of on_stall.", "route", "result")
STALLS = _counter("stalls", "Stalls in running answers.", *_WHERE)
TRUNCATED = _counter("truncated_streams", "Streams that broke off after their first chunk.", "upstream")
TOKENS = _counter("tokens", "Tokens reported by upstreams.", *_WHERE, "kind")
COST = _counter("cost_usd", "Cost of attempts by their role, and by where the price comes from, USD.", *_WHERE, "kind",
                "price")
UNPRICED = _counter("unpriced_attempts", "Attempts with tokens but without a known price.", *_WHERE)
OPENED = _counter("connections_opened", "New upstream connections.", "upstream", "http_version", "tls")
REUSED = _counter("connections_reused", "Requests on a pooled connection.", "upstream")
ENGINE_STATES = _counter("engine_states", "State changes of the embedded engine.", "state")
CREDENTIAL_RENEWALS = _counter("credential_renewals", "Renewals of credentials by result: renewed, failed.", "upstream",
                               "result")
SHEDS = _counter("sheds", "Requests rejected under load or over a quota.", "route", "reason")
CACHE = _counter("cache_requests", "Requests on routes with a cache, by result.", "route", "result")
CACHE_SAVED_S = _counter("cache_saved_seconds", "Time to the first token saved by hits, estimated.", "route", "kind")
CACHE_SAVED_USD = _counter("cache_saved_usd", "Original cost of the answers of hits, USD.", "route", "kind")
CACHE_REFRESHES = _counter("cache_refreshes", "Background refreshes of stale answers.", "route", "result")
AFFINITY = _counter("affinity", "Routing decisions with affinity: hit, moved for load, or new.", *_WHERE, "result")
SPECULATION_ANSWERS = _counter("speculation_answers",
                               "Answers of embedded models with `speculation: auto`, by arm and reason.", "upstream",
                               "route", "arm", "why")
SPECULATION_TOKENS = _counter("speculation_tokens", "Output tokens of complete answers, by arm of speculation.", "upstream",
                              "route", "arm")
SPECULATION_DECODE_S = _counter("speculation_decode_seconds", "Time to generate these tokens, without prompts.", "upstream",
                                "route", "arm")
SPECULATION_DRAFTS = _counter("speculation_draft_tokens", "Guessed tokens, by result: accepted, rejected.", "upstream",
                              "route", "arm", "result")
TIER_REQUESTS = _counter("tier_requests", "Requests on routes with tiers, by the tier and why it was called.", "route",
                         "tier", "why")
TIER_ANSWERS = _counter("tier_answers", "Answers of tiers, by the service tier that was served.", "route", "tier", "served")
PREFIX_TOKENS = _counter("prefix_tokens", "Prompt tokens sent (estimated), known or new to the upstream.", *_WHERE, "kind")
PREFIX_CHECKED = _counter("prefix_checked_tokens", "Prompt tokens of answers with prefix affinity: input, cached, believed; "
                          "or unreported.", *_WHERE, "kind")
KV_EVENTS = _counter("kv_events", "Events of an engine's prefix cache: applied, or malformed.", "upstream", "kind")
KV_EVENT_GAPS = _counter("kv_event_gaps", "Gaps in these events: filled by a replay, or lost.", "upstream", "result")
PROMPTS_TOKENIZED = _counter("prompts_tokenized", "Prompts that engines tokenized to look them up in their caches: learned, "
                             "failed, or skipped.", "result")
PREFIX_CACHE = _counter("prefix_cache_requests", "Answers on routes with `prefix`, by the provider's cache result.", *_WHERE,
                        "result")
PREFIX_CACHE_TOKENS = _counter("prefix_cache_tokens", "Their input tokens: read, written or plain.", *_WHERE, "kind")
PREFIX_WAITS = _counter("prefix_waits", "Requests that waited for another to fill the provider's cache.", "route")
HISTORY_REQUESTS = _counter("history_requests", "Requests with a long history: sent raw, summarized or trimmed.", "route",
                            "result")
HISTORY_SUMMARIES = _counter("history_summaries", "Summaries of conversations by result.", "route", "result")
HISTORY_RULES = _counter("history_violations", "Rules that refused summaries broke.", "route", "rule")
HISTORY_SAVED_TOKENS = _counter("history_saved_tokens", "Tokens of turns that were not sent (estimated).", "route")
STORE = _counter("cache_store_requests", "Operations on shared stores, by result.", "store", "op", "result")
SEMANTIC = _counter("semantic_requests", "Semantic lookups by result, and audits.", "route", "result")
SEMANTIC_JUDGED = _counter("semantic_judged", "Comparisons of answers by a model, by result.", "route", "result")
CLASSIFIED = _counter("classified", "Texts by classifier and label; head: first, second, second_failed.", "classifier",
                      "label", "head")
GUARDED = _counter("guarded", "Requests by the result of the guard: allow, flag, block, unfinished; and its rule.", "route",
                   "result", "rule")
ROUTED_BY_CLASS = _counter("routed_by_class", "Requests by the class of their question and the route that it chose.",
                           "route", "label", "target")
QUOTA_STORE_CALLS = _counter("quota_store_calls", "Calls for slices of shared limits, one per tenant, by result.", "result")
TURN_STEPS = _counter("turn_steps", "Steps of served turns, by result.", "upstream", "step", "result")
TURN_THREADS = _gauge("turn_threads", "Threads of plain functions in turns: active, or abandoned by their step.", "state")
JOBS_ENDED = _counter("jobs_ended", "Jobs by their final state.", "route", "door", "state")
JOBS_RETURNED = _counter("jobs_returned", "Claimed jobs that went back to the queue: failed, or refused for now.", "route",
                         "reason")
JOB_LEASES_LOST = _counter("job_leases_lost", "Running jobs whose claim was superseded.", "route")
JOBS_SWEPT = _counter("jobs_swept", "Jobs of dead workers recovered, jobs dead or expired in the queue.", "result")
BATCH_SQUARES = _counter("batch_seconds_squared", "Squares of the times in stayfast_batch_seconds, for their variance.",
                         "route")
JOB_STORE_CALLS = _counter("job_store_calls", "Calls to the store of jobs.", "op", "result")
PASSED = _counter("passthrough_requests", "Requests passed on unread, by path and status (101: a WebSocket; 499: client "
                  "disconnected).", "upstream", "path", "status")
PASSED_BYTES = _counter("passthrough_bytes", "Their bodies and messages: to the upstream (up), to the client (down).",
                        "upstream", "path", "direction")
PASSED_BROKEN = _counter("passthrough_broken", "Passed responses and WebSockets that broke off after their head.",
                         "upstream", "path", "error")
LOST = _counter("telemetry_lost", "Log lines and spans dropped because their reader was too slow.", "kind")

TTFT = Family("stayfast_ttft_seconds", "histogram", "Accept to first content token.", _REQUEST_LABELS, LATENCY_BOUNDS_S,
              "ttft")
USABLE = Family("stayfast_usable_seconds", "histogram", "Accept to first token of a stream, or end of a whole answer.",
                _REQUEST_LABELS,
                LATENCY_BOUNDS_S, "usable")
E2E = Family("stayfast_e2e_seconds", "histogram", "Accept to last byte.", _REQUEST_LABELS, LATENCY_BOUNDS_S, "e2e")
TPOT = Family("stayfast_tpot_seconds", "histogram", "Time per token after the first.", _REQUEST_LABELS, GAP_BOUNDS_S, "tpot")
GAP = Family("stayfast_gap_seconds", "histogram", "Time between chunks of running answers.", _WHERE, GAP_BOUNDS_S, "gap")
QUEUE_WAIT = Family("stayfast_queue_wait_seconds", "histogram", "Accept to start of processing.", ("route",), OWN_BOUNDS_S)
OVERHEAD = Family("stayfast_overhead_seconds", "histogram", "Time to first token without an attempt in progress.",
                  ("route",), OWN_BOUNDS_S)
STAGE = Family("stayfast_stage_seconds", "histogram", "Time by stage.", ("route", "stage"), OWN_BOUNDS_S)
STEP_SECONDS = Family("stayfast_turn_step_seconds", "histogram", "Time by step of served turns.", ("upstream", "step"),
                      OWN_BOUNDS_S)
HANDSHAKE = Family("stayfast_handshake_seconds", "histogram", "TCP and TLS of new upstream connections.", ("upstream",),
                   OWN_BOUNDS_S)
STORE_SECONDS = Family("stayfast_cache_store_seconds", "histogram", "Lookups in shared stores.", ("store",), OWN_BOUNDS_S)
LOOP_LAG = Family("stayfast_loop_lag_seconds", "histogram", "Lateness of an event loop timer, sampled.", (), OWN_BOUNDS_S)
PASSED_HEAD = Family("stayfast_passthrough_head_seconds", "histogram", "Accept to the head of a passed response.",
                     ("upstream", "path"), LATENCY_BOUNDS_S)
PASSED_SECONDS = Family("stayfast_passthrough_seconds", "histogram", "Accept to the end of a passed request.",
                        ("upstream", "path"), LATENCY_BOUNDS_S)
JOB_WAIT = Family("stayfast_job_wait_seconds", "histogram", "From when a job was due to its last claim.", ("route",),
                  JOB_BOUNDS_S)
JOB_RUN = Family("stayfast_job_run_seconds", "histogram", "From the last claim of a job to its stored result.", ("route",),
                 JOB_BOUNDS_S)
BATCH_SECONDS = Family("stayfast_batch_seconds", "histogram", "From the creation of a completed batch to its end.",
                       ("route",), JOB_BOUNDS_S)
JOB_STORE_SECONDS = Family("stayfast_job_store_seconds", "histogram", "Calls to the store of jobs.", ("op",), OWN_BOUNDS_S)

_GEN_AI = ("gen_ai_operation_name", "gen_ai_provider_name", "gen_ai_request_model")
GEN_AI_DURATION = Family("gen_ai_client_operation_duration_seconds", "histogram", "Calls to upstreams.",
                         (*_GEN_AI, "error_type"), GEN_AI_BOUNDS_S)
GEN_AI_FIRST_CHUNK = Family("gen_ai_client_operation_time_to_first_chunk_seconds", "histogram",
                            "First tokens of streamed calls to upstreams.", _GEN_AI, GEN_AI_BOUNDS_S)
GEN_AI_TOKENS = Family("gen_ai_client_token_usage", "histogram", "Tokens of a call, as reported by its upstream.",
                       (*_GEN_AI, "gen_ai_token_type"), GEN_AI_TOKEN_BOUNDS)
GEN_AI_SERVER_TTFT = Family("gen_ai_server_time_to_first_token_seconds", "histogram",
                            "Accept to first token of streams; the model is the route.", _GEN_AI, GEN_AI_TTFT_BOUNDS_S)

IN_FLIGHT = _gauge("in_flight", "Requests in flight by upstream.", "upstream")
QUEUE_DEPTH = _gauge("queue_depth", "Queued requests.", "upstream", "lane")
LIMIT = _gauge("limit", "Concurrency limit of an upstream, for all workers.", "upstream", "lane")
ENGINE_BOUND = _gauge("engine_bound_by", "1: the engine of an upstream is bound by it now; else 0.", "upstream", "bound")
REPLICA_PHASE = _gauge("replica_phase", "1 for the present phase of a replica, 0 for the others.", "upstream", "phase")
COLD_START = _gauge("replica_cold_start_seconds", "p90 of the starts of a replica; the setting until one was seen.",
                    "upstream")
POOL_READY = _gauge("pool_ready", "Replicas of a route's pool that are ready.", "pool")
POOL_HELD = _gauge("pool_held_requests", "Requests that wait for a replica to be ready.", "pool")
SCALING_WANTED = _gauge("scaling_replicas_wanted", "Replicas that a pool needs. No series while that is unknown.", "pool")
SCALING_QUEUE = _gauge("scaling_queue", "Requests of a pool that wait, over all workers.", "pool")
SCALING_RUNNING = _gauge("scaling_running", "Requests that run at a pool's replicas, over all workers.", "pool")
SCALING_SATURATION = _gauge("scaling_saturation", "Running and waiting requests over the places of ready replicas.", "pool")
SCALING_BACKLOG = _gauge("scaling_backlog_seconds", "Seconds of prefill that wait at each ready replica.", "pool")
BREAKER_STATE = _gauge("breaker_state", "0 closed, 1 half-open, 2 open (maximum of the workers).", "upstream")
PREDICTOR_ERROR = _gauge("predictor_error_ratio", "Mean error of predicted first tokens over their mean (maximum of the "
                         "workers).", "upstream")
EJECTED = _gauge("ejected", "1 while a route ejects an upstream as an outlier (maximum of the workers).", *_WHERE)
RETRY_BUDGET = _gauge("retry_budget_ratio", "Extra attempts over traffic, last minute (maximum of the workers).", "route")
SPIKE_FACTOR = _gauge("spike_factor", "p99 over p50 of the time to the first token, last 5 minutes.", "route")
CACHE_BYTES = _gauge("cache_bytes", "Size of cached answers.", "route")
CACHE_ENTRIES = _gauge("cache_entries", "Cached answers.", "route")
STORE_BYTES = _gauge("cache_store_bytes", "Memory of a named store; of a shared one, its local copy.", "store")
STORE_ENTRIES = _gauge("cache_store_entries", "Answers of a named store in memory.", "store")
PREFIX_MOVING = _gauge("prefix_moving_tokens", "Tokens per request kept out of the provider's cache by a changing block "
                       "(maximum of the workers).", *_WHERE)
SEMANTIC_ENTRIES = _gauge("semantic_entries", "Questions in the semantic index.", "route")
ENCODER_TEXTS = _counter("encoder_texts", "Texts by result: encoded, expired before they ran, refused because too many "
                         "tokens waited.", "use", "result")
ENCODER_BATCHES = _counter("encoder_batches", "Batches of the encoder.", "use")
ENCODER_SPLITS = _counter("encoder_splits", "Batches that failed or overran, and were run again text by text.", "use")
ENCODER_TOKENS = _counter("encoder_tokens", "Tokens that the encoder computed: of texts, and padding.", "use", "kind")
ENCODER_OVERRUN = _gauge("encoder_overrun_threads", "Threads of the encoder whose batch takes longer than it may.", "use")
ENCODER_STUCK = _gauge("encoder_stuck", "1 while texts that do not end hold all threads of the encoder, so that it refuses "
                       "all others.", "use")
ENCODER_WAITING = _gauge("encoder_waiting_tokens", "Tokens of texts that wait for the encoder or run.", "use")
SEMANTIC_LABELS = _gauge("semantic_labels", "Answers compared since the start or the last drift.", "route")
SEMANTIC_SHADOW = _gauge("semantic_shadow", "1 while semantic hits are not served yet (maximum of the workers).", "route")
SEMANTIC_ERROR = _gauge("semantic_error_ratio", "Share of wrong semantic hits: likely, and 95 % bounds low and high "
                        "(maximum of the workers).", "route", "bound")
SEMANTIC_JUDGE_MISS = _gauge("semantic_judge_miss_ratio", "Upper 95 % bound of the share of different answers that the "
                              "judge calls the same (maximum of the workers).", "route")
FLEET_BREAKERS = _counter("fleet_breaker_hints", "Hints about breakers, sent and received, and breakers opened by a quorum.",
                          "kind")
FLEET_GATEWAYS = _gauge("fleet_gateways", "Live gateways that share state, at the last exchange.")
FLEET_AGE = _gauge("fleet_exchange_age_seconds", "Time since the last exchange with the other gateways.")
WEBSOCKETS = _gauge("websockets", "Open WebSockets of clients.", "path")
WEBSOCKET_MESSAGES = _counter("websocket_messages", "Messages of WebSockets of clients, received and sent.", "path",
                              "direction")
QUOTA_SLACK = _gauge("quota_slack", "What this gateway may still admit of a limit without a call to the shared store.",
                     "tenant", "limit")
QUOTA_EXACT = _gauge("quota_exact", "1 while a limit that gateways share is near its end.", "tenant", "limit")
QUOTA_STORE_LOST = _gauge("quota_store_lost", "1 while the store of shared limits is unreachable.")
KV_EVENT_BLOCKS = _gauge("kv_event_blocks", "Blocks in an engine's prefix cache, by its events (maximum of the workers).",
                         "upstream")
KV_EVENT_STATE = _gauge("kv_event_state", "What its events tell of an engine's prefix cache: 0 nothing, 1 a part, 2 all "
                        "(maximum of the workers).", "upstream")
KV_EVENT_AGE = _gauge("kv_event_age_seconds", "Time since the last event (maximum of the workers).", "upstream")
JOBS = _gauge("jobs", "Unfinished jobs: queued, deferred or running (maximum of the workers).", "route", "state")
JOBS_OLDEST = _gauge("jobs_oldest_age_seconds", "Age of the oldest queued job (maximum of the workers).", "route")
JOBS_OVERDUE = _gauge("jobs_overdue_seconds", "How long the most urgent queued job is past its deadline (maximum of the "
                      "workers).", "route")
CREDENTIAL_MISSING = _gauge("credential_missing", "1 while a worker has no valid credential for an upstream.", "upstream")
JOBS_ALLOWED = _gauge("jobs_allowed", "Jobs that may run at an upstream by the delay of interactive requests.", "upstream")
PASSED_IN_FLIGHT = _gauge("passthrough_in_flight", "Passed requests and WebSockets in flight.", "upstream")
WORKERS = _gauge("workers", "Workers that answered this scrape, and silent ones.", "state")
TIER_COMPARED = _counter("tier_compared", "Answers of smaller tiers compared with the large tier's, by result.", "route",
                         "tier", "result")
TIER_LABELS = _gauge("tier_labels", "Compared answers that are remembered, by whether the tier was enough.", "route", "tier",
                     "enough")
TIER_PROVEN = _gauge("tier_proven", "Tenants for which it is proven that a smaller tier is enough.", "route", "tier")
BUILD_INFO = _gauge("build_info", "1; version in the labels.", "version", "python")

FAMILIES = (
    REQUESTS, REPLICA_PHASE, COLD_START, POOL_READY, POOL_HELD, SCALING_WANTED, SCALING_QUEUE, SCALING_RUNNING,
    SCALING_SATURATION, SCALING_BACKLOG,
    REFUSED, CLIENT_LEFT, DEADLINE_EXCEEDED, STAGE_OVERRUNS, DEGRADED, CUT_ANSWERS, ATTEMPTS, RETRIES,
    RETRIES_WITHHELD, EJECTIONS, HEDGES, RESCUES, STALLS, TRUNCATED, TOKENS, COST, UNPRICED, OPENED, REUSED, ENGINE_STATES,
    CREDENTIAL_RENEWALS, SHEDS, CACHE,
    CACHE_SAVED_S, CACHE_SAVED_USD, CACHE_REFRESHES, AFFINITY, TIER_REQUESTS, TIER_ANSWERS,
    SPECULATION_ANSWERS, SPECULATION_TOKENS, SPECULATION_DECODE_S, SPECULATION_DRAFTS,
    PREFIX_TOKENS, PREFIX_CHECKED, PREFIX_CACHE, PREFIX_CACHE_TOKENS,
    KV_EVENTS, KV_EVENT_GAPS, KV_EVENT_BLOCKS, KV_EVENT_STATE, KV_EVENT_AGE, PROMPTS_TOKENIZED,
    PREFIX_WAITS, HISTORY_REQUESTS, HISTORY_SUMMARIES, HISTORY_RULES, HISTORY_SAVED_TOKENS,
    STORE, TURN_STEPS, TURN_THREADS, LOST, TTFT, USABLE, E2E, TPOT, GAP, QUEUE_WAIT, OVERHEAD, STAGE,
    STEP_SECONDS, HANDSHAKE,
    STORE_SECONDS, LOOP_LAG, IN_FLIGHT, QUEUE_DEPTH, LIMIT, ENGINE_BOUND, BREAKER_STATE, EJECTED, PREDICTOR_ERROR,
    RETRY_BUDGET,
    CREDENTIAL_MISSING,
    SPIKE_FACTOR, CACHE_BYTES, CACHE_ENTRIES, STORE_BYTES, STORE_ENTRIES, PREFIX_MOVING, WORKERS, FLEET_BREAKERS,
    FLEET_GATEWAYS, FLEET_AGE, WEBSOCKETS, WEBSOCKET_MESSAGES, BUILD_INFO, SEMANTIC,
    CLASSIFIED, GUARDED, ROUTED_BY_CLASS,
    ENCODER_TEXTS, ENCODER_BATCHES, ENCODER_SPLITS, ENCODER_TOKENS, ENCODER_OVERRUN, ENCODER_STUCK, ENCODER_WAITING,
    SEMANTIC_ENTRIES, SEMANTIC_LABELS, SEMANTIC_SHADOW, SEMANTIC_ERROR, SEMANTIC_JUDGED, SEMANTIC_JUDGE_MISS,
    TIER_COMPARED, TIER_LABELS, TIER_PROVEN,
    QUOTA_SLACK, QUOTA_EXACT, QUOTA_STORE_LOST, QUOTA_STORE_CALLS, JOBS, JOBS_OLDEST,
    JOBS_OVERDUE, JOBS_ALLOWED, JOBS_ENDED, JOBS_RETURNED, JOB_LEASES_LOST, JOBS_SWEPT, JOB_WAIT, JOB_RUN, JOB_STORE_CALLS,
    JOB_STORE_SECONDS, PASSED, PASSED_BYTES, PASSED_BROKEN, PASSED_HEAD, PASSED_SECONDS, PASSED_IN_FLIGHT,
    BATCH_SECONDS, BATCH_SQUARES, GEN_AI_DURATION,
    GEN_AI_FIRST_CHUNK, GEN_AI_TOKENS, GEN_AI_SERVER_TTFT,
)
MERGED_BY_MAX = frozenset((BREAKER_STATE.name, COLD_START.name, POOL_READY.name, REPLICA_PHASE.name,
                     FLEET_GATEWAYS.name, FLEET_AGE.name,
                     EJECTED.name, LIMIT.name, PREDICTOR_ERROR.name, PREFIX_MOVING.name,
                     RETRY_BUDGET.name, SEMANTIC_SHADOW.name, SEMANTIC_ERROR.name,
                     ENCODER_STUCK.name, SEMANTIC_JUDGE_MISS.name, KV_EVENT_BLOCKS.name, KV_EVENT_STATE.name,
                     KV_EVENT_AGE.name, JOBS.name, JOBS_OLDEST.name, JOBS_OVERDUE.name, CREDENTIAL_MISSING.name,
                     ))  # gauges merged by maximum, not by sum
SLO_FAMILIES = frozenset(family.slo for family in FAMILIES if family.slo)


def bounds_of(slo_bounds_s: Mapping[str, Iterable[float]]) -> dict[str, tuple[float, ...]]:
    """The buckets of every histogram, with the exact bounds of `slo_bounds_s`. Raises ValueError for an unknown name."""
    unknown = set(slo_bounds_s) - SLO_FAMILIES
    if unknown:
        raise ValueError(f"slo_bounds_s names {', '.join(sorted(unknown))}; there are {', '.join(sorted(SLO_FAMILIES))}")
    return {family.name: tuple(sorted({*family.bounds_s, *map(float, slo_bounds_s.get(family.slo, ()))}))
            for family in FAMILIES if family.kind == "histogram"}
