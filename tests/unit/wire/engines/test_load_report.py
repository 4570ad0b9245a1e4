"""What engines report as JSON beside their metrics."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.wire.engines.load_report import add_report
from stayfast.wire.engines.reading import EngineReading

SGLANG, LLAMA = EngineReading("sglang", {"running": 1.0}), EngineReading("llamacpp", {"running": 1.0})


def test_loads_of_all_ranks_are_added() -> None:
    ranks = [{"num_running_reqs": 3, "num_waiting_uncached_tokens": 500, "total_prefill_uncached_tokens": 900,
              "total_prefill_busy_us": 2_000_000}] * 2
    found = add_report(SGLANG, json.dumps({"version": "0.5.23", "loads": ranks}).encode())
    assert (found.gauges, found.counters) == ({"running": 6.0, "waiting_tokens": 1000.0},
                                              {"n_computed_tokens": 1800.0, "prefill_s": 4.0})
    assert found.version == "0.5.23"


def test_loads_field_that_a_rank_lacks_is_unknown() -> None:
    found = add_report(SGLANG, b'{"loads": [{"num_waiting_reqs": 3}, {"num_running_reqs": 2}]}')
    assert found.gauges == {"running": 1.0}


def test_props_have_slots_and_capacity() -> None:
    found = add_report(LLAMA, b'{"total_slots": 4, "is_sleeping": true, "default_generation_settings": {"n_ctx": 2048}}')
    assert found.gauges == {"running": 1.0, "max_running": 4.0, "kv_tokens": 8192.0, "is_sleeping": 1.0}


@pytest.mark.parametrize("body", [b"", b"[]", b"<html>", b'{"loads": []}', b'{"loads": [3]}', b'{"loads": {"a": 1}}'])
@pytest.mark.parametrize("reading", [SGLANG, LLAMA])
def test_report_of_another_form_changes_nothing(reading: EngineReading, body: bytes) -> None:
    assert add_report(reading, body) == reading


_JSON = st.recursive(st.none() | st.booleans() | st.floats(allow_nan=False) | st.integers() | st.text(max_size=5),
                     lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(
                         ["loads", "num_running_reqs", "total_slots", "version", "default_generation_settings", "n_ctx"]),
                         inner, max_size=4), max_leaves=12)


@given(_JSON, st.sampled_from([SGLANG, LLAMA]))
def test_report_any_json_has_figures_of_at_least_0(report: Any, reading: EngineReading) -> None:
    found = add_report(reading, json.dumps(report).encode())
    assert all(value >= 0 for value in [*found.gauges.values(), *found.counters.values()])
