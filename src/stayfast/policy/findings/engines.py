"""Self-hosted engines, from their own metrics: memory, batches, drafts, starts.

Problem: a queue in front of an engine has two causes with opposite remedies. Rule:

    waiting, KV memory full      memory-bound: quantise, shorten contexts, more memory for the KV cache
    waiting, KV memory not full  compute-bound: a larger batch, or another replica
    bound by prefill or decode   the row's `bound_by` (`policy.engines.bound_by`), which has held for three readings
    queue before the gateway's   its own limit is too low: the engine is idle
        limit, none behind it
    drafts accepted under 50 %   the draft model costs more than it saves
    drafts for short answers     there is nothing to speculate about
    memory that grows            sessions or buffers are not released
    starts in the last hour      an engine that scales to zero makes the next user wait for the load

Source: memory against compute is the rule of "LLM Latency in Production: What Actually Moves the Needle" for
gpu_cache_usage_perc and num_requests_waiting; 50 % acceptance is that of "LLM Latency Optimization: How We Cut P99 from 12s
to 1.8s". When wrong: figures are of one instant, so a short burst may look like a queue; with `queue_p95_s` it does not.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from stayfast.core.findings import Evidence, Finding, FindingSite, SettingsChange
from stayfast.core.snapshot import Snapshot, UpstreamRow
from stayfast.core.units import format_digits, format_seconds, format_share
from stayfast.policy.findings.check import Check
from stayfast.policy.findings.patches import change_settings
from stayfast.policy.findings.rows import GIB, HOUR_S, MIB, NOW_S, observe, rows_of_upstream, share_of

FRESH_S = 60.0  # older figures say nothing of now: four scrapes at Prometheus's usual 15 s
MIN_WAITING = 5.0  # a queue of fewer empties within one or two steps
LONG_QUEUE_S = 0.1  # p95; the gateway's own `target_wait_s`
KV_FULL = 0.9  # vLLM preempts when no block is free; above it the next long prompt does
KV_FREE = 0.7  # a quarter of the memory is unused although requests wait
MIN_RUNNING = 4.0  # fewer do not slow each other
SMALLER_BATCH = 0.7  # of the running requests, where decoding is the bound
PREEMPTS_PER_S = 0.05  # three a minute: each one computes its whole prompt again
LEAST_ACCEPTED = 0.5  # "if the acceptance rate is below 50 %, the overhead outweighs the benefit"
LEAST_LENGTH = 1.5  # tokens per step, the own token included: half a draft token
SHORT_OUTPUT = 50.0  # tokens at the p50: the source's short response; speculation pays on long ones
SHORT_TAIL = 150.0  # at the p95: no slow end that would gain
MIN_ANSWERS = 50
GROWTH = 0.02  # of the GPU's memory an hour: full within two days
MIN_GROWTH_BYTES = 256 * MIB  # below it is the noise of allocators
STARTS = 2.0  # in an hour; a single one may be a release
MIN_ATTEMPTS = 10
MIN_LENGTHS = 100  # for a p99
LONG_INPUT = 4000.0  # tokens; the default bound of admission.lanes
LONG_FACTOR = 10.0  # p99 over p50 of prompt lengths; a prefill of ten usual prompts
TAIL_FACTOR = 5.0  # p99 over p50 of the first token: the long prompts are felt


def _fresh(snapshot: Snapshot) -> Iterator[tuple[UpstreamRow, dict[str, float], FindingSite]]:
    for row in snapshot.upstreams:
        if row.engine and row.engine.get("age_s", 0.0) <= FRESH_S:
            yield row, row.engine, FindingSite(upstream=row.name)


def _figure(engine: dict[str, float], name: str, unit: str = "") -> Evidence:
    return observe(name, engine[name], unit, None, "/admin/snapshot upstreams")


def _queues(engine: dict[str, float]) -> bool:
    """Whether requests wait in the engine, and not just for a moment."""
    return engine.get("waiting", 0.0) >= MIN_WAITING and engine.get("queue_p95_s", LONG_QUEUE_S) >= LONG_QUEUE_S


def find_full_memory(snapshot: Snapshot) -> Iterable[Finding]:
    """Requests wait while the KV memory is full."""
    for row, engine, where in _fresh(snapshot):
        used = engine.get("kv_used_ratio", 0.0)
        if used < KV_FULL or not _queues(engine):
            continue
        yield Finding(
            "engine.memory_bound", "act", where,
            f"{format_share(used)} of the KV memory of {row.name} is used, and {engine['waiting']:.0f} requests wait.",
            "The engine is bound by memory: it starts a request only when the contexts of others have ended.",
            evidence=(_figure(engine, "kv_used_ratio", "ratio"), _figure(engine, "waiting"),
                      *([_figure(engine, "running")] if "running" in engine else [])),
            do=(SettingsChange("At the engine: weights in 8 bits halve their memory, and the KV cache gets the rest; an 8 "
                               "bit KV cache holds twice as many contexts."),
                _limit_long_prompts(snapshot)),
            verify=f"/admin/snapshot upstreams: kv_used_ratio of {row.name} falls under {KV_FULL:g}, waiting to 0")


def _limit_long_prompts(snapshot: Snapshot) -> SettingsChange:
    """Long prompts take the most memory: at most one of them at a time."""
    if snapshot.setting("admission", "max_in_flight") is None:
        return SettingsChange("With admission.max_in_flight: admission.lanes bound how many long contexts run at a time.")
    return change_settings("Long contexts run in a lane of their own, and leave memory to short ones.",
                           {"admission": {"lanes": {"long_share": 0.25}}})


def find_full_batch(snapshot: Snapshot) -> Iterable[Finding]:
    """Requests wait while the KV memory has room."""
    for row, engine, where in _fresh(snapshot):
        used = engine.get("kv_used_ratio")
        if used is None or used >= KV_FREE or not _queues(engine):
            continue
        yield Finding(
            "engine.compute_bound", "act", where,
            f"{engine['waiting']:.0f} requests wait at {row.name} while {format_share(1 - used)} of its KV memory is free.",
            "The engine is bound by compute or by its largest batch, not by memory.",
            evidence=(_figure(engine, "waiting"), _figure(engine, "kv_used_ratio", "ratio"),
                      *([_figure(engine, "running")] if "running" in engine else [])),
            do=(SettingsChange("Another replica: the queue halves. Or a larger batch at the engine (max_num_seqs), if the "
                               "time per token allows."),
                change_settings("The gateway queues instead of the engine, where short and important requests go first.",
                                {"upstreams": {row.name: {"limit": {"mode": "gradient"}}}})),
            verify=f"/admin/snapshot upstreams: waiting of {row.name} falls to 0")


def find_prefill_bound(snapshot: Snapshot) -> Iterable[Finding]:
    """Prompts wait for their prefill while memory and batch have room."""
    for row, engine, where in _fresh(snapshot):
        if row.bound_by != "prefill" or not _queues(engine):
            continue
        speed = engine.get("prefill_tokens_per_s")
        routes = [name for name, route in _routes_of(snapshot, row.name) if not _has_affinity(route)]
        yield Finding(
            "engine.prefill_bound", "act", where,
            f"{engine['waiting']:.0f} requests wait at {row.name} for their prefill, with free KV memory.",
            "The engine is bound by compute on prompts: the first token comes later with each prompt token.",
            evidence=tuple(_figure(engine, name, unit) for name, unit in (
                ("waiting", ""), ("kv_used_ratio", "ratio"), ("kv_hit_ratio", "ratio"), ("prefill_tokens_per_s", "tokens/s"))
                if name in engine),
            do=(*[change_settings("Prompts with a common beginning go to the replica that has it in its cache.",
                                  {"routes": {name: {"affinity": {"mode": "prefix"}}}}) for name in routes[:1]],
                SettingsChange("At the engine: chunked prefill (vLLM and SGLang: on by default), and a threshold for long "
                               "prompts (vLLM: --long-prefill-token-threshold)."),
                SettingsChange("Another replica" + (f": each one computes {speed:.0f} prompt tokens a second." if speed else
                                                    ": the queue halves."))),
            verify=f'stayfast_engine_bound_by{{upstream="{row.name}",bound="prefill"}} is 0')


def _routes_of(snapshot: Snapshot, upstream: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Routes that have several upstreams, of which this is one."""
    routes = snapshot.setting("routes")
    for name, route in routes.items() if isinstance(routes, Mapping) else ():
        upstreams = route.get("upstreams") if isinstance(route, Mapping) else None
        if upstreams and upstream in upstreams and len(upstreams) > 1:
            yield name, route


