"""What waits depend on: the prompt, the load, the answer, or the provider alone; and answers without streaming.

Problem: the same p95 of 3 s is mended by a shorter prompt, another replica, a lower max_tokens, or another provider. Rule:
correlations over the last hour's requests (`PromptRow`).

    prefill    the first token correlates with input tokens (0.5), and the slope times the p95 prompt is half of the p95
    queue      it correlates with the requests in flight, and not with the prompt
    provider   it correlates with neither, and is late all the same
    answers    the whole time correlates with output tokens (0.7), and clients set no max_tokens

Source: a 4k-token prompt costs four times a 1k-token one, sequential tokens, and streaming as the first thing to do: the
seeds of this project, "LLM Latency Optimization" and "Building for the Jagged Edges of LLM Latency". When wrong: prompt
length and load rise at the same hours, so one correlation can stand for the other.
"""

from collections.abc import Iterable

from stayfast.core.findings import Evidence, Finding, FindingSite, SettingsChange
from stayfast.core.snapshot import PromptRow, Snapshot, TrafficRow
from stayfast.policy.findings.check import Check
from stayfast.policy.findings.figures import (
    HOUR_S,
    MIN_FOR_P95,
    MIN_REQUESTS,
    NOW_S,
    is_more_than,
    percentiles,
    promise_of,
    prompts_of,
    share_evidence,
    text_s,
    text_share,
)
from stayfast.policy.findings.latency import TAIL_FACTOR, TTFT
from stayfast.policy.findings.patches import PatchTree, change_settings

STRONG, WEAK, STRONG_OUTPUT = 0.5, 0.2, 0.7  # correlations
SLOW_S = 1.0  # first tokens under this p95 need no cause
LONG_ANSWER_S, LONG_ANSWER_TOKENS = 5.0, 100.0
MOST_CAPPED = 0.5
STREAMED = 0.1
WHOLE_S = 2.0  # a longer wait for a whole answer is one that a user notices


def _slow_rows(snapshot: Snapshot) -> Iterable[tuple[TrafficRow, PromptRow, float]]:
    """Routes with slow first tokens and enough samples, with the p95."""
    prompts = prompts_of(snapshot)
    for row in snapshot.rows(NOW_S):
        prompt, p95_s = prompts.get(row.route), row.ttft_s.p95
        if prompt is None or p95_s is None or p95_s < SLOW_S or min(row.ttft_s.n, prompt.n) < MIN_FOR_P95:
            continue
        if 2 * row.n_streamed < row.n:
            continue  # the first token of a whole answer is its last
        admit = row.stages_s.get("admit")
        if admit is not None and (admit.p95 or 0.0) > p95_s / 2:
            continue  # they wait for a place here, not at the upstream
        yield row, prompt, p95_s


def find_prefill_bound(snapshot: Snapshot) -> Iterable[Finding]:
    """The time to the first token is mostly that of reading the prompt."""
    for row, prompt, p95_s in _slow_rows(snapshot):
        tokens, slope = prompt.input_tokens.p95, prompt.s_per_1k_input
        if (prompt.ttft_by_input or 0.0) < STRONG or not tokens or not slope or slope * tokens / 1000 < p95_s / 2:
            continue
        shared = prompt.shared_prefix_ratio or 0.0
        saved_s = slope * tokens / 1000 * max(0.5, shared)
        tree: PatchTree = {"routes": {row.route: {"prefix": {"mode": "auto"}, "affinity": {"mode": "prefix"}}}}
        do = [SettingsChange(f"Half of the prompt (fewer documents, a summary of the history): about {text_s(saved_s)} "
                             "less at "
                             "the p95.", saves_s=saved_s)]
        if snapshot.setting("routes", row.route, "prefix", "mode") == "off" and shared >= STRONG:
            do.insert(0, change_settings(f"{text_share(shared)} of the prompt repeats; read from the provider's cache it "
                                         "costs "
                                         f"about {text_s(saved_s)} less.", tree, saves_s=saved_s))
        yield Finding(
            "waits.prefill_bound", "warn", FindingSite(route=row.route),
            f"The prompt decides the wait: {text_s(slope)} for 1,000 tokens, and the p95 prompt has {tokens:,.0f}.",
            "The first token correlates with the length of the prompt. The model reads all of it before it answers.",
            (Evidence("correlation with input tokens", prompt.ttft_by_input or 0.0, "", HOUR_S, "/admin/snapshot"),
             Evidence("seconds for 1,000 tokens", slope, "s", HOUR_S, "/admin/snapshot"),
             Evidence("input tokens p95", tokens, "tokens", HOUR_S, "/admin/snapshot"),
             *percentiles("first token", row.ttft_s, TTFT)), tuple(do),
            f"{TTFT} of route {row.route}: p95 falls with stayfast_tokens_total of kind input")


