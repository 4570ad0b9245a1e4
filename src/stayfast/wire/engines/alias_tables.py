"""The names of the metrics of self-hosted engines, by engine and version.

Problem: names change between versions, and a reader of one version's names finds nothing on the page of another, which looks
like an idle engine. Rule: one table for each engine and version, with a tuple of names for each figure, of which the first
on the page counts. A page belongs to the first table with a mark on it, else to the first one with any of its names. A name
has one of three forms:

    NAME                  the values of all its series
    NAME{LABEL=VALUE}     those of the series with this label
    NAME[LABEL]           the label's own text as a number, of metrics that carry facts as labels

Counters are listed with `_total`; the parser also accepts them without. A histogram's sum and count are counters.
Sources: vLLM's v1/metrics/loggers.py of 0.33, and pages of a running 0.32, its gpu_ names of 0.9, and the engine/metrics.py
of 0.6; SGLang's metrics collector of 0.5.23 and the example page in the documentation of 0.4; llama.cpp's server README;
the metrics collector of TensorRT-LLM and the custom metrics of Triton's TensorRT-LLM backend; the metrics page of TGI's
documentation. An engine that shows none of the names of a figure does not have it.
"""

from collections.abc import Iterable, Mapping
from typing import Final, Literal, NamedTuple

EngineKind = Literal["vllm", "sglang", "llamacpp", "trtllm", "tgi"]
Names = Mapping[str, tuple[str, ...]]


class AliasTable(NamedTuple):
    """One version of one engine. gauges: added over the series of several engine processes; shares: their mean; counters:
    since the engine's start; histograms: in seconds. Keys: figures of `EngineReading`. version: whose names these are.
    """

    kind: EngineKind
    version: str
    marks: tuple[str, ...]
    gauges: Names
    shares: Names
    counters: Names
    histograms: Names

    @property
    def all_names(self) -> frozenset[str]:
        """Names on the page, without labels; histograms as their buckets."""
        figures = [*self.gauges, *self.shares, *self.counters, *self.histograms]
        return self.names_of(figures) | frozenset(self.marks)

    def names_of(self, figures: Iterable[str]) -> frozenset[str]:
        """Names on the page of some figures."""
        wanted = frozenset(figures)
        listed = [form.partition("{")[0].partition("[")[0] for part in (self.gauges, self.shares, self.counters)
                  for figure, forms in part.items() if figure in wanted for form in forms]
        buckets = [f"{name}_bucket" for figure, names in self.histograms.items() if figure in wanted for name in names]
        return frozenset(listed + buckets)


_VLLM_LOAD: Final[Names] = {
    "running": ("vllm:num_requests_running",),
    "waiting": ("vllm:num_requests_waiting",),
    "kv_tokens": ("vllm:cache_config_info[kv_cache_size_tokens]",),
    "kv_blocks": ("vllm:cache_config_info[num_gpu_blocks]",),
}
_VLLM_COUNTERS: Final[Names] = {
    "n_preempted": ("vllm:num_preemptions_total",),
    "n_drafts": ("vllm:spec_decode_num_drafts_total",),
    "n_draft_tokens": ("vllm:spec_decode_num_draft_tokens_total",),
    "n_accepted": ("vllm:spec_decode_num_accepted_tokens_total",),
    "n_prompt_tokens": ("vllm:prompt_tokens_total",),
    "n_output_tokens": ("vllm:generation_tokens_total",),
    "prefill_s": ("vllm:request_prefill_time_seconds_sum",),
    "token_gaps_s": ("vllm:inter_token_latency_seconds_sum", "vllm:time_per_output_token_seconds_sum"),
    "n_token_gaps": ("vllm:inter_token_latency_seconds_count", "vllm:time_per_output_token_seconds_count"),
}
_VLLM_TIMES: Final[Names] = {
    "queue": ("vllm:request_queue_time_seconds",), "prefill": ("vllm:request_prefill_time_seconds",),
    "decode": ("vllm:request_decode_time_seconds",),
}
_SGLANG_LOAD: Final[Names] = {
    "running": ("sglang:num_running_reqs",),
    "waiting": ("sglang:num_queue_reqs",),
    "kv_tokens": ("sglang:max_total_num_tokens",),
    "kv_blocks": ("sglang:num_pages", "sglang:cache_config_info[num_pages]"),
    "decode_tokens_per_s": ("sglang:gen_throughput",),
}
_SGLANG_SHARES: Final[Names] = {
    "kv_used_ratio": ("sglang:token_usage",), "kv_hit_ratio": ("sglang:cache_hit_rate",),
    "spec_accepted_ratio": ("sglang:spec_accept_rate",), "spec_accepted_length": ("sglang:spec_accept_length",),
    "block_tokens": ("sglang:page_size", "sglang:cache_config_info[page_size]"),
}
_SGLANG_COUNTERS: Final[Names] = {
    "n_prompt_tokens": ("sglang:prompt_tokens_total",), "n_cached_tokens": ("sglang:cached_tokens_total",),
    "n_output_tokens": ("sglang:generation_tokens_total",),
    "n_preempted": ("sglang:num_retracted_requests_total", "sglang:num_retracted_reqs_total"),
    "token_gaps_s": ("sglang:inter_token_latency_seconds_sum", "sglang:time_per_output_token_seconds_sum"),
    "n_token_gaps": ("sglang:inter_token_latency_seconds_count", "sglang:time_per_output_token_seconds_count"),
}
_LLAMA_LOAD: Final[Names] = {"running": ("llamacpp:requests_processing",), "waiting": ("llamacpp:requests_deferred",)}
_LLAMA_COUNTERS: Final[Names] = {
    "n_drafts": ("llamacpp:spec_decode_num_drafts_total",),
    "n_draft_tokens": ("llamacpp:spec_decode_num_draft_tokens_total",),
    "n_accepted": ("llamacpp:spec_decode_num_accepted_tokens_total",),
    "n_computed_tokens": ("llamacpp:prompt_tokens_total",),  # without those of the prompt cache
    "n_cached_tokens": ("llamacpp:prompt_tokens_cached_total",),
    "prefill_s": ("llamacpp:prompt_seconds_total",),
    "n_output_tokens": ("llamacpp:tokens_predicted_total",),
    "token_gaps_s": ("llamacpp:tokens_predicted_seconds_total",), "n_token_gaps": ("llamacpp:tokens_predicted_total",),
}
_TRT_BLOCKS: Final = "nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="
_TRT_REQUESTS: Final = "nv_trt_llm_request_metrics{request_type="

