"""Common names of metrics: the same figures, absent where they are unknown."""

from prometheus_client.parser import text_string_to_metric_families

from stayfast.core.events import BatchEnded, RequestDone
from stayfast.observe.fact_batch import handle_facts
from stayfast.observe.metrics.aliases import ALIASES, alias_lines
from stayfast.observe.metrics.counters import Totals
from stayfast.observe.metrics.definitions import FAMILIES, bounds_of
from stayfast.observe.metrics.job_metrics import JobMetrics
from tests.unit.observe.fact_rig import counting, done


def read(totals: Totals, engines: dict[str, dict[str, float]] | None = None) -> dict[tuple[str, str], float]:
    """Samples by name and the values of their labels."""
    text = "".join(alias_lines(totals, engines or {}))
    return {(sample.name, ",".join(sample.labels.values())): sample.value
            for family in text_string_to_metric_families(text) for sample in family.samples}


def cached(result: str) -> RequestDone:
    return done(cache=result)


def test_aliases_are_absent_where_nothing_is_known() -> None:
    """No series at all, rather than a zero."""
    assert read(Totals(bounds_of({}))) == {}


def test_aliases_count_hits_and_misses() -> None:
    totals = counting(cached("hit"), cached("semantic"), cached("miss"), cached("bypass")).totals
    found = read(totals)
    assert (found["cache_hits_total", "m"], found["cache_misses_total", "m"]) == (2, 1)


def test_aliases_of_request_durations_are_the_whole_times() -> None:
    found = read(counting(done(), done()).totals)
    assert found["llm_request_duration_seconds_count", "m,u,ok"] == 2
    assert found["llm_request_duration_seconds_sum", "m,u,ok"] == 1.0


def test_aliases_of_batches_are_their_mean() -> None:
    totals = Totals(bounds_of({}))
    handle_facts(JobMetrics(totals), [BatchEnded("m", 10, 20.0), BatchEnded("m", 10, 40.0)])
    assert read(totals)["batch_completion_time_avg", "m"] == 30.0
    assert totals.counters["stayfast_batch_seconds_squared_total"][("m",)] == 2000.0


def test_aliases_of_an_engine_are_the_figures_it_has() -> None:
    """An engine without speculative decoding has no rate of acceptance."""
    found = read(Totals(bounds_of({})), {"a": {"kv_hit_ratio": 0.7, "running": 3.0}, "b": {"spec_accepted_length": 2.5,
                                                                                       "spec_accepted_ratio": 0.5}})
    assert found == {("batch_size", "a"): 3.0, ("kv_cache_hit_rate", "a"): 0.7,
                     ("speculative_draft_acceptance_rate", "b"): 0.5, ("spec_decode_draft_acceptance_length", "b"): 2.5}


def test_aliases_have_no_name_of_the_gateway() -> None:
    names = [family.name for family in (*ALIASES, *FAMILIES)]
    assert len(set(names)) == len(names)