def find_queue_bound(snapshot: Snapshot) -> Iterable[Finding]:
    """The time to the first token rises with the load."""
    for row, prompt, p95_s in _slow_rows(snapshot):
        by_load, p50_s = prompt.ttft_by_load or 0.0, row.ttft_s.p50
        if by_load < STRONG or by_load <= (prompt.ttft_by_input or 0.0) or not p50_s:
            continue
        upstream = _slowest_upstream(snapshot, row.route)
        mode = snapshot.setting("upstreams", upstream, "limit", "mode")
        do = [SettingsChange("Another replica, or a second upstream for this route, lowers the requests in flight at each.",
                             confidence="unknown")]
        if upstream and mode in {"off", "fixed"}:
            do.insert(0, change_settings(
                "The limit follows the waits: requests queue here by priority, instead of all becoming slow.",
                {"upstreams": {upstream: {"limit": {"mode": "gradient"}}}}, "unknown"))
        yield Finding(
            "waits.queue_bound", "warn", FindingSite(route=row.route),
            f"The load decides the wait: p95 {text_s(p95_s)}, p50 {text_s(p50_s)}.",
            "The first token correlates with the requests in flight, not with the prompt: requests queue at the upstream.",
            (Evidence("correlation with requests in flight", by_load, "", HOUR_S, "/admin/snapshot"),
             *percentiles("first token", row.ttft_s, TTFT)), tuple(do),
            f"{TTFT} of route {row.route}: p95 falls at the same rate of requests")


def _slowest_upstream(snapshot: Snapshot, route: str) -> str:
    rows = [row for row in snapshot.rows_by_upstream(NOW_S) if row.route == route and row.ttft_s.p95]
    return max(rows, key=lambda row: row.ttft_s.p95 or 0.0).upstream if rows else ""


def find_provider_bound(snapshot: Snapshot) -> Iterable[Finding]:
    """Late first tokens that depend neither on the prompt nor on the load."""
    for row, prompt, _ in _slow_rows(snapshot):
        by_input, by_load, p50_s, p99_s = prompt.ttft_by_input, prompt.ttft_by_load, row.ttft_s.p50, row.ttft_s.p99
        if by_input is None or by_load is None or max(abs(by_input), abs(by_load)) > WEAK or not p50_s or not p99_s:
            continue
        promise = promise_of(snapshot, row.route)
        if promise is None or not is_more_than(1 - promise.share, row.n_late, row.n) or p99_s > TAIL_FACTOR * p50_s:
            continue
        if p50_s < promise.under_s / 2:
            continue  # late ones failed or were refused
        yield Finding(
            "waits.provider_bound", "warn", FindingSite(route=row.route),
            f"The provider decides the wait: p50 {text_s(p50_s)}, for short and long prompts and at any load.",
            "The first token correlates neither with the prompt nor with the requests in flight.",
            (Evidence("correlation with input tokens", by_input, "", HOUR_S, "/admin/snapshot"),
             Evidence("correlation with requests in flight", by_load, "", HOUR_S, "/admin/snapshot"),
             *percentiles("first token", row.ttft_s, TTFT)),
            (SettingsChange("A faster model, provider or region: nothing here shortens its own time. `stayfast bench` "
                            "compares "
                            "candidates.", confidence="unknown"),),
            f"{TTFT} of route {row.route}: p50 falls")