def _has_affinity(route: Mapping[str, Any]) -> bool:
    affinity = route.get("affinity")
    return isinstance(affinity, Mapping) and affinity.get("mode", "off") != "off"


def find_decode_bound(snapshot: Snapshot) -> Iterable[Finding]:
    """Each running request slows all others."""
    for row, engine, where in _fresh(snapshot):
        running, gap_s = engine.get("running", 0.0), engine.get("inter_token_s")
        if row.bound_by != "decode" or running < MIN_RUNNING:
            continue
        gap = f", with {format_seconds(gap_s)} between two tokens" if gap_s is not None else ""
        yield Finding(
            "engine.decode_bound", "act", where,
            f"{row.name} runs {running:.0f} requests{gap}, and more of them only slow all down.",
            "The engine is bound by decoding: each step reads all weights and the KV memory of all requests.",
            evidence=tuple(_figure(engine, name, unit) for name, unit in (
                ("running", ""), ("max_running", ""), ("inter_token_s", "s"), ("decode_tokens_per_s", "tokens/s"))
                if name in engine),
            do=(SettingsChange("At the engine: weights in 8 or 4 bits, which halve or quarter what each step reads."),
                change_settings("A smaller batch: each answer is quicker, and the gateway's queue is in order of priority.",
                                {"upstreams": {row.name: {"limit": {"max": max(1, int(SMALLER_BATCH * running))}}}}),
                *([SettingsChange("At the engine: no speculative decoding at this batch; drafts take the compute that it "
                                  "lacks.")] if "spec_accepted_length" in engine else [])),
            verify=f'stayfast_engine_bound_by{{upstream="{row.name}",bound="decode"}} is 0; stayfast_tpot_seconds falls')


