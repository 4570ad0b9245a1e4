"""What the settings mean whose dataclasses live on lower floors. The bounds are the ones their own checks hold."""

from collections.abc import Mapping
from typing import Any

from stayfast.core.clock import Timeouts
from stayfast.engine.config import EngineConfig
from stayfast.observe.alerts.config import AlertsConfig
from stayfast.observe.recent import RecentConfig
from stayfast.policy.admission.price import Price
from stayfast.policy.budget import PART, PART_FORM, BudgetConfig
from stayfast.policy.cache.freshness import CacheConfig
from stayfast.policy.prompt_cache.breakpoints import PrefixConfig
from stayfast.policy.prompt_cache.rules import ModelRules
from stayfast.policy.resilience.breaker import BreakerConfig
from stayfast.policy.resilience.hedge import HedgeConfig
from stayfast.policy.resilience.limits import LimitConfig
from stayfast.policy.resilience.retry import RetryConfig
from stayfast.policy.routing.affinity import AffinityConfig
from stayfast.policy.routing.outlier_ejection import EjectConfig
from stayfast.policy.slo import Latency, Slo
from stayfast.server.config import ServerConfig
from stayfast.settings.about import About
from stayfast.settings.described_admission import DESCRIBED as ADMISSION
from stayfast.settings.described_semantic import DESCRIBED as SEMANTIC
from stayfast.settings.described_stores import DESCRIBED as STORES

_DAY_S = 86_400
_MIB = 1 << 20


def _wait(doc: str) -> About:
    return About(doc, more_than=0, maximum=_DAY_S)


TIMEOUTS = {
    "total_s": _wait("From accept to the last byte, everything included; the request's deadline."),
    "first_token_s": _wait("From an attempt's start to the first token of content."),
    "idle_s": _wait("Between two reads of a running answer."),
    "connect_s": _wait("TCP and TLS."),
}


def _part(doc: str) -> About:
    return About(doc, pattern=PART, form=PART_FORM, or_number=True)


BUDGET = {
    "admit": _part("From accept to a place: reading the request, the queue."),
    "cache": _part("Looking for a known answer."),
    "context": _part("Fitting the prompt."),
    "route": _part("Choosing the upstream."),
    "model": _part("All attempts, to the first token of a stream or to the whole of a whole answer."),
    "relay": _part("From the first token of a stream to its last."),
    "post": _part("What comes after the last byte."),
}

RETRY = {
    "max_attempts": About("Attempts in all, the first one included; 1: never retry.", minimum=1, maximum=10),
    "base_s": About("The longest wait before the first retry at the same upstream; it doubles each time, with full jitter.",
                    more_than=0, maximum=60),
    "cap_s": About("No wait is longer than this, unless the upstream asks for more.", more_than=0, maximum=60),
    "min_left_s": About("No attempt is begun with less time than this before the deadline.", minimum=0),
    "budget": About("The share of live traffic that attempts after failures may come to, hedges and fallbacks counted in.",
                    more_than=0, maximum=1),
    "stateful": About("Whether what leaves something behind at the provider (`store: true`, the default of responses; "
                      "previous_response_id; a container) may be sent again where it may have been heard. It may then be "
                      "done, and paid for, twice."),
}

HEDGE = {
    "mode": About("auto: a second attempt when the first one is slow for its kind, as the live distribution has it. race: "
                  "a second one after race_after_s, always. off: none.", words=("auto", "off", "race")),
    "budget": About("The share of the route's spend that second attempts may come to; it decides how early they are sent.",
                    more_than=0, maximum=1),
    "max_extra": About("Attempts beside the first one, at most.", minimum=1, maximum=2),
    "race_after_s": About("In a race: how long the first attempt runs alone.", minimum=0, maximum=60),
    "stateful": About("Whether requests that leave something behind at the provider (see retry.stateful) get second "
                      "attempts, too."),
}

LIMIT = {
    "mode": About("gradient: as many as bring their first token in their usual time. aimd: by `good_s` and `bad_s`. fixed: "
                  "`most`. off: any number.", words=("gradient", "aimd", "fixed", "off")),
    "least": About("It never falls below this; fixed has none. null: 10, or `most` where that is less.", minimum=1,
                   maximum=100_000),
    "most": About("It starts here and never rises above this. null: 10000, and of aimd 200.", minimum=1, maximum=100_000),
    "max_waiting": About("Requests that may wait for a place; beyond it the least deserving gets 503 at once.", minimum=0,
                         maximum=100_000),
    "good_s": About("aimd: while p95 of the time to the first token is below this, five more.", more_than=0, maximum=3600),
    "bad_s": About("aimd: while it is above this, ten fewer.", more_than=0, maximum=3600),
}

