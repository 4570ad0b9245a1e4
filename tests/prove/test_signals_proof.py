"""The proof of engine signals holds, and notices a table whose names are wrong."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from stayfast.lab.claims.signals import SignalsClaim
from stayfast.lab.harness.claim import Conditions, Verdict
from stayfast.wire.engines.alias_tables import TABLES, AliasTable


def run(*tables: AliasTable) -> tuple[Verdict, str]:
    result = asyncio.run(SignalsClaim(tables or TABLES).run(Conditions(is_quick=True)))
    return result.verdict, " ".join(result.notes)


def test_signals_proof_with_the_tables_holds() -> None:
    assert run() == (Verdict.HOLDS, "")


@pytest.mark.parametrize(("kind", "version", "broken", "field"), [
    ("vllm", "0.33", {"shares": {"kv_used_ratio": ("vllm:gpu_cache_usage_perc",)}}, "vllm-0.33 kv_used_ratio"),
    ("trtllm", "1.0", {"shares": {"kv_used_ratio": ("trtllm_kv_cache_usage",)}}, "trtllm-1.0 kv_used_ratio"),
    ("sglang", "0.5.23", {"gauges": {"waiting": ("sglang:num_running_reqs",)}}, "sglang-0.5.23 without /v1/loads waiting"),
    ("tgi", "3.3", {"histograms": {}}, "tgi-3.3 queue_p95_s")])
def test_signals_proof_with_a_broken_table_falls_short(kind: str, version: str, broken: Mapping[str, Any], field: str
                                                       ) -> None:
    """As production-stack does with vLLM 0.33: old names, which that version does not have."""
    tables = [table._replace(**broken) if (table.kind, table.version) == (kind, version) else table for table in TABLES]
    verdict, notes = run(*tables)
    assert verdict is Verdict.FALLS_SHORT
    assert field in notes


def test_signals_proof_without_a_version_falls_short() -> None:
    """Pages of a version that has no table are not read as another's."""
    verdict, notes = run(*[table for table in TABLES if table.version != "0.9"])
    assert verdict is Verdict.FALLS_SHORT
    assert "vllm-0.9" in notes