def find_long_answers(snapshot: Snapshot) -> Iterable[Finding]:
    """The whole time is that of writing the answer, and clients set no limit."""
    prompts = prompts_of(snapshot)
    for row in snapshot.rows(NOW_S):
        prompt, p95_s = prompts.get(row.route), row.e2e_s.p95
        if prompt is None or p95_s is None or p95_s < LONG_ANSWER_S or prompt.n < MIN_FOR_P95:
            continue
        tokens = prompt.output_tokens
        if (prompt.e2e_by_output or 0.0) < STRONG_OUTPUT or not is_more_than(MOST_CAPPED, prompt.n_uncapped, prompt.n):
            continue
        if not tokens.p50 or not tokens.p95 or tokens.p95 < 2 * tokens.p50 or tokens.p95 < LONG_ANSWER_TOKENS:
            continue
        cap = 2 * tokens.p50 if tokens.p95 > 2.2 * tokens.p50 else 1.5 * tokens.p50
        saved_s = p95_s * (1 - cap / tokens.p95)
        yield Finding(
            "answers.long", "warn", FindingSite(route=row.route),
            f"Long answers decide the time: p95 {text_s(p95_s)} with {tokens.p95:,.0f} tokens, "
            f"{tokens.p95 / tokens.p50:.0f} "
            "times the median.",
            f"{text_share(prompt.n_uncapped / prompt.n)} of the requests have no max_tokens; tokens come one after the "
            "other.",
            (Evidence("correlation with output tokens", prompt.e2e_by_output or 0.0, "", HOUR_S, "/admin/snapshot"),
             Evidence("output tokens p50", tokens.p50, "tokens", HOUR_S, "/admin/snapshot"),
             Evidence("output tokens p95", tokens.p95, "tokens", HOUR_S, "/admin/snapshot"),
             *percentiles("whole request", row.e2e_s, "stayfast_e2e_seconds")),
            (SettingsChange(f"In the client: max_tokens {cap:.0f}, and an instruction to be brief. The p95 of the whole "
                            "time "
                            f"falls by about {text_s(saved_s)}."),),
            f"stayfast_e2e_seconds of route {row.route}: p95 falls")


def find_no_streaming(snapshot: Snapshot) -> Iterable[Finding]:
    """Long answers that arrive whole, on a route that promises a first token."""
    for row in snapshot.rows(NOW_S):
        p50_s = row.e2e_s.p50
        if p50_s is None or p50_s < WHOLE_S or row.n < MIN_REQUESTS or row.n_streamed > STREAMED * row.n:
            continue
        if promise_of(snapshot, row.route) is None:
            continue  # nobody waits for a first token: `slo: {ttft: null}`
        tokens = row.n_output_tokens / row.n
        if tokens < LONG_ANSWER_TOKENS:
            continue
        first_s = _streamed_p50(snapshot, row)
        then = f"after about {text_s(first_s)}" if first_s is not None else "after the time to the first token"
        yield Finding(
            "answers.whole", "warn", FindingSite(route=row.route),
            f"Users wait {text_s(p50_s)} for whole answers of {tokens:,.0f} tokens; {text_share(row.n_streamed / row.n)} "
            "are "
            "streamed.",
            "A streamed answer takes as long, but its first words come at once.",
            (*share_evidence("streamed", row.n_streamed, row.n, "stayfast_requests_total"),
             Evidence("output tokens a request", tokens, "tokens", NOW_S, "stayfast_tokens_total"),
             *percentiles("whole request", row.e2e_s, "stayfast_e2e_seconds")),
            (SettingsChange(f"In the client: stream=true. The first words then come {then}.",
                            confidence="estimated" if first_s is not None else "unknown",
                            saves_s=None if first_s is None else max(0.0, p50_s - first_s)),
             change_settings("If nobody waits for this route, drop its promise: no further finding.",
                             {"routes": {row.route: {"slo": {"ttft": None}}}}, "measured")),
            f"stayfast_usable_seconds of route {row.route}: p50 falls")


def _streamed_p50(snapshot: Snapshot, row: TrafficRow) -> float | None:
    """The first token of streams at an upstream of the route."""
    mine = {one.upstream for one in snapshot.rows_by_upstream(NOW_S) if one.route == row.route}
    found = [one.ttft_s.p50 for one in snapshot.rows_by_upstream(NOW_S)
             if one.upstream in mine and one.n_streamed > one.n / 2 and one.ttft_s.p50]
    return min(found, default=None)


CHECKS = (
    Check("waits.prefill_bound", "the first token depends on the length of the prompt", find_prefill_bound,
          ("latency.promise_missed", "latency.tail", "hedging.off")),
    Check("waits.queue_bound", "the first token depends on the requests in flight", find_queue_bound,
          ("latency.promise_missed", "hedging.off", "latency.tail")),
    Check("waits.provider_bound", "late first tokens depend neither on the prompt nor on the load", find_provider_bound,
          ("latency.promise_missed",)),
    Check("answers.long", "long answers without max_tokens decide the time", find_long_answers),
    Check("answers.whole", "users wait for long answers that are not streamed", find_no_streaming,
          ("latency.promise_missed", "answers.long")),
)
