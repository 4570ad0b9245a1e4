"""Limits of providers, and retries on top of retries.

Problem: 429 means requests, input tokens, output tokens or money, and each has another remedy; and three layers that retry
three times each make 27 calls. Rule: the scarcest dimension of the provider's own headers names the cause.

    rate limited   5 % of an upstream's calls answer 429 or 529
    headroom       under 10 % of a limit is left
    reserved       output tokens are scarce, and max_tokens is four times what answers use: providers charge it in advance
    stacking       5 % of the requests are retries of SDKs, and the gateway makes over 1.2 calls for each request
    retry-after    the gateway names a wait over 120 s: the OpenAI SDK then does not retry at all

Source: rate limits of Anthropic (output tokens charged by max_tokens) and OpenAI; the retry rules of openai-python 3.52 and
anthropic 2.11, as installed; provider throttling in "Building for the Jagged Edges of LLM Latency". When wrong: a spend
limit answers 429, too, and no header shows it.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from stayfast.core.findings import Evidence, Finding, FindingSite, SettingsChange
from stayfast.core.snapshot import Snapshot, UpstreamRow
from stayfast.policy.findings.check import Check
from stayfast.policy.findings.figures import (
    HOUR_S,
    MIN_REQUESTS,
    NOW_S,
    is_more_than,
    prompts_of,
    share_evidence,
    text_share,
)
from stayfast.policy.findings.patches import change_settings

MANY_LIMITED, MOST_LIMITED = 0.05, 0.2  # the alert `rate_limited_ratio` is 0.05
MIN_CALLS = 20  # a refused upstream is suspended, so it gets few calls
SCARCE = 0.1
RESERVED_FACTOR, RESERVED_SCARCE = 4.0, 0.3
MANY_CLIENT_RETRIES, AMPLIFIED = 0.05, 1.2  # the alert `retry_amplification`
OPENAI_MAX_S = 120.0  # longest Retry-After that the OpenAI SDK honours
STATUSES = ("429", "529")
ATTEMPTS = "stayfast_attempts_total"
HEADERS = "x-ratelimit-remaining"
REMEDIES: Mapping[str, str] = MappingProxyType({
    "requests": "fewer calls: the cache, fewer retries, several questions in one call",
    "input_tokens": "shorter prompts, and the provider's prompt cache, which is often not counted",
    "output_tokens": "a lower max_tokens",
    "tokens": "shorter prompts and a lower max_tokens",
    "requests_per_day": "fewer calls, or a second provider for the rest of the day",
    "tokens_per_day": "shorter prompts, or a second provider for the rest of the day",
})


def _calls(snapshot: Snapshot) -> dict[str, tuple[int, int]]:
    """Calls and refused calls by upstream."""
    found: defaultdict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for row in snapshot.rows_by_upstream(NOW_S):
        n, n_limited = found[row.upstream]
        found[row.upstream] = n + row.n_attempts, n_limited + sum(row.faults.get(status, 0) for status in STATUSES)
    return found


def _scarcest(row: UpstreamRow | None) -> tuple[str, float]:
    """The dimension with the least share left, now or in the last hour; empty if no header was seen."""
    left = {**row.quota_left_1h, **row.quota_left} if row is not None else {}
    for name, share in (row.quota_left_1h if row is not None else {}).items():
        left[name] = min(share, left[name])
    return min(left.items(), key=lambda item: item[1], default=("", 1.0))


def find_rate_limited(snapshot: Snapshot) -> Iterable[Finding]:
    """The provider refuses calls, with the dimension that is used up."""
    upstreams = {row.name: row for row in snapshot.upstreams}
    for name, (n, n_limited) in _calls(snapshot).items():
        if not is_more_than(MANY_LIMITED, n_limited, n, MIN_CALLS):
            continue
        row = upstreams.get(name)
        dimension, left = _scarcest(row)
        is_named = left < SCARCE
        per_minute = max(1, round((n - n_limited) / (NOW_S / 60)))
        do = [SettingsChange(f"Use less of it: {REMEDIES.get(dimension, 'a higher limit at the provider')}." if is_named else
                             "A higher limit at the provider, or a second key or provider for the route.",
                             confidence="unknown")]
        if row is not None and row.kind in {"openai", "anthropic"} and snapshot.setting("upstreams", name, "rate") is None:
            do.insert(0, change_settings(
                f"The gateway spreads {per_minute:,} calls a minute evenly and sends the rest elsewhere, without 429.",
                {"upstreams": {name: {"rate": {"requests_per_minute": per_minute}}}}))
        yield Finding(
            "limits.rate_limited", "act" if n_limited > MOST_LIMITED * n else "warn", FindingSite(upstream=name),
            f"{name} refuses {text_share(n_limited / n)} of the calls for its limits"
            + (f": {dimension.replace('_', ' ')} are used up." if is_named else "."),
            f"Its headers show {text_share(left)} of its {dimension.replace('_', ' ')} left." if is_named else
            "Its headers show no limit that is used up: bursts within a minute, or a spend limit.",
            (*share_evidence("429 and 529", n_limited, n, ATTEMPTS),
             *(Evidence(f"{one} left", share, "ratio", HOUR_S, HEADERS)
               for one, share in sorted((row.quota_left_1h if row is not None else {}).items()))),
            tuple(do), f'{ATTEMPTS}{{status="429"}} of upstream {name} falls')


def find_little_headroom(snapshot: Snapshot) -> Iterable[Finding]:
    """A limit is nearly used up, and nothing is refused yet."""
    calls = _calls(snapshot)
    for row in snapshot.upstreams:
        dimension, left = min(row.quota_left.items(), key=lambda item: item[1], default=("", 1.0))
        if left >= SCARCE or calls.get(row.name, (0, 0))[0] < MIN_CALLS:
            continue
        least = row.quota_left_1h.get(dimension, left)
        yield Finding(
            "limits.headroom", "warn", FindingSite(upstream=row.name),
            f"{text_share(left)} of the {dimension.replace('_', ' ')} of {row.name} are left.",
            f"The least of the last hour is {text_share(least)}. Beyond the limit calls are refused, and waits do not grow "
            "slowly but at once.",
            tuple(Evidence(f"{one} left", share, "ratio", None, HEADERS) for one, share in sorted(row.quota_left.items())),
            (SettingsChange(f"Before it is used up: {REMEDIES.get(dimension, 'a higher limit')}, or a second provider.",
                            confidence="unknown"),),
            f"quota_left of {row.name} in /admin/snapshot rises")


def find_reserved_output(snapshot: Snapshot) -> Iterable[Finding]:
    """A max_tokens far above the answers, where output tokens are the scarce limit."""
    prompts = prompts_of(snapshot)
    for row in snapshot.upstreams:
        left = min((share for name, share in (*row.quota_left.items(), *row.quota_left_1h.items()) if "output" in name),
                   default=1.0)
        if left >= RESERVED_SCARCE:
            continue
        for traffic in snapshot.rows_by_upstream(NOW_S):
            prompt = prompts.get(traffic.route)
            if traffic.upstream != row.name or prompt is None:
                continue
            if min(prompt.max_tokens.n, prompt.output_tokens.n) < MIN_REQUESTS:
                continue
            capped, used = prompt.max_tokens.p50, prompt.output_tokens.p95
            if not capped or not used or capped < RESERVED_FACTOR * used:
                continue
            yield Finding(
                "limits.reserved_output", "warn", FindingSite(route=traffic.route, upstream=row.name),
                f"max_tokens is {capped:,.0f}, and 95 % of the answers have at most {used:,.0f} tokens.",
                f"{row.name} charges max_tokens in advance, and {text_share(left)} of its output tokens are left.",
                (Evidence("max_tokens p50", capped, "tokens", HOUR_S, "/admin/snapshot"),
                 Evidence("output tokens p95", used, "tokens", HOUR_S, "/admin/snapshot"),
                 Evidence("output tokens left", left, "ratio", HOUR_S, HEADERS)),
                (SettingsChange(f"In the client: max_tokens {1.5 * used:.0f}. About {capped / (1.5 * used):.0f} times as "
                                "many "
                                "requests fit into the same limit.", confidence="estimated"),),
                f"quota_left of {row.name} in /admin/snapshot rises")


def find_stacked_retries(snapshot: Snapshot) -> Iterable[Finding]:
    """SDKs retry what the gateway retries already."""
    for row in snapshot.rows(NOW_S):
        n_first = row.n - row.n_client_retries
        if not is_more_than(MANY_CLIENT_RETRIES, row.n_client_retries, row.n) or n_first <= 0:
            continue
        amplified = row.n_attempts / n_first
        if amplified < AMPLIFIED or row.n_retries + row.n_fallbacks == 0:
            continue
        yield Finding(
            "retries.stacked", "warn", FindingSite(route=row.route),
            f"{text_share(row.n_client_retries / row.n)} of the requests are retries of SDKs, and each question costs "
            f"{amplified:.2g} calls.",
            "Client and gateway both retry. In an outage the layers multiply, and the provider stays down longer.",
            (*share_evidence("retries of SDKs", row.n_client_retries, row.n, "x-stainless-retry-count"),
             Evidence("retries of the gateway", row.n_retries, "", NOW_S, "stayfast_retries_total"),
             Evidence("calls for each question", amplified, "", NOW_S, ATTEMPTS)),
            (SettingsChange("In the client: max_retries=0. The gateway retries within the deadline and its budget.",
                            confidence="measured"),
             change_settings("Or here: two attempts at most.", {"routes": {row.route: {"retry": {"max_attempts": 2}}}})),
            f"n_client_retries of route {row.route} in /admin/snapshot falls; stayfast_retries_total falls")


def find_ignored_retry_after(snapshot: Snapshot) -> Iterable[Finding]:
    """The gateway's Retry-After is longer than what SDKs honour."""
    wait_s = snapshot.retry_after_s
    if wait_s is None or wait_s <= OPENAI_MAX_S:
        return
    yield Finding(
        "retries.retry_after", "warn", FindingSite(),
        f"Refused clients are sent Retry-After {wait_s:,.0f} s; the OpenAI SDK ignores more than {OPENAI_MAX_S:g} s and "
        "gives up, "
        "Anthropic's sleeps that long.",
        "The wait is that of a queue or a quota that refills slowly.",
        (Evidence("Retry-After", wait_s, "s", None, "/debug/state"), Evidence("waiting", snapshot.n_waiting, "", None,
                                                                             "stayfast_queue_depth")),
        (SettingsChange("Work that may wait this long belongs into jobs (Prefer: respond-async); else a larger quota or "
                        "more "
                        "capacity.", confidence="unknown"),), "retry_after_s in /admin/snapshot falls below 120")


CHECKS = (
    Check("limits.rate_limited", "a provider refuses 5 % of the calls for its limits", find_rate_limited,
          ("limits.headroom", "latency.promise_missed", "latency.tail", "hedging.off", "retries.stacked",
           "breaker.flapping")),
    Check("limits.headroom", "under 10 % of a provider's limit is left", find_little_headroom),
    Check("limits.reserved_output", "max_tokens is four times the answers, and output tokens are "
                                    "scarce", find_reserved_output,
          ("limits.rate_limited", "limits.headroom")),
    Check("retries.stacked", "SDKs retry what the gateway retries", find_stacked_retries),
    Check("retries.retry_after", "Retry-After is longer than SDKs honour", find_ignored_retry_after),
)