AFFINITY = {
    "mode": About("prefix: to where the prompt's beginning was sent lately. sessions: one conversation, one upstream. both. "
                  "off: neither.", words=("off", "prefix", "sessions", "both")),
    "max_load": About("No upstream is chosen for affinity that has more than so many times the load of the least loaded.",
                      minimum=1, maximum=100),
    "known_s": About("For how long an upstream is taken to have a prompt in its cache.", minimum=1, maximum=86_400),
    "known_tokens": About("How many tokens an upstream is taken to have in its cache.", minimum=1000, maximum=100_000_000),
}

EJECT = {
    "enabled": About("Whether outliers are left out."),
    "slow_factor": About("An outlier: its first tokens take so many times as long as the others', for like prompts.",
                         more_than=1, maximum=1000),
    "min_calls": About("Nobody is judged by fewer calls than this.", minimum=5, maximum=10_000),
    "out_s": About("How long it is left out the first time; the next times it is longer.", more_than=0, maximum=300),
    "max_share": About("Of the route's upstreams, how many may be out at a time.", more_than=0, maximum=0.99),
}

BREAKER = {
    "enabled": About("Whether it is ever left alone."),
    "failures_in_row": About("It is left alone after so many failures in a row.", minimum=1, maximum=1000),
    "failure_ratio": About("Or when this share of its last calls failed.", more_than=0, maximum=1),
    "slow_ratio": About("Or when there is no doubt that this share of its calls is slow; 1: only all of them in a row.",
                        more_than=0, maximum=1),
    "slow_factor": About("Slow: so many times what a first token usually takes there for such a prompt.", more_than=1,
                         maximum=1000),
    "n_calls": About("Of how many last calls the share that failed is.", minimum=1, maximum=10_000),
    "min_calls": About("That share says nothing of fewer calls than this.", minimum=1, maximum=10_000),
    "window_s": About("Calls that are older do not count.", more_than=0, maximum=86_400),
    "open_s": About("How long it is left alone, a fifth more or less by chance; then single requests are its probes.",
                    more_than=0, maximum=86_400),
}

SERVER = {
    "host": About("Address to listen on. Other machines reach the gateway on 0.0.0.0 or ::, which needs keys."),
    "port": About("TCP port; 0 takes a free one.", minimum=0, maximum=65_535),
    "max_body_bytes": About("Largest request body; 413 above it.", minimum=1024, maximum=1024 * _MIB),
    "max_head_bytes": About("Largest request line with headers; 431 above it.", minimum=1024, maximum=_MIB),
    "max_headers": About("Most headers of a request; 431 above it.", minimum=8, maximum=1000),
    "max_depth": About("Deepest nesting of a JSON body; 400 above it.", minimum=8, maximum=512),
    "max_connections": About("Most client connections at a time.", minimum=1, maximum=1_000_000),
    "head_timeout_s": About("From a head's first byte to its last; 408 after it.", minimum=0.01, maximum=600),
    "body_timeout_s": About("For a request's body, beside what a slow line needs; 408 after it.",
                            minimum=0.01, maximum=3600),
    "idle_timeout_s": About("How long a connection is kept without a request.", minimum=0.01, maximum=3600),
    "write_stall_s": About("A client that takes no byte for so long is cut off.", minimum=0.01, maximum=3600),
    "keepalive_s": About("Silence before the first token of a stream that a comment ends; 0: no comments.",
                         minimum=0, maximum=600),
    "drain_grace_s": About("At the stop, how long new requests get 503 while load balancers look away.",
                           minimum=0, maximum=600),
    "drain_s": About("At the stop, how long running answers may take to finish.", minimum=0, maximum=_DAY_S),
    "auth": About("auto: keys are asked for wherever there are any, and without any only loopback addresses are served. "
                  "off: nobody is asked. required: everybody is.", words=("auto", "off", "required")),
    "keys": About("Client keys: a tenant's name and the digest of its key; `stayfast key` makes both.",
                  pattern=r"sha256:[0-9a-f]{64}", form="sha256: and 64 hex digits (`stayfast key` makes one)",
                  is_secret=True),
    "admins": About("Names in `keys` that may see everybody's requests at /admin/requests; others see their own."),
    "metrics_open": About("Whether /metrics answers without a key."),
}

