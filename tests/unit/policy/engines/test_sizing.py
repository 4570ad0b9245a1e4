"""policy.engine.sizing: what fits, and what to change."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.policy.engines.sizing import (
    LEAST_TOKENS,
    EngineSize,
    ModelShape,
    WantedSize,
    explain_misfit,
    explain_size,
    size_engine,
)

GIB = 2.0**30
LLAMA_8B = ModelShape("llama", 8_030_000_000, 32, 8, 128, int(4.6 * GIB), 131_072, 128_256, 4096)
AUTO = WantedSize(None, None, "f16", "f16", 256 << 20)


def fit(wanted: WantedSize, available_gib: float | None, n_cores: int = 8) -> EngineSize:
    return size_engine(LLAMA_8B, wanted, n_cores=n_cores, available_bytes=available_gib and available_gib * GIB)


def test_size_engine_kv_cache_grows_linearly_with_context() -> None:
    """131 kB a token; twice the tokens, twice the memory."""
    one, two = (fit(WantedSize(1, n, "f16", "f16", 0.0), 64.0) for n in (4096, 8192))
    assert one.kv_bytes_per_token == 131_072
    assert two.kv_bytes == 2 * one.kv_bytes == 8192 * 131_072


@pytest.mark.parametrize(("gib", "size"), [(64.0, (16, 8192)), (32.0, (8, 8192)), (12.0, (2, 8192)), (9.0, (2, 4096)),
                                           (6.2, (1, 1024)), (None, (16, 8192))])
def test_size_engine_auto_takes_fewer_slots_then_tokens(gib: float | None, size: tuple[int, int]) -> None:
    found = fit(AUTO, gib)
    assert (found.n_slots, found.ctx_per_slot, found.fits) == (*size, True)


def test_size_engine_set_values_stay() -> None:
    found = fit(WantedSize(12, 4096, "f16", "f16", 0.0), 8.0)
    assert (found.n_slots, found.ctx_per_slot, found.fits) == (12, 4096, False)


def test_size_engine_few_cores_have_four_slots_at_least() -> None:
    assert fit(AUTO, 64.0, n_cores=1).n_slots == 4


def test_explain_misfit_advice_fits() -> None:
    """Each number that the message names does fit."""
    wanted = WantedSize(12, 8192, "f16", "f16", 0.0)
    size = fit(wanted, 16.0)
    message = explain_misfit(LLAMA_8B, size, wanted)
    assert "needs 17.0 GiB" in message
    assert "n_slots: 9; ctx_per_slot: 6" in message
    assert "cache_type_k and cache_type_v: q8_0" in message
    assert fit(WantedSize(9, 8192, "f16", "f16", 0.0), 16.0).fits
    assert fit(WantedSize(12, 8192, "q8_0", "q8_0", 0.0), 16.0).fits


def test_explain_misfit_too_large_weights_name_a_smaller_model() -> None:
    assert "a smaller model" in explain_misfit(LLAMA_8B, fit(AUTO, 4.0), AUTO)


def test_explain_size_names_contexts_by_type() -> None:
    lines = explain_size(LLAMA_8B, fit(AUTO, 32.0), AUTO)
    assert lines[0].endswith("KV cache 131,072 bytes per token")
    assert lines[-1].startswith("contexts of 8192 tokens that fit: ")


def test_size_engine_several_processes_need_all_of_it_each() -> None:
    """Three processes of which one has a draft model; the sizes are those of one process."""
    draft = ModelShape("draft", 500_000_000, 16, 8, 64, int(0.3 * GIB), 131_072, 128_256, 1024)
    wanted = WantedSize(4, 4096, "f16", "f16", 0.0)
    one, all_of_them = fit(wanted, 64.0), fit(replace(wanted, n_processes=3, draft=draft), 64.0)
    assert (all_of_them.n_slots, all_of_them.ctx_per_slot, all_of_them.n_processes) == (4, 4096, 3)
    assert all_of_them.weight_bytes == 3 * one.weight_bytes + draft.weight_bytes(None)
    assert all_of_them.kv_bytes == 3 * one.kv_bytes + 4 * 4096 * draft.kv_bytes_per_token("f16")
    assert all_of_them.work_bytes == 3 * one.work_bytes + draft.work_bytes


def test_size_engine_several_processes_auto_is_smaller() -> None:
    """Where one process gets 8 slots, three are smaller or do not fit."""
    three = replace(AUTO, n_processes=3)
    assert fit(AUTO, 32.0).n_slots == 8
    assert (fit(three, 32.0).n_slots, fit(three, 32.0).fits) == (2, True)
    refused = fit(three, 12.0)
    assert not refused.fits
    assert "in 3 processes" in explain_misfit(LLAMA_8B, refused, three)
    assert "speculation.mode: off" in explain_misfit(LLAMA_8B, refused, three)


@given(st.floats(0.0, 512.0), st.integers(1, 64))
def test_size_engine_auto_fits_wherever_the_least_fits(gib: float, n_cores: int) -> None:
    found = fit(AUTO, gib, n_cores)
    assert found.n_slots >= 1
    assert found.ctx_per_slot >= LEAST_TOKENS
    assert found.fits or found.need_bytes - found.kv_bytes + LEAST_TOKENS * found.kv_bytes_per_token > 0.9 * gib * GIB