def find_low_limit(snapshot: Snapshot) -> Iterable[Finding]:
    """Requests wait in the gateway, and none in the engine."""
    for row, engine, where in _fresh(snapshot):
        if row.bound_by != "gateway" or engine.get("waiting", 1.0) > 0:
            continue
        places = snapshot.setting("admission", "max_in_flight")
        if row.waiting >= MIN_WAITING and row.limit:
            more = int(row.in_flight + row.waiting)
            kind = "max" if snapshot.setting("upstreams", row.name, "limit", "mode") == "fixed" else "min"
            change = change_settings(f"A limit of {more}: what waits now runs at once.",
                                     {"upstreams": {row.name: {"limit": {kind: more}}}})
            n, limit = row.waiting, f"its limit of {row.limit:.0f}"
        elif isinstance(places, int) and snapshot.n_waiting >= MIN_WAITING:
            more = places + snapshot.n_waiting
            change = change_settings(f"{more} places: what waits now runs at once.", {"admission": {"max_in_flight": more}})
            n, limit = snapshot.n_waiting, f"admission.max_in_flight of {places}"
        else:
            continue
        yield Finding(
            "engine.gateway_limit", "act", where,
            f"{n} requests wait in the gateway for {row.name}, by {limit}, and none waits in the engine.",
            "The gateway's own limit is too low: the engine would start these requests now.",
            evidence=(observe("waiting in the gateway", n, "", None, "stayfast_queue_depth"), _figure(engine, "waiting"),
                      *([_figure(engine, "running")] if "running" in engine else []),
                      *([_figure(engine, "kv_used_ratio", "ratio")] if "kv_used_ratio" in engine else [])),
            do=(change,),
            verify=f'stayfast_engine_bound_by{{upstream="{row.name}",bound="gateway"}} is 0, and none waits in the engine')


def find_preemptions(snapshot: Snapshot) -> Iterable[Finding]:
    """Engines that stop running requests for lack of memory."""
    for row, engine, where in _fresh(snapshot):
        rate = engine.get("preemptions_per_s", 0.0)
        if rate < PREEMPTS_PER_S:
            continue
        yield Finding(
            "engine.preempts", "warn", where,
            f"{row.name} preempts {format_digits(rate * 60)} running requests a minute.",
            "Its KV memory ends while answers grow. A preempted request computes its prompt and answer again, and its "
            "stream pauses.",
            evidence=(_figure(engine, "preemptions_per_s", "1/s"),
                      *([_figure(engine, "kv_used_ratio", "ratio")] if "kv_used_ratio" in engine else [])),
            do=(change_settings("Fewer requests at a time: each one then runs to its end.",
                                {"upstreams": {row.name: {"limit": {"max": max(1, int(0.8 * engine["running"]))}}}})
                if engine.get("running", 0.0) >= 2 else
                SettingsChange("At the engine: a smaller batch (max_num_seqs) or more memory for the KV cache."),),
            verify=f"/admin/snapshot upstreams: preemptions_per_s of {row.name} falls to 0")


