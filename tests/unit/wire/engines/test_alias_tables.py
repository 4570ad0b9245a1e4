"""The tables of engines' metric names."""

from hypothesis import given
from hypothesis import strategies as st

from stayfast.core.engine_signals import EngineSignals
from stayfast.lab.engine_pages import recorded_pages
from stayfast.wire.engines.alias_tables import TABLES
from stayfast.wire.engines.page import MetricsPage, split_page
from stayfast.wire.engines.reading import parse_engine_metrics

FIGURES = set(EngineSignals.__struct_fields__) | {"kv_hit_ratio", "kv_blocks", "kv_used_blocks", "n_awake"}


def test_tables_gauges_and_shares_are_known_figures() -> None:
    """A figure with a misspelt name would be read and never shown."""
    assert {figure for table in TABLES for part in (table.gauges, table.shares) for figure in part} <= FIGURES


def test_tables_each_version_has_recorded_pages() -> None:
    assert {(page.shown.kind, page.shown.version) for page in recorded_pages()} == {
        (table.kind, table.version) for table in TABLES}


def test_tables_ranks_of_one_process_are_counted_once() -> None:
    page = "".join(f'sglang:num_running_reqs{{dp_rank="{dp}",tp_rank="{tp}"}} {3 + dp}\n' for dp in (0, 1) for tp in (0, 1))
    reading = parse_engine_metrics(page)
    assert reading is not None
    assert reading.gauges["running"] == 7


@given(st.text(alphabet="ab\n", max_size=300))
def test_split_page_pieces_are_the_page(text: str) -> None:
    assert "".join(split_page(text)) == text


def test_page_in_pieces_is_the_page_at_once() -> None:
    (text,) = [page.after for page in recorded_pages() if page.name == "vllm-0.33"]
    whole, pieces = MetricsPage(), MetricsPage()
    whole.add(text * 4)
    for piece in split_page(text * 4):
        pieces.add(piece)
    assert whole.values("vllm:num_requests_running") == pieces.values("vllm:num_requests_running")
    assert len(whole.values("vllm:num_requests_running")) == 8
