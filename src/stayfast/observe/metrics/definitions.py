"""Every metric there is: names, labels and buckets. docs/telemetry.md and docs/reference/metrics.md explain each (tested).

Labels are routes, upstreams, stages, outcomes and the like, all of them named in the settings or in the code: no client can
add a series. The names of a turn's steps are its author's, and of each upstream the first MAX_STEP_NAMES are told apart.
"""

from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

LATENCY_BOUNDS_S = tuple(0.01 * 2 ** (i / 2) for i in range(29))  # 10 ms to 164 s, about 41 % apart
GAP_BOUNDS_S = tuple(0.001 * 2 ** (i / 2) for i in range(23))  # 1 ms to 2 s
OWN_BOUNDS_S = tuple(0.0001 * 2**i for i in range(17))  # 0.1 ms to 6.6 s

GEN_AI_BOUNDS_S = tuple(0.01 * 2**i for i in range(14))  # these three as OpenTelemetry's GenAI conventions have them
GEN_AI_TTFT_BOUNDS_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
GEN_AI_TOKEN_BOUNDS = tuple(float(4**i) for i in range(14))  # 1 to 67,108,864

MAX_STEP_NAMES = 64
NO_ROUTE = "none"

_WHERE = ("route", "upstream")
_WHO = ("route", "upstream", "outcome")


class Family(NamedTuple):
    """One metric. `bounds_s` are a histogram's own; `slo` names it where a promise may add exact ones."""

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


REQUESTS = _counter("requests", "Requests by route, API and status (499: the client left).", "route", "api", "status")
REFUSED = _counter("refused", "Requests that the edge answered by itself.", "status", "code")
CLIENT_LEFT = _counter("client_left", "Clients that hung up first.", "route", "phase")
DEADLINE_EXCEEDED = _counter("deadline_exceeded", "Requests that a limit ended, by the stage that it ended.", "route",
                             "stage", "limit")
STAGE_OVERRUNS = _counter("stage_overruns", "Requests by the first stage that used more than its allowance.", "route",
                          "stage")
DEGRADED = _counter("degraded", "Requests served by fallback, stale answer, template or in part, instead of failing.",
                    "route", "kind")
ATTEMPTS = _counter("attempts", "Calls to upstreams by outcome, fault and the upstream's error status.", "route", "upstream",
                    "outcome", "fault", "status")
RETRIES = _counter("retries", "Calls to upstreams after the first one of their request.", *_WHERE)
HEDGES = _counter("hedges", "Second attempts beside one that still ran (won, lost, failed), and those that were not sent.",
                  "route", "result")
EJECTIONS = _counter("ejections", "Times that a route left an upstream out as an outlier.", *_WHERE)
RETRIES_WITHHELD = _counter("retries_withheld", "Failures for whose retry the budget had no room.", "route", "upstream")
RESCUES = _counter("rescues", "Answers that stalled or broke off where something is done about it, by what was.", "route",
                   "result")
STALLS = _counter("stalls", "Waits in the middle of an answer that were felt.", *_WHERE)
TRUNCATED = _counter("truncated_streams", "Streams that broke off after their client had a part of them.", "upstream")
TOKENS = _counter("tokens", "Tokens that upstreams reported.", "route", "upstream", "kind")
COST = _counter("cost_usd", "What attempts cost by the prices in the settings, by why they were made, USD.", *_WHERE, "kind")
OPENED = _counter("connections_opened", "New upstream connections: handshakes paid.", "upstream", "http_version", "tls")
REUSED = _counter("connections_reused", "Requests on a pooled connection: handshakes saved.", "upstream")
ENGINE_STATES = _counter("engine_states", "State changes of the embedded engine.", "state")
SHEDS = _counter("sheds", "Requests turned away to protect the others, or because their tenant's quota is used up.", "route",
                 "reason")
CACHE = _counter("cache_requests", "Requests on routes with a cache: hit, semantic, stale, coalesced, miss or bypass.",
                 "route", "result")
CACHE_SAVED_S = _counter("cache_saved_seconds", "What hits saved of the wait for a first token, as an estimate.", "route",
                         "kind")
CACHE_SAVED_USD = _counter("cache_saved_usd", "What the answers of hits had cost by the prices in the settings, USD.",
                           "route", "kind")
CACHE_RENEWALS = _counter("cache_refreshes", "Old answers that were given, and asked for again: renewed, failed or shed.",
                          "route", "result")
AFFINITY = _counter("affinity", "Choices where a route has affinity: kept (most is known), moved for load, or new to all.",
                    "route", "upstream", "result")
PREFIX_TOKENS = _counter("prefix_tokens", "Tokens of prompts sent, about, by whether their upstream was sent them lately.",
                         "route", "upstream", "kind")