ENGINE = {
    "model": About("`tiny` (comes with Stayfast) or the path of a GGUF file."),
    "n_threads": About("Threads of the engine; 0: one less than there are cores.", minimum=0, maximum=512),
    "n_slots": About("Answers that it writes at the same time.", minimum=1, maximum=256),
    "ctx_per_slot": About("Tokens of prompt and answer together, for each slot.", minimum=64, maximum=1_048_576),
    "port": About("TCP port of the engine's process on 127.0.0.1 (1024 to 65535); 0: one is chosen.",
                  minimum=0, maximum=65_535),
    "prompt_cache_mib": About("Memory for the prompts of idle slots, MiB.", minimum=0, maximum=1_048_576),
    "ready_timeout_s": About("How long the model may take to load.", more_than=0, maximum=3600),
    "restart_base_s": About("Wait before the first restart after a crash; it doubles each time.", more_than=0, maximum=3600),
    "restart_cap_s": About("No wait before a restart is longer than this.", more_than=0, maximum=3600),
    "healthy_after_s": About("Ready for so long, a crash counts as the first one again.", minimum=0),
}

def _share(doc: str) -> About:
    return About(doc, minimum=0.5, maximum=0.99999)


LATENCY = {
    "under_s": About("Not longer than this, in seconds; /metrics counts at just this bound.", minimum=0.001, maximum=3600),
    "share": _share("The share of requests that keep to it; a failed one does not."),
}

SLO = {
    "availability": _share("The share of requests that are answered: no 5xx, no 429, no cut stream. null: no promise."),
    "ttft": About("From accept to the first token of content. null: no promise."),
    "usable": About("From accept to what can be used: the first token of a stream, the end of a whole answer."),
    "e2e": About("From accept to the last byte."),
    "tpot": About("Time for each token after the first."),
    "window_days": About("The period that the promises are about. Prometheus must keep its data for so long.",
                         minimum=28, maximum=92),
}


def _line(doc: str) -> About:
    return About(doc, more_than=0)


def _ratio(doc: str) -> About:
    return About(doc, more_than=0, maximum=0.99999)


ALERTS = {
    "ttft_p95_s": _line("p95 of the time to the first token over 5 minutes, by route; null: no such alert."),
    "ttft_p99_s": _line("The same for p99."),
    "usable_p95_s": _line("p95 of the time to a usable answer; null: no such alert."),
    "usable_p99_s": _line("The same for p99."),
    "e2e_p95_s": _line("p95 of the whole time; unset: no such alert, for long answers take long."),
    "e2e_p99_s": _line("The same for p99."),
    "min_requests": About("With fewer requests in its long window, a burn of the error budget is not told.", minimum=1),
    "min_bad": About("With fewer bad requests than this, neither.", minimum=1),
    "min_requests_5m": About("With fewer requests in 5 minutes, no percentile and no ratio is judged; with fewer than five "
                             "times as many, no p99.", minimum=1),
    "cache_hit_ratio_min": _ratio("A lower share of cache hits over 30 minutes is told."),
    "prefix_read_ratio_min": _ratio("A lower share of input read from providers' prefix caches over 30 minutes is told."),
    "queue_depth": About("More requests waiting than this is told.", minimum=1),
    "truncated_ratio": _ratio("Share of an upstream's streams that break off after their first token."),
    "degraded_ratio": _ratio("Share of a route's answers by fallback, template or in part."),
    "stalled_ratio": _ratio("Stalls for each request of an upstream."),
    "rate_limited_ratio": _ratio("Share of an upstream's attempts that meet 429 or 529."),
    "failed_attempts_ratio": _ratio("Share of an upstream's attempts that fail."),
    "retry_amplification": About("Attempts for each request, by route.", more_than=1),
    "spike_factor": _line("p99 over p50 of the first token, by route."),
    "loop_lag_s": _line("How late the gateway's own event loop runs, in seconds."),
    "queue_wait_p95_s": _line("p95 of the wait between accept and the first look at a request, in seconds."),
    "handshake_p95_s": _line("p95 of the time that new connections to an upstream take, in seconds."),
    "job": About("The name of the gateway's job in Prometheus's scrape_configs.", pattern=r"[A-Za-z0-9_./-]+",
                 form="letters, digits and _ . / -"),
    "runbook": About("Where docs/alerts.md can be read by whoever is on call; each alert's own heading is added."),
}