TABLES: Final = (
    AliasTable(
        "vllm", "0.33", ("vllm:kv_cache_usage_perc", "vllm:prefix_cache_queries_total", "vllm:prefix_cache_queries"),
        {**_VLLM_LOAD, "n_awake": ("vllm:engine_sleep_state{sleep_state=awake}",)},
        {"kv_used_ratio": ("vllm:kv_cache_usage_perc",), "block_tokens": ("vllm:cache_config_info[block_size]",)},
        {**_VLLM_COUNTERS, "n_prefix_tokens": ("vllm:prefix_cache_queries_total",),
         "n_prefix_hits": ("vllm:prefix_cache_hits_total",), "n_cached_tokens": ("vllm:prompt_tokens_cached_total",),
         "n_computed_tokens": ("vllm:request_prefill_kv_computed_tokens_sum",)},  # of ended requests, as their prefill times
        _VLLM_TIMES),
    AliasTable(
        "vllm", "0.9", ("vllm:gpu_prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries"),
        _VLLM_LOAD,
        {"kv_used_ratio": ("vllm:gpu_cache_usage_perc",), "block_tokens": ("vllm:cache_config_info[block_size]",)},
        {**_VLLM_COUNTERS, "n_prefix_tokens": ("vllm:gpu_prefix_cache_queries_total",),
         "n_prefix_hits": ("vllm:gpu_prefix_cache_hits_total",)},
        _VLLM_TIMES),
    AliasTable(
        "vllm", "0.6", ("vllm:gpu_cache_usage_perc", "vllm:num_requests_swapped", "spec_decode_draft_acceptance_length",
                        "vllm:spec_decode_draft_acceptance_length"),
        {**_VLLM_LOAD, "decode_tokens_per_s": ("vllm:avg_generation_throughput_toks_per_s",)},
        {"kv_used_ratio": ("vllm:gpu_cache_usage_perc",), "block_tokens": ("vllm:cache_config_info[block_size]",),
         "kv_hit_ratio": ("vllm:gpu_prefix_cache_hit_rate",),
         "spec_accepted_ratio": ("vllm:spec_decode_draft_acceptance_rate",),
         "spec_accepted_length": ("vllm:spec_decode_draft_acceptance_length", "spec_decode_draft_acceptance_length")},
        _VLLM_COUNTERS, _VLLM_TIMES),
    AliasTable(
        "sglang", "0.5.23", ("sglang:max_total_num_tokens", "sglang:utilization", "sglang:page_size",
                             "sglang:cache_config_info", "sglang:spec_accept_rate",
                             "sglang:inter_token_latency_seconds_count", "sglang:realtime_tokens_total"),
        _SGLANG_LOAD, _SGLANG_SHARES, _SGLANG_COUNTERS, {"queue": ("sglang:queue_time_seconds",)}),
    AliasTable(
        "sglang", "0.4", ("sglang:num_used_tokens", "sglang:time_per_output_token_seconds_count"),
        {name: _SGLANG_LOAD[name] for name in ("running", "waiting", "decode_tokens_per_s")},
        {name: _SGLANG_SHARES[name] for name in ("kv_used_ratio", "kv_hit_ratio", "spec_accepted_length")},
        {name: _SGLANG_COUNTERS[name] for name in ("n_prompt_tokens", "n_cached_tokens", "n_output_tokens", "token_gaps_s",
                                                   "n_token_gaps")},
        {}),
    AliasTable(
        "llamacpp", "b4000", ("llamacpp:kv_cache_usage_ratio", "llamacpp:kv_cache_tokens"),
        _LLAMA_LOAD, {"kv_used_ratio": ("llamacpp:kv_cache_usage_ratio",)}, _LLAMA_COUNTERS, {}),
    AliasTable("llamacpp", "b11549", ("llamacpp:requests_processing",), _LLAMA_LOAD, {}, _LLAMA_COUNTERS, {}),
    AliasTable(
        "trtllm", "1.2", ("trtllm_num_requests_running", "trtllm_num_requests_waiting"),
        {"running": ("trtllm_num_requests_running",), "waiting": ("trtllm_num_requests_waiting",),
         "max_running": ("trtllm_max_num_active_requests", "trtllm_max_batch_size_runtime", "trtllm_max_batch_size_static"),
         "kv_blocks": ("trtllm_kv_cache_max_blocks",), "kv_used_blocks": ("trtllm_kv_cache_used_blocks",)},
        {"kv_used_ratio": ("trtllm_kv_cache_utilization",), "kv_hit_ratio": ("trtllm_kv_cache_hit_rate",),
         "block_tokens": ("trtllm_kv_cache_tokens_per_block",),
         "spec_accepted_length": ("trtllm_spec_decode_acceptance_length",)},
        {"n_block_hits": ("trtllm_kv_cache_reused_blocks_total",),
         "n_block_misses": ("trtllm_kv_cache_missed_blocks_total",),
         "n_draft_tokens": ("trtllm_spec_decode_drafted_tokens_total", "trtllm_spec_decode_num_draft_tokens_total"),
         "n_accepted": ("trtllm_spec_decode_accepted_tokens_total", "trtllm_spec_decode_num_accepted_tokens_total"),
         "n_prompt_tokens": ("trtllm_prompt_tokens_total",), "n_cached_tokens": ("trtllm_prompt_cached_tokens_total",),
         "n_output_tokens": ("trtllm_generation_tokens_total",), "prefill_s": ("trtllm_request_prefill_time_seconds_sum",),
         "token_gaps_s": ("trtllm_time_per_output_token_seconds_sum",),
         "n_token_gaps": ("trtllm_time_per_output_token_seconds_count",)},
        {"queue": ("trtllm_request_queue_time_seconds",), "prefill": ("trtllm_request_prefill_time_seconds",),
         "decode": ("trtllm_request_decode_time_seconds",)}),
    AliasTable(
        "trtllm", "1.0", ("trtllm_kv_cache_utilization", "trtllm_request_success_total"),
        {},
        {"kv_used_ratio": ("trtllm_kv_cache_utilization",), "kv_hit_ratio": ("trtllm_kv_cache_hit_rate",)},
        {"token_gaps_s": ("trtllm_time_per_output_token_seconds_sum",),
         "n_token_gaps": ("trtllm_time_per_output_token_seconds_count",)},
        {"queue": ("trtllm_request_queue_time_seconds",)}),
    AliasTable(
        "trtllm", "triton", ("nv_trt_llm_request_metrics", "nv_trt_llm_kv_cache_block_metrics"),
        {"running": (f"{_TRT_REQUESTS}scheduled}}",), "waiting": (f"{_TRT_REQUESTS}waiting}}",),
         "max_running": (f"{_TRT_REQUESTS}max}}",), "kv_blocks": (f"{_TRT_BLOCKS}max}}",),
         "kv_used_blocks": (f"{_TRT_BLOCKS}used}}",)},
        {"kv_used_ratio": (f"{_TRT_BLOCKS}fraction}}",), "block_tokens": (f"{_TRT_BLOCKS}tokens_per}}",)},
        {"n_prompt_tokens": ("nv_llm_input_token_len_sum",), "n_output_tokens": ("nv_llm_output_token_len_sum",)},
        {}),
    AliasTable(
        "tgi", "3.3", ("tgi_queue_size", "tgi_batch_current_size"),
        {"running": ("tgi_batch_current_size",), "waiting": ("tgi_queue_size",)},
        {},
        {"n_prompt_tokens": ("tgi_request_input_length_sum",), "n_output_tokens": ("tgi_request_generated_tokens_sum",),
         "prefill_s": ("tgi_batch_inference_duration_sum{method=prefill}",),
         "n_skipped_tokens": ("tgi_request_skipped_tokens_sum",),
         "token_gaps_s": ("tgi_request_mean_time_per_token_duration_sum",),
         "n_token_gaps": ("tgi_request_mean_time_per_token_duration_count",)},
        {"queue": ("tgi_request_queue_duration",)}),
)