PREFIX_CACHE = _counter("prefix_cache_requests", "Answers on routes with `prefix`, by what their provider's cache did: "
                        "read, written or missed.", "route", "upstream", "result")
PREFIX_CACHE_TOKENS = _counter("prefix_cache_tokens", "Their input tokens: read from the cache, written to it, or plain.",
                               "route", "upstream", "kind")
PREFIX_WAITS = _counter("prefix_waits", "Requests that waited for another one to fill the provider's cache.", "route")
STORE = _counter("cache_store_requests", "What shared stores of answers were asked or told, and what came of it.", "store",
                 "op", "result")
SEMANTIC = _counter("semantic_requests", "Look-ups in other words: hit, why a miss, audit_started, _right, _wrong.",
                    "route", "result")
TURN_STEPS = _counter("turn_steps", "Steps of turns that are served as models, by how they ended.", "upstream", "step",
                      "result")
TURN_THREADS = _gauge("turn_threads", "Threads of plain functions that turns have called: waited for, or abandoned by their "
                      "step.", "state")
LOST = _counter("telemetry_lost", "Log lines and spans that were thrown away for want of a reader.", "kind")

TTFT = Family("stayfast_ttft_seconds", "histogram", "Accept to first content token.", _WHO, LATENCY_BOUNDS_S, "ttft")
USABLE = Family("stayfast_usable_seconds", "histogram", "Accept to first token of a stream, to the end of a whole answer.",
                _WHO, LATENCY_BOUNDS_S, "usable")
E2E = Family("stayfast_e2e_seconds", "histogram", "Accept to last byte.", _WHO, LATENCY_BOUNDS_S, "e2e")
TPOT = Family("stayfast_tpot_seconds", "histogram", "Time for each token after the first.", _WHO, GAP_BOUNDS_S, "tpot")
GAP = Family("stayfast_gap_seconds", "histogram", "Waits between the parts of running answers.", _WHERE, GAP_BOUNDS_S, "gap")
QUEUE_WAIT = Family("stayfast_queue_wait_seconds", "histogram", "Accept to the first look at a request.", ("route",),
                    OWN_BOUNDS_S)
OVERHEAD = Family("stayfast_overhead_seconds", "histogram", "Time to first token in which no upstream was at work.",
                  ("route",), OWN_BOUNDS_S)
STAGE = Family("stayfast_stage_seconds", "histogram", "Time spent by stage.", ("stage",), OWN_BOUNDS_S)
STEP_SECONDS = Family("stayfast_turn_step_seconds", "histogram", "Steps of turns that are served as models.",
                      ("upstream", "step"), OWN_BOUNDS_S)
HANDSHAKE = Family("stayfast_handshake_seconds", "histogram", "TCP and TLS of new upstream connections.", ("upstream",),
                   OWN_BOUNDS_S)
STORE_SECONDS = Family("stayfast_cache_store_seconds", "histogram", "Waits of requests for look-ups in shared stores.",
                       ("store",), OWN_BOUNDS_S)
LOOP_LAG = Family("stayfast_loop_lag_seconds", "histogram", "How late a timer of the event loop ran, sampled.", (),
                  OWN_BOUNDS_S)

_GEN_AI = ("gen_ai_operation_name", "gen_ai_provider_name", "gen_ai_request_model")
GEN_AI_DURATION = Family("gen_ai_client_operation_duration_seconds", "histogram", "Calls to upstreams, whole.",
                         (*_GEN_AI, "error_type"), GEN_AI_BOUNDS_S)
GEN_AI_FIRST_CHUNK = Family("gen_ai_client_operation_time_to_first_chunk_seconds", "histogram",
                            "First tokens of streamed calls to upstreams.", _GEN_AI, GEN_AI_BOUNDS_S)
GEN_AI_TOKENS = Family("gen_ai_client_token_usage", "histogram", "Tokens of a call, as its upstream reported them.",
                       (*_GEN_AI, "gen_ai_token_type"), GEN_AI_TOKEN_BOUNDS)
GEN_AI_SERVER_TTFT = Family("gen_ai_server_time_to_first_token_seconds", "histogram",
                            "Accept to first token of streams; the model is the route.", _GEN_AI, GEN_AI_TTFT_BOUNDS_S)

IN_FLIGHT = _gauge("in_flight", "Requests in flight by upstream.", "upstream")
QUEUE_DEPTH = _gauge("queue_depth", "Requests that wait for a place.", "upstream", "lane")
LIMIT = _gauge("limit", "Requests that may run at an upstream at a time; all workers share it.", "upstream", "lane")
BREAKER_STATE = _gauge("breaker_state", "0 closed, 1 half-open, 2 open; of several workers the highest.", "upstream")
PREDICTOR_ERROR = _gauge("predictor_error_ratio", "Mean error of predicted first tokens over their mean; of workers the "
                         "highest.", "upstream")