def _usd(doc: str) -> About:
    return About(doc, minimum=0, maximum=1_000_000)


PRICE = {
    "input_per_mtok": _usd("USD for a million tokens of input."),
    "output_per_mtok": _usd("USD for a million tokens of output, reasoning included."),
    "cached_read_per_mtok": _usd("The same for input read from the provider's cache; unset: as input."),
    "cache_write_per_mtok": _usd("The same for input written to it (for five minutes, if it says); unset: as input."),
    "cache_write_1h_per_mtok": _usd("The same for input written to it for an hour; unset: as any write."),
}

RECENT = {
    "size": About("Requests kept, and as many again of those that were slow or went wrong; 0: none.", minimum=0,
                  maximum=100_000),
    "slow_s": About("A first token after this is slow.", more_than=0),
    "max_bytes": About("Memory for each of the two, at most.", minimum=65_536, maximum=1_073_741_824),
}

CACHE = {
    "mode": About("exact: a request that means the same as an earlier one gets its answer, and those that come at the same "
                  "time share one call. semantic: so does one that asks the same in other words, within `max_error`. off: "
                  "every request is a call.", words=("off", "exact", "semantic")),
    "ttl_s": About("No answer is given again that is older than this, in seconds.", more_than=0, maximum=31_536_000),
    "max_temperature": About("Only requests with at most this temperature, or with a seed. One without a temperature counts "
                             "as 1: its provider's own.", minimum=0, maximum=2),
    "max_bytes": About("The memory for answers, in each worker.", minimum=1024, maximum=1 << 40),
    "max_answer_bytes": About("Longer answers are not kept.", minimum=1024, maximum=1 << 40),
    "epoch": About("Any word; another one forgets all that is kept: after a change of what the model knows, for example."),
    "stale_while_revalidate_s": About("For so many seconds more an answer is given at once, and renewed in the background.",
                                      minimum=0, maximum=31_536_000),
    "stale_if_error_s": About("For so many seconds more an answer is given where the call for another one fails.", minimum=0,
                              maximum=31_536_000),
    "store": About("The name of one of `stores`, which routes and workers may share. Empty: memory of this route's own, of "
                   "max_bytes."),
    "semantic": About("What a semantic cache needs to know.", is_inline=True),
}

PREFIX = {
    "mode": About("auto: prompts are put into an order that can be remembered, and marked for the provider's cache, unless "
                  "they have marks of their own. off: they go as they came.", words=("off", "auto")),
    "ttl": About("How long Anthropic is to keep the static part; an hour costs twice as much to write. auto: an hour where "
                 "it mostly comes back after more than five minutes.", words=("auto", "5m", "1h")),
    "sorts_tools": About("Tools go out by name: the same ones are the same prompt, in whatever order they came."),
    "moves_volatile": About("Whole blocks of instructions with a date, a UUID or a timestamp go behind those without."),
    "wait_s": About("The longest that a request waits for another that begins alike to fill the cache, in seconds; never "
                    "more than a quarter of its time. 0: nobody waits.", minimum=0, maximum=60),
    "warm_tokens_per_hour": About(
        "Input tokens that may be spent in an hour on asking Anthropic for static parts shortly before it forgets them, "
        "where they were used lately; in each worker. 0: none.", minimum=0, maximum=1_000_000_000),
    "models": About("What holds for some models in place of what is known of their family: by the model's name at its "
                    "upstream, a shell pattern like claude-next-*; the first that fits."),
}
MODEL_RULES = {
    "marks": About("How the end of what is to be kept is said. null: as for its family."),
    "floor_tokens": About("Shorter beginnings are not kept. null: as for its family.", minimum=0, maximum=1_000_000),
}

DESCRIBED: Mapping[type[Any], Mapping[str, About]] = {
    Timeouts: TIMEOUTS, BudgetConfig: BUDGET, RetryConfig: RETRY, HedgeConfig: HEDGE, CacheConfig: CACHE,
    AffinityConfig: AFFINITY, EjectConfig: EJECT, LimitConfig: LIMIT, BreakerConfig: BREAKER, ServerConfig: SERVER,
    EngineConfig: ENGINE, **SEMANTIC,
    **STORES, **ADMISSION, Latency: LATENCY, Slo: SLO, AlertsConfig: ALERTS, Price: PRICE, RecentConfig: RECENT,
    PrefixConfig: PREFIX, ModelRules: MODEL_RULES,
}