def find_rejected_drafts(snapshot: Snapshot) -> Iterable[Finding]:
    """Speculative decoding whose drafts are mostly rejected."""
    for row, engine, where in _fresh(snapshot):
        share, length = engine.get("spec_accepted_ratio"), engine.get("spec_accepted_length")
        if share is None and length is None:
            continue
        if (share >= LEAST_ACCEPTED if share is not None else length is not None and length >= LEAST_LENGTH):
            continue
        named = "spec_accepted_ratio" if share is not None else "spec_accepted_length"
        found = f"accepts {format_share(share)} of its draft tokens" if share is not None else (
            f"gets {length:.2g} tokens from each step, its own included")
        yield Finding(
            "engine.drafts_rejected", "warn", where, f"{row.name} {found}.",
            "The draft model is too different from the main one. Below 50 % it costs more than it saves.",
            evidence=(_figure(engine, named, "ratio" if share is not None else ""),),
            do=(SettingsChange("At the engine: a larger draft model, tuned on the same texts (70 % accepted: twice as "
                               "fast), or no speculative decoding (up to a fifth faster than now)."),),
            verify=f"/admin/snapshot upstreams: {named} of {row.name} rises, or tokens_per_s without drafts")


def find_short_drafts(snapshot: Snapshot) -> Iterable[Finding]:
    """Speculative decoding for answers that are short."""
    prompts = {row.route: row for row in snapshot.prompts}
    for row, engine, where in _fresh(snapshot):
        if "spec_accepted_ratio" not in engine and "spec_accepted_length" not in engine:
            continue
        served = rows_of_upstream(snapshot, row.name, HOUR_S)
        shapes = [prompts[one.route].output_tokens for one in served if one.route in prompts and one.n >= MIN_ANSWERS]
        shapes = [shape for shape in shapes if shape.n >= MIN_ANSWERS]
        usual = max((shape.p50 or 0.0 for shape in shapes), default=0.0)
        longest = max((shape.p95 or 0.0 for shape in shapes), default=0.0)
        if not shapes or usual >= SHORT_OUTPUT or longest >= SHORT_TAIL:
            continue
        yield Finding(
            "engine.drafts_for_short", "info", where,
            f"{row.name} speculates, and its answers have {usual:.0f} tokens (p50) and {longest:.0f} (p95).",
            "Speculative decoding shortens long answers. For short ones the first token dominates, and the draft model "
            "takes memory and delays it.",
            evidence=(observe("output_tokens p50", usual, "tokens", HOUR_S), observe("output_tokens p95", longest, "tokens",
                                                                                     HOUR_S)),
            do=(SettingsChange("At the engine: no speculative decoding for this model; its memory goes to the KV cache."),),
            verify=f"stayfast_ttft_seconds of the routes of {row.name} falls, their e2e does not rise")


def find_memory_growth(snapshot: Snapshot) -> Iterable[Finding]:
    """GPU memory that grows, without a start in the last hour."""
    for row, engine, where in _fresh(snapshot):
        used, growth = engine.get("gpu_memory_bytes", 0.0), engine.get("gpu_memory_growth_bytes_per_h", 0.0)
        if growth < max(MIN_GROWTH_BYTES, GROWTH * used) or engine.get("cold_starts_1h", 0.0) > 0:
            continue
        yield Finding(
            "engine.memory_grows", "warn", where,
            f"The GPU memory of {row.name} grows by {growth / GIB:.2g} GiB an hour; {used / GIB:.3g} GiB are used.",
            "Sessions or buffers of the engine are not released. It will run out of memory.",
            evidence=(_figure(engine, "gpu_memory_growth_bytes_per_h", "bytes/h"),
                      _figure(engine, "gpu_memory_bytes", "bytes")),
            do=(SettingsChange("At the engine: a limit for the KV cache of a session, eviction of the least recently used "
                               "ones, a newer version. Until then: a restart at a quiet hour."),),
            verify=f"/admin/snapshot upstreams: gpu_memory_growth_bytes_per_h of {row.name} is about 0")


