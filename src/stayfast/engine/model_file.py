"""Shapes of models, read from GGUF files and from Hugging Face's config.json.

Only the head of a GGUF file is read. A file that ends before its last tensor is refused: llama.cpp would find that out late,
or crash on a page that is not there.
"""

import struct
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec

from stayfast.policy.engines.sizing import ModelShape

_GGUF_SCALARS: Final = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_GGUF_STRING, _GGUF_ARRAY = 8, 9
_MOST_ENTRIES: Final = 10_000_000  # of an array or table of a damaged file
_ALIGNMENT: Final = 32
# (values, bytes) of a block, by ggml's number of the type: f32, f16, q4_0, q4_1, q5_0, q5_1, q8_0, K-quants, bf16
_BLOCKS: Final = {0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 10: (256, 84),
                  11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210), 30: (1, 2)}


class UnreadableModel(ValueError):
    """The file is no GGUF file and no config.json, or lacks a shape."""


def read_shape(path: Path) -> ModelShape:
    """The shape of a GGUF file or a config.json. Raises UnreadableModel, OSError."""
    with path.open("rb") as file:
        if file.read(4) == b"GGUF":
            try:
                return _read_gguf(file, path)
            except (struct.error, KeyError, OverflowError, ZeroDivisionError) as error:
                raise UnreadableModel(f"{path}: this GGUF file is damaged, or lacks {error}") from error
    try:
        config = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise UnreadableModel(f"{path}: neither a GGUF file nor a config.json: {error}") from error
    return shape_of_config(config, path.parent.name or path.name)


def read_vocabulary(path: Path) -> tuple[str, list[str]]:
    """The kind of the tokenizer of a GGUF file, and the texts of its tokens. Raises UnreadableModel, OSError."""
    with path.open("rb") as file:
        try:
            if file.read(4) != b"GGUF":
                raise UnreadableModel(f"{path}: this is no GGUF file")
            fields, _ = _read_fields(file, path)
            return str(fields["tokenizer.ggml.model"]), list(fields["tokenizer.ggml.tokens"])
        except (struct.error, KeyError, OverflowError) as error:
            raise UnreadableModel(f"{path}: this GGUF file is damaged, or lacks {error}") from error


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


def _read_fields(file: BinaryIO, path: Path) -> tuple[dict[str, Any], int]:
    """The fields of the head, and how many tensors follow."""
    _, n_tensors, n_fields = struct.unpack("<IQQ", file.read(20))
    if max(n_tensors, n_fields) > _MOST_ENTRIES:
        raise UnreadableModel(f"{path}: this GGUF file is damaged: {n_tensors} tensors, {n_fields} fields")
    fields: dict[str, Any] = {}
    for _ in range(n_fields):
        name = _read_string(file)
        fields[name] = _read_value(file, _unpack(file, "<I"))
    return fields, n_tensors


def _read_gguf(file: BinaryIO, path: Path) -> ModelShape:
    fields, n_tensors = _read_fields(file, path)
    n_params, end = 0, 0
    for _ in range(n_tensors):
        _read_string(file)
        n_values = prod([_unpack(file, "<Q") for _ in range(_unpack(file, "<I"))])
        n_params += n_values
        number, offset = _unpack(file, "<I"), _unpack(file, "<Q")
        n_in_block, n_bytes = _BLOCKS.get(number, (1, 0))
        end = max(end, offset + n_values // n_in_block * n_bytes)
    alignment = int(fields.get("general.alignment", _ALIGNMENT))
    whole, size = -(-file.tell() // alignment) * alignment + end, path.stat().st_size
    if size < whole:
        raise UnreadableModel(f"{path}: this GGUF file is truncated: it has {size:,} of {whole:,} bytes. Copy it again")
    kind = fields["general.architecture"]
    n_heads = _largest(fields[f"{kind}.attention.head_count"])
    n_kv_heads = _largest(fields.get(f"{kind}.attention.head_count_kv", n_heads))
    head_size = int(fields.get(f"{kind}.attention.key_length") or fields[f"{kind}.embedding_length"] // n_heads)
    return ModelShape(
        str(fields.get("general.name", path.stem)), n_params, int(fields[f"{kind}.block_count"]), n_kv_heads, head_size,
        size, int(fields.get(f"{kind}.context_length", 0)), len(fields.get("tokenizer.ggml.tokens", ())),
        int(fields[f"{kind}.embedding_length"]), bool(fields.get(f"{kind}.pooling_type", 0)))


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
