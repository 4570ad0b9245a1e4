"""Pages of engines, and the figures of two of them."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.core.snapshot import ENGINE_FIGURES
from stayfast.wire.engines.reading import bucket_quantile, compare_readings, parse_engine_metrics

VLLM = """# HELP vllm:num_requests_running Number of requests
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a/b"} 12.0
vllm:num_requests_running{engine="1",model_name="a/b"} 3.0
vllm:num_requests_waiting{engine="0",model_name="a/b"} 5
vllm:kv_cache_usage_perc{engine="0",model_name="a \\"b\\", {c}"} 0.8
vllm:kv_cache_usage_perc{engine="1",model_name="a/b"} 0.6
vllm:prefix_cache_queries_total{engine="0"} 1000
vllm:prefix_cache_hits_total{engine="0"} 400
vllm:num_preemptions_total{engine="0"} 7
vllm:spec_decode_num_drafts_total 100
vllm:spec_decode_num_draft_tokens_total 300
vllm:spec_decode_num_accepted_tokens_total 200
vllm:request_queue_time_seconds_bucket{engine="0",le="0.3"} 90
vllm:request_queue_time_seconds_bucket{engine="0",le="1.0"} 100
vllm:request_queue_time_seconds_bucket{engine="0",le="+Inf"} 100
vllm:request_queue_time_seconds_sum{engine="0"} 12.5
process_start_time_seconds 1.7e+09
DCGM_FI_DEV_FB_USED{gpu="0"} 1000
DCGM_FI_DEV_FB_USED{gpu="1"} 24
"""
LATER = VLLM.replace(" 1000\nvllm:prefix_cache_hits", " 3000\nvllm:prefix_cache_hits").replace("} 400", "} 1600").replace(
    "} 7", "} 17").replace("drafts_total 100", "drafts_total 200").replace("draft_tokens_total 300", "draft_tokens_total 600"
    ).replace("accepted_tokens_total 200", "accepted_tokens_total 260").replace('le="1.0"} 100', 'le="1.0"} 200').replace(
    'le="+Inf"} 100', 'le="+Inf"} 200')


def test_parse_vllm_page_has_its_figures() -> None:
    reading = parse_engine_metrics(VLLM)
    assert reading is not None
    assert reading.kind == "vllm"
    assert reading.gauges == pytest.approx({"running": 15, "waiting": 5, "kv_used_ratio": 0.7})
    assert reading.memory_bytes == 1024 << 20
    assert reading.started_at == 1.7e9
    assert reading.buckets["queue"] == {0.3: 90, 1.0: 100, inf: 100}


def test_parse_old_vllm_names_are_known() -> None:
    reading = parse_engine_metrics("vllm:gpu_cache_usage_perc 0.5\nvllm:gpu_prefix_cache_queries_total 10\n"
                                   "vllm:gpu_prefix_cache_hits_total 5\nvllm:num_requests_running 1\n")
    assert reading is not None
    assert reading.gauges["kv_used_ratio"] == 0.5
    assert reading.counters == {"n_prefix_tokens": 10, "n_prefix_hits": 5}


def test_parse_sglang_and_llamacpp_pages_are_recognised() -> None:
    sglang = parse_engine_metrics("sglang:num_running_reqs{tp_rank=\"0\"} 4\nsglang:token_usage 0.25\n"
                                  "sglang:spec_accept_length 2.5\n")
    llama = parse_engine_metrics("llamacpp:requests_processing 2\nllamacpp:requests_deferred 3\n")
    assert sglang is not None
    assert llama is not None
    assert (sglang.kind, sglang.gauges) == ("sglang", {"running": 4, "kv_used_ratio": 0.25, "spec_accepted_length": 2.5})
    assert (llama.kind, llama.gauges) == ("llamacpp", {"running": 2, "waiting": 3})


@pytest.mark.parametrize("page", ["", "<html>404</html>", "python_gc_objects_collected_total 5\n",
                                  "vllm:num_requests_running NaN\n", "vllm:num_requests_running\n"])
def test_parse_other_pages_are_none(page: str) -> None:
    assert parse_engine_metrics(page) is None


def test_parse_page_of_another_engine_than_set_is_none() -> None:
    assert parse_engine_metrics(VLLM, "sglang") is None


def test_compare_readings_counters_are_rates_and_ratios() -> None:
    before, after = parse_engine_metrics(VLLM), parse_engine_metrics(LATER)
    assert before is not None
    assert after is not None
    figures = compare_readings(before, after, 10.0)
    assert figures["kv_hit_ratio"] == pytest.approx(1200 / 2000)
    assert figures["spec_accepted_ratio"] == pytest.approx(0.2)
    assert figures["spec_accepted_length"] == pytest.approx(1.6)
    assert figures["preemptions_per_s"] == pytest.approx(1.0)
    assert figures["queue_p95_s"] == pytest.approx(0.3 + 0.7 * 0.95)
    assert set(figures) <= set(ENGINE_FIGURES)


def test_compare_readings_after_a_restart_has_gauges_only() -> None:
    before, after = parse_engine_metrics(LATER), parse_engine_metrics(VLLM)
    assert before is not None
    assert after is not None
    assert compare_readings(before, after, 10.0) == after.gauges


def test_compare_readings_quiet_engine_has_no_hit_ratio() -> None:
    reading = parse_engine_metrics(VLLM)
    assert reading is not None
    figures = compare_readings(reading, reading, 10.0)
    assert "kv_hit_ratio" not in figures
    assert figures["preemptions_per_s"] == 0.0


@pytest.mark.parametrize(("after", "quantile"), [
    ({}, None), ({1.0: 0.0, inf: 0.0}, None), ({1.0: 0.0, inf: 5.0}, 1.0), ({1.0: 10.0, inf: 10.0}, 0.95)])
def test_bucket_quantile_is_interpolated(after: dict[float, float], quantile: float | None) -> None:
    assert bucket_quantile(after, {}, 0.95) == quantile


@given(st.lists(st.tuples(st.sampled_from(["vllm:num_requests_running", "vllm:kv_cache_usage_perc",
                                           "vllm:request_queue_time_seconds_bucket", "sglang:token_usage"]),
                          st.text(max_size=20), st.text(max_size=12)), max_size=10), st.text(max_size=60))
def test_parse_any_text_never_raises(lines: list[tuple[str, str, str]], text: str) -> None:
    page = "\n".join([text, *[f"{name}{{{labels}}} {value}" for name, labels, value in lines]])
    reading = parse_engine_metrics(page)
    if reading is not None:
        assert all(value >= 0 for value in reading.gauges.values())
        compare_readings(reading, reading, 5.0)


@given(st.dictionaries(st.floats(0.001, 100), st.integers(0, 100), max_size=8),
       st.dictionaries(st.floats(0.001, 100), st.integers(0, 100), max_size=8), st.floats(0, 1))
def test_bucket_quantile_any_counts_is_within_the_bounds(
        after: dict[float, float], before: dict[float, float], q: float) -> None:
    found = bucket_quantile(after, before, q)
    assert found is None or 0 <= found <= max(after)