def find_cold_starts(snapshot: Snapshot) -> Iterable[Finding]:
    """Engines that start several times an hour."""
    for row in snapshot.upstreams:
        n, start_s = row.engine.get("cold_starts_1h", 0.0), row.engine.get("cold_start_s")
        if n < STARTS:
            continue
        takes = f" of {format_seconds(start_s)}" if start_s is not None else ""
        yield Finding(
            "engine.cold_starts", "act", FindingSite(upstream=row.name),
            f"{row.name} started {n:.0f} times in the last hour, with waits{takes} for the first user.",
            "It scales to zero or restarts. Each start loads container, weights and tokenizer.",
            evidence=(_figure(row.engine, "cold_starts_1h"),
                      *([_figure(row.engine, "cold_start_s", "s")] if start_s is not None else [])),
            do=(SettingsChange("At the engine's host: at least one warm replica for interactive traffic"
                               + (f"; the slowest first token falls by {format_seconds(start_s)}." if start_s else ".")),
                change_settings("Until then readiness waits for its first answer.",
                                {"upstreams": {row.name: {"probe": True}}})),
            verify=f"/admin/snapshot upstreams: cold_starts_1h of {row.name} is 0")


def find_stale_figures(snapshot: Snapshot) -> Iterable[Finding]:
    """Engines with traffic whose metrics are old, or never came although they are set up."""
    for row in snapshot.upstreams:
        age_s, is_set = row.engine.get("age_s", 0.0), snapshot.setting("upstreams", row.name, "engine_metrics")
        is_missing = not row.engine and is_set not in (None, "off")
        if (age_s <= FRESH_S and not is_missing) or row.n_attempts < MIN_ATTEMPTS:
            continue
        state = "were never read" if is_missing else f"are {format_seconds(age_s)} old"
        yield Finding(
            "engine.figures_old", "info", FindingSite(upstream=row.name),
            f"The metrics of {row.name} {state}, while it answered {row.n_attempts} requests.",
            "Its metrics address does not answer. Checks of its memory and batches are not possible.",
            evidence=(*([] if is_missing else [_figure(row.engine, "age_s", "s")]),
                      observe("attempts", row.n_attempts, "", NOW_S)),
            do=(SettingsChange("At the engine: enable its metrics (vLLM: on by default; SGLang: --enable-metrics; "
                               "llama.cpp: --metrics) and let the gateway reach them.", confidence="measured"),),
            verify=f"/admin/snapshot upstreams: age_s of {row.name} is under {FRESH_S:g} s")


def find_static_batches(snapshot: Snapshot) -> Iterable[Finding]:
    """Engines that finish a batch before they admit a request, or serve one request at a time."""
    for row in snapshot.upstreams:
        if row.batching not in ("static", "single") or row.n_attempts < MIN_ANSWERS:
            continue
        is_static = row.batching == "static"
        has_places = snapshot.setting("admission", "max_in_flight") is not None
        yield Finding(
            "engine.static_batches", "warn", FindingSite(upstream=row.name),
            f"{row.name} {'ends each batch with its longest answer' if is_static else 'answers one request at a time'}, by "
            f"the timings of {row.n_attempts} answers.",
            "Its batches are static: a long answer delays all short ones of its batch." if is_static else
            "Requests queue behind each other: the time to the first token follows the requests in flight.",
            evidence=(observe("attempts", row.n_attempts, "", NOW_S), observe("in flight", row.in_flight)),
            do=(SettingsChange("An engine with continuous batching (vLLM, SGLang, llama.cpp with several slots): 60 to 85 "
                               "% use of the GPU without waiting for the longest."),
                change_settings("Short requests never share a batch with long ones.",
                                {"admission": {"lanes": {"isolate_short": True}}}) if has_places and is_static else
                SettingsChange("With admission.max_in_flight set: admission.lanes separate short from long requests.")),
            verify=f"/admin/snapshot upstreams: batching of {row.name} is continuous; stayfast_ttft_seconds p99 falls")


