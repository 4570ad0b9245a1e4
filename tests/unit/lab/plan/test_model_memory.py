"""lab.plan.model_memory: shapes from files, and what fits."""

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.engine.model_file import UnreadableModel, read_shape, shape_of_config
from stayfast.lab.plan.model_memory import plan_memory

LLAMA_8B = {"num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8,
            "intermediate_size": 14336, "vocab_size": 128256}


def test_shape_of_config_parameters_are_those_of_llama_8b() -> None:
    assert shape_of_config(LLAMA_8B, "llama").n_params == pytest.approx(8.03e9, rel=0.01)


def test_shape_of_config_without_layers_is_refused() -> None:
    with pytest.raises(UnreadableModel, match="num_hidden_layers"):
        shape_of_config({}, "x")


def test_plan_memory_follows_the_formulas() -> None:
    """Llama 8B in f16 on 80 GB: 131 kB of KV a token."""
    shape = shape_of_config(LLAMA_8B, "llama")
    plan = plan_memory(shape, dtype="f16", kv="f16", live_tokens=2000, memory_bytes=80e9, bandwidth=3.35e12)
    assert plan.kv_bytes_per_token == 131_072
    assert plan.most_concurrent == int((72e9 - plan.weight_bytes - 1e9) / (131_072 * 2000))
    assert plan.tokens_per_s_alone == pytest.approx(3.35e12 / (plan.weight_bytes + 131_072 * 2000))
    half = plan_memory(shape, dtype="q8_0", kv="q8_0", live_tokens=2000, memory_bytes=80e9, bandwidth=None)
    assert half.weight_bytes == pytest.approx(plan.weight_bytes * 0.53125)
    assert half.most_concurrent is not None
    assert half.most_concurrent > 2 * plan.most_concurrent
    assert half.tokens_per_s_alone is None


def test_plan_memory_too_large_model_has_no_room() -> None:
    shape = shape_of_config(LLAMA_8B, "llama")
    assert plan_memory(shape, dtype="f16", kv="f16", live_tokens=2000, memory_bytes=8e9, bandwidth=1e12).most_concurrent == 0


def test_read_shape_gguf_file_of_its_own_library(tmp_path: Path) -> None:
    """Written by ggml's own package."""
    gguf = pytest.importorskip("gguf")
    numpy = pytest.importorskip("numpy")
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_name("tiny")
    writer.add_block_count(4)
    writer.add_head_count(8)
    writer.add_head_count_kv(2)
    writer.add_embedding_length(256)
    writer.add_array("tokenizer.ggml.tokens", ["a", "b"])
    writer.add_tensor("w", numpy.zeros((16, 256), dtype=numpy.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    shape = read_shape(path)
    assert (shape.name, shape.n_params, shape.n_layers, shape.n_kv_heads, shape.head_size) == ("tiny", 4096, 4, 2, 32)
    assert shape.file_bytes == path.stat().st_size


def test_read_shape_config_file(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(msgspec.json.encode(LLAMA_8B))
    assert read_shape(tmp_path / "config.json").n_layers == 32


@given(st.binary(max_size=200))
def test_read_shape_damaged_gguf_is_refused(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("m") / "broken.gguf"
    path.write_bytes(b"GGUF" + data)
    with pytest.raises(UnreadableModel):
        read_shape(path)