EJECTED = _gauge("ejected", "1 while a route leaves an upstream out as an outlier; of several workers the highest.", *_WHERE)
RETRY_BUDGET = _gauge("retry_budget_ratio", "Extra attempts over traffic, last minute; of workers the highest.", "route")
SPIKE_FACTOR = _gauge("spike_factor", "p99 over p50 of the time to the first token in the last five minutes.", "route")
CACHE_BYTES = _gauge("cache_bytes", "What the answers that are kept take up.", "route")
CACHE_ENTRIES = _gauge("cache_entries", "Answers that are kept.", "route")
STORE_BYTES = _gauge("cache_store_bytes", "What a named store of answers takes up in memory; of a shared one, what is near.",
                     "store")
STORE_ENTRIES = _gauge("cache_store_entries", "Answers of a named store that are in memory.", "store")
PREFIX_MOVING = _gauge("prefix_moving_tokens", "Tokens a request that a moving block keeps out of the provider's cache; 0: "
                       "it is over. Of several workers the highest.", *_WHERE)
SEMANTIC_ENTRIES = _gauge("semantic_entries", "Questions that are remembered by their meaning.", "route")
SEMANTIC_LABELS = _gauge("semantic_labels", "Comparisons of answers since the beginning, or the last drift.", "route")
SEMANTIC_SHADOW = _gauge("semantic_shadow", "1: nothing is given in other words yet. Of several workers the highest.",
                         "route")
SEMANTIC_ERROR = _gauge("semantic_error_ratio", "The share of semantic hits that is wrong: likely, and its bounds of 95 % "
                        "(low, high). Of several workers the highest.", "route", "bound")
WORKERS = _gauge("workers", "Worker processes that this scrape heard from (answered) and did not (silent).", "state")
BUILD_INFO = _gauge("build_info", "1; the labels say which program this is.", "version", "python")

FAMILIES = (
    REQUESTS, REFUSED, CLIENT_LEFT, DEADLINE_EXCEEDED, STAGE_OVERRUNS, DEGRADED, ATTEMPTS, RETRIES, RETRIES_WITHHELD,
    EJECTIONS, HEDGES, RESCUES, STALLS, TRUNCATED, TOKENS, COST, OPENED, REUSED, ENGINE_STATES, SHEDS, CACHE, CACHE_SAVED_S,
    CACHE_SAVED_USD, CACHE_RENEWALS, AFFINITY, PREFIX_TOKENS, PREFIX_CACHE, PREFIX_CACHE_TOKENS, PREFIX_WAITS, STORE,
    TURN_STEPS, TURN_THREADS, LOST, TTFT, USABLE, E2E, TPOT, GAP, QUEUE_WAIT, OVERHEAD, STAGE, STEP_SECONDS, HANDSHAKE,
    STORE_SECONDS, LOOP_LAG, IN_FLIGHT, QUEUE_DEPTH, LIMIT, BREAKER_STATE, EJECTED, PREDICTOR_ERROR, RETRY_BUDGET,
    SPIKE_FACTOR, CACHE_BYTES, CACHE_ENTRIES, STORE_BYTES, STORE_ENTRIES, PREFIX_MOVING, WORKERS, BUILD_INFO, SEMANTIC,
    SEMANTIC_ENTRIES, SEMANTIC_LABELS, SEMANTIC_SHADOW, SEMANTIC_ERROR, GEN_AI_DURATION, GEN_AI_FIRST_CHUNK, GEN_AI_TOKENS,
    GEN_AI_SERVER_TTFT,
)
HIGHEST = frozenset((BREAKER_STATE.name, EJECTED.name, LIMIT.name, PREDICTOR_ERROR.name, PREFIX_MOVING.name,
                     RETRY_BUDGET.name, SEMANTIC_SHADOW.name, SEMANTIC_ERROR.name))  # not added up
SLO_FAMILIES = frozenset(family.slo for family in FAMILIES if family.slo)


def bounds_of(slo_bounds_s: Mapping[str, Iterable[float]]) -> dict[str, tuple[float, ...]]:
    """The buckets of every histogram: its own bounds and, exact, those of the promises. ValueError for an unknown name."""
    unknown = set(slo_bounds_s) - SLO_FAMILIES
    if unknown:
        raise ValueError(f"slo_bounds_s names {', '.join(sorted(unknown))}; there are {', '.join(sorted(SLO_FAMILIES))}")
    return {family.name: tuple(sorted({*family.bounds_s, *map(float, slo_bounds_s.get(family.slo, ()))}))
            for family in FAMILIES if family.kind == "histogram"}