def find_stragglers(snapshot: Snapshot) -> Iterable[Finding]:
    """A few very long prompts among short ones, at upstreams whose requests delay each other."""
    if snapshot.setting("admission", "lanes") is not None:
        return
    own = {row.name: row for row in snapshot.upstreams if row.engine or row.batching in ("static", "single")}
    for prompts in snapshot.prompts:
        usual, longest = prompts.input_tokens.p50 or 0.0, prompts.input_tokens.p99 or 0.0
        if prompts.n < MIN_LENGTHS or longest < LONG_INPUT or longest < LONG_FACTOR * usual:
            continue
        if snapshot.setting("routes", prompts.route, "oversize_route"):
            continue
        for traffic in snapshot.rows_by_upstream(HOUR_S):
            if traffic.route != prompts.route or traffic.upstream not in own or traffic.n < MIN_ANSWERS:
                continue
            spread = share_of(traffic.ttft_s.p99 or 0.0, traffic.ttft_s.p50 or 0.0)
            if spread < TAIL_FACTOR:
                continue
            yield Finding(
                "prompt.stragglers", "warn", FindingSite(route=prompts.route, upstream=traffic.upstream),
                f"Prompts have {usual:.0f} tokens at the p50 and {longest:.0f} at the p99, and {traffic.upstream} serves "
                "both together.",
                "One long prompt occupies the engine, and the short ones wait behind it.",
                evidence=(observe("input_tokens p50", usual, "tokens", HOUR_S),
                          observe("input_tokens p99", longest, "tokens",
                                                                                        HOUR_S),
                          observe("p99 over p50 of the first token", spread, "", HOUR_S, "stayfast_ttft_seconds")),
                do=(_separate_long(snapshot, own[traffic.upstream]),
                    SettingsChange("Or send long documents to a route of their own, or as jobs: oversize_route, "
                                   "/v1/batches.")),
                verify="stayfast_ttft_seconds p99 falls; `stayfast prove lanes`")


def _separate_long(snapshot: Snapshot, row: UpstreamRow) -> SettingsChange:
    lanes = {"long_input_tokens": int(LONG_INPUT), "max_prefills": 1}
    effect = "Short requests wait behind one long prompt at most, not behind several."
    if snapshot.setting("admission", "max_in_flight") is not None:
        return change_settings(effect, {"admission": {"lanes": lanes}})
    places = max(16, int(row.limit or row.engine.get("running", 0.0) or 64))
    return change_settings(effect, {"admission": {"max_in_flight": places, "lanes": lanes}})


_TAIL = ("latency.tail", "latency.uneven_upstreams", "hedging.off", "latency.promise_missed")
_QUEUED = (*_TAIL, "waits.queue_bound", "latency.slow_upstream", "load.near_limit")
CHECKS = (
    Check("engine.memory_bound", "requests wait at an engine whose KV memory is full", find_full_memory,
          ("engine.preempts", "engine.kv_hit_low", *_QUEUED)),
    Check("engine.compute_bound", "requests wait at an engine with free KV memory", find_full_batch, _QUEUED),
    Check("engine.prefill_bound", "prompts wait for their prefill at an engine with free memory", find_prefill_bound,
          ("engine.compute_bound", *_QUEUED)),
    Check("engine.decode_bound", "running requests slow each other at an engine", find_decode_bound,
          ("engine.compute_bound", *_QUEUED)),
    Check("engine.gateway_limit", "requests wait in the gateway for an engine that has no queue", find_low_limit,
          _QUEUED),
    Check("engine.preempts", "an engine stops running requests for lack of memory", find_preemptions,
          ("streams.stalls",)),
    Check("engine.drafts_rejected", "speculative decoding accepts under half of its draft tokens", find_rejected_drafts),
    Check("engine.drafts_for_short", "speculative decoding is used for short answers", find_short_drafts),
    Check("engine.memory_grows", "the GPU memory of an engine grows", find_memory_growth),
    Check("engine.cold_starts", "an engine starts several times an hour", find_cold_starts, _TAIL),
    Check("engine.figures_old", "the metrics of an engine are old", find_stale_figures),
    Check("engine.static_batches", "an upstream finishes a batch before it admits a request", find_static_batches,
          (*_QUEUED, "prompt.stragglers")),
    Check("prompt.stragglers", "a few very long prompts delay the short ones", find_stragglers,
          (*_TAIL, "waits.prefill_bound")),
)
