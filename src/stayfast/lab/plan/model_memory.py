"""How many requests of a model fit into a machine's memory, and how fast memory bandwidth lets it decode.

    weights          = parameters * bytes(dtype), or the size of a GGUF file
    KV per token     = 2 * layers * KV heads * head size * bytes(kv)             keys and values
    most concurrent  = (memory * 0.9 - weights - overhead) / (KV per token * tokens of a running request)
    tokens per s     = B * bandwidth / (weights + B * KV per token * tokens)      B answers at a time; each step reads all

Source: the shapes in GGUF metadata or Hugging Face's config.json; block sizes of ggml's formats.
When wrong: mixtures of experts read only some of their weights for a token, sliding windows and latent attention keep less
KV than this; compute, not bandwidth, bounds large batches and prefill. Engines need more or less overhead than assumed.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec

BYTES_OF: Final[Mapping[str, float]] = {  # of one value; ggml's blocks of 32 values have a scale of 2 bytes
    "f32": 4.0, "bf16": 2.0, "f16": 2.0, "fp8": 1.0, "int8": 1.0, "q8_0": 1.0625, "q6_k": 0.8203, "q5_0": 0.6875,
    "q5_k": 0.6875, "q4_0": 0.5625, "q4_k": 0.5625, "awq": 0.53, "int4": 0.5}
USABLE: Final = 0.9
OVERHEAD_BYTES: Final = 1e9
_GGUF_SCALARS: Final = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_GGUF_STRING, _GGUF_ARRAY = 8, 9
_MOST_ENTRIES: Final = 10_000_000  # of an array or table of a damaged file


class UnreadableModel(ValueError):
    """The file is no GGUF file and no config.json, or lacks a shape."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """n_params: with a config.json, estimated from its shapes. file_bytes: None without weights in the file."""

    name: str
    n_params: int
    n_layers: int
    n_kv_heads: int
    head_size: int
    file_bytes: int | None = None

    def weight_bytes(self, dtype: str | None) -> float:
        """Memory of the weights. dtype: in BYTES_OF; None: as in the file, else f16."""
        if dtype is None and self.file_bytes is not None:
            return float(self.file_bytes)
        return self.n_params * BYTES_OF[dtype or "f16"]

    def kv_bytes_per_token(self, kv: str) -> float:
        return 2 * self.n_layers * self.n_kv_heads * self.head_size * BYTES_OF[kv]


class MemoryPlan(msgspec.Struct, frozen=True):
    """The result, in bytes, tokens and tokens per second. None: no memory size, or no bandwidth, was given."""

    model: str
    n_params: int
    weight_bytes: float
    kv_bytes_per_token: float
    live_tokens: float
    kv_bytes_per_request: float
    most_concurrent: int | None = None
    tokens_per_s_alone: float | None = None
    tokens_per_s_full: float | None = None  # of all answers together, with `most_concurrent` of them


def plan_memory(shape: ModelShape, *, dtype: str | None, kv: str, live_tokens: float, memory_bytes: float | None,
                bandwidth: float | None) -> MemoryPlan:
    """bandwidth: bytes per second. live_tokens: prompt and answer so far of a running request, on average."""
    weights, per_token = shape.weight_bytes(dtype), shape.kv_bytes_per_token(kv)
    each = per_token * live_tokens
    most = None if memory_bytes is None else max(0, int((memory_bytes * USABLE - weights - OVERHEAD_BYTES) / each))
    alone = None if bandwidth is None else bandwidth / (weights + each)
    full = None if bandwidth is None or not most else most * bandwidth / (weights + most * each)
    return MemoryPlan(shape.name, shape.n_params, weights, per_token, live_tokens, each, most, alone, full)


def read_shape(path: Path) -> ModelShape:
    """The shape of a GGUF file or a config.json. Raises UnreadableModel, OSError."""
    with path.open("rb") as file:
        if file.read(4) == b"GGUF":
            try:
                return _read_gguf(file, path)
            except (struct.error, KeyError, OverflowError) as error:
                raise UnreadableModel(f"{path}: this GGUF file is damaged, or lacks {error}") from error
    try:
        config = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise UnreadableModel(f"{path}: neither a GGUF file nor a config.json: {error}") from error
    return shape_of_config(config, path.parent.name or path.name)


def shape_of_config(config: Mapping[str, Any], name: str) -> ModelShape:
    """The shape in Hugging Face's form. Raises UnreadableModel if it has no layers or heads."""
    text = config.get("text_config", config)
    try:
        n_layers, hidden, n_heads = (int(text[key]) for key in ("num_hidden_layers", "hidden_size", "num_attention_heads"))
    except (KeyError, TypeError, ValueError) as error:
        raise UnreadableModel(f"{name}: config.json has no {error}") from error
    n_kv_heads = int(text.get("num_key_value_heads") or n_heads)
    head_size = int(text.get("head_dim") or hidden // n_heads)
    n_experts = int(text.get("num_local_experts") or text.get("num_experts") or 1)
    inner = int(text.get("moe_intermediate_size") or text.get("intermediate_size") or 4 * hidden)
    attention = hidden * head_size * (2 * n_heads + 2 * n_kv_heads)
    tables = int(text.get("vocab_size") or 0) * hidden * (1 if text.get("tie_word_embeddings") else 2)
    n_params = tables + n_layers * (attention + 3 * hidden * inner * n_experts)
    return ModelShape(name, n_params, n_layers, n_kv_heads, head_size)


def _read_gguf(file: BinaryIO, path: Path) -> ModelShape:
    _, n_tensors, n_fields = struct.unpack("<IQQ", file.read(20))
    if max(n_tensors, n_fields) > _MOST_ENTRIES:
        raise UnreadableModel(f"{path}: this GGUF file is damaged: {n_tensors} tensors, {n_fields} fields")
    fields: dict[str, Any] = {}
    for _ in range(n_fields):
        name = _read_string(file)
        fields[name] = _read_value(file, _unpack(file, "<I"))
    n_params = 0
    for _ in range(n_tensors):
        _read_string(file)
        n_params += prod(_unpack(file, "<Q") for _ in range(_unpack(file, "<I")))
        file.read(12)  # type and offset
    kind = fields["general.architecture"]
    n_heads = _largest(fields[f"{kind}.attention.head_count"])
    n_kv_heads = _largest(fields.get(f"{kind}.attention.head_count_kv", n_heads))
    head_size = int(fields.get(f"{kind}.attention.key_length") or fields[f"{kind}.embedding_length"] // n_heads)
    return ModelShape(str(fields.get("general.name", path.stem)), n_params, int(fields[f"{kind}.block_count"]), n_kv_heads,
                      head_size, path.stat().st_size)


def _largest(value: Any) -> int:
    """A number, or the largest of one per layer."""
    return int(max(value)) if isinstance(value, list) else int(value)


def _unpack(file: BinaryIO, form: str) -> Any:
    return struct.unpack(form, file.read(struct.calcsize(form)))[0]


def _read_string(file: BinaryIO) -> str:
    n_bytes = _unpack(file, "<Q")
    if n_bytes > _MOST_ENTRIES:
        raise OverflowError(f"a text of {n_bytes} bytes")
    return file.read(n_bytes).decode(errors="replace")


def _read_value(file: BinaryIO, kind: int) -> Any:
    if kind == _GGUF_STRING:
        return _read_string(file)
    if kind == _GGUF_ARRAY:
        inner, n = _unpack(file, "<I"), _unpack(file, "<Q")
        if n > _MOST_ENTRIES:
            raise OverflowError(f"a list of {n} values")
        return [_read_value(file, inner) for _ in range(n)]
    return _unpack(file, _GGUF_SCALARS[kind])
