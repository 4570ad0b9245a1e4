"""stores.static_embedder and stores.safetensors: the table of the installed package, and damaged files."""

import json
import sys
from pathlib import Path
from time import process_time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from stayfast.stores import static_embedder
from stayfast.stores.embedder import NoEmbedder
from stayfast.stores.safetensors import map_safetensors, read_safetensors
from stayfast.stores.static_embedder import StaticEmbedder, installed_static_weights, load_static_embedder

EMBEDDER = load_static_embedder()
QUESTION = "I tried to top up my card with cash but the money is not there, what now?"


def write_safetensors(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """A safetensors file of float16 arrays."""
    header, body = {}, b""
    for name, array in arrays.items():
        header[name] = {"dtype": "F16", "shape": array.shape, "data_offsets": [len(body), len(body) + array.nbytes]}
        body += array.astype(np.float16).tobytes()
    head = json.dumps(header).encode()
    path.write_bytes(len(head).to_bytes(8, "little") + head + body)


def test_static_embedder_mean_of_rows_is_the_vector_of_the_text() -> None:
    folder = installed_static_weights()
    table = read_safetensors(folder / "weights" / "l2_supercat_256.safetensors")["embedding.weight"]
    tokenizer = Tokenizer.from_file(str(folder / "tokenizers" / "l2_supercat_tokenizer_config.json"))
    mean = table[tokenizer.encode(QUESTION, add_special_tokens=False).ids].mean(axis=0)
    np.testing.assert_allclose(EMBEDDER.embed([QUESTION])[0], mean / np.linalg.norm(mean), atol=1e-5)


def test_static_embedder_similar_question_is_nearer_than_another() -> None:
    asked, same, other = EMBEDDER.embed(["How do I reset my password?", "I forgot my password, how can I change it",
                                         "what is the exchange rate for dollars"])
    assert asked @ same > asked @ other + 0.2


@given(st.lists(st.text(), max_size=4))
@settings(max_examples=100, deadline=None)
def test_static_embedder_any_text_has_a_row_of_length_1(texts: list[str]) -> None:
    rows = EMBEDDER.embed(texts)
    assert rows.shape == (len(texts), EMBEDDER.n_dims)
    assert rows.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-5)


def test_static_embedder_long_text_is_cut_and_not_whole() -> None:
    long = "word " * 100_000
    assert not EMBEDDER.is_whole(long)
    assert EMBEDDER.is_whole(QUESTION)
    np.testing.assert_array_equal(EMBEDDER.embed([long]), EMBEDDER.embed([long[:EMBEDDER.max_chars]]))


def test_static_embedder_question_takes_well_under_a_millisecond_of_cpu() -> None:
    EMBEDDER.embed([QUESTION])
    took = []
    for _ in range(5):
        began = process_time()
        for _ in range(200):
            EMBEDDER.embed([QUESTION])
        took.append((process_time() - began) / 200)
    assert min(took) < 0.0005  # 0.00003 on an idle core


def test_static_embedder_package_is_never_imported() -> None:
    assert "wordllama" not in sys.modules
    assert EMBEDDER.n_dims == 256


def test_load_static_embedder_without_weights_is_an_error_with_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(static_embedder, "PACKAGE", "no_such_package_of_weights")
    with pytest.raises(NoEmbedder, match="pip install"):
        load_static_embedder()


def test_load_static_embedder_damaged_weights_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "l2_supercat_256.safetensors").write_bytes(b"\xff" * 100)
    monkeypatch.setattr(static_embedder, "installed_static_weights", lambda: tmp_path)
    with pytest.raises(NoEmbedder, match="cannot be used"):
        load_static_embedder()


def test_static_embedder_other_table_has_its_own_dims(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_file(str(installed_static_weights() / "tokenizers" / "l2_supercat_tokenizer_config.json"))
    write_safetensors(tmp_path / "t", {"rows": np.random.default_rng(1).normal(size=(tokenizer.get_vocab_size(), 8))})
    small = StaticEmbedder(map_safetensors(tmp_path / "t")["rows"], tokenizer, "small")
    assert small.n_dims == 8
    assert small.embed(["a b c"]).shape == (1, 8)
    assert small.id != EMBEDDER.id


@pytest.mark.parametrize("data", [b"1234567", b"\xff" * 8, (2).to_bytes(8, "little") + b"{x"])
def test_map_safetensors_malformed_file_is_a_value_error(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "bad").write_bytes(data)
    with pytest.raises(ValueError, match="safetensors file"):
        map_safetensors(tmp_path / "bad")
