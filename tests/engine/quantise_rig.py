"""What the tests of quantisation share: models in other types, by the `gguf` package, and a forward pass in numpy."""

from collections.abc import Sequence
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

from tests.engine.random_gguf import write_random_gguf

Floats = NDArray[np.float32]
N_HEADS, EPSILON = 4, 1e-5


def write_model(path: Path, kind: str = "f16", *, n_embd: int = 64, n_layer: int = 2, is_tied: bool = False,
                ban: float = -30.0) -> Path:
    """A random llama whose matrices are of that type; `f32` as it is."""
    plain = write_random_gguf(path.with_suffix(".plain"), n_embd=n_embd, n_layer=n_layer, ban=ban)
    return rewrite(plain, path, kind, left_out=("output.weight",) if is_tied else ())


def rewrite(source: Path, target: Path, kind: str, *, left_out: Sequence[str] = ()) -> Path:
    """A copy with matrices of another type, and one more key of each sort."""
    reader, writer = gguf.GGUFReader(source), gguf.GGUFWriter(target, "llama")
    for name, field in reader.fields.items():
        if name != "general.architecture" and not name.startswith("GGUF."):
            is_array = field.types[0] == gguf.GGUFValueType.ARRAY
            writer.add_key_value(name, field.contents(), field.types[0], sub_type=field.types[-1] if is_array else None)
    writer.add_file_type(1)
    writer.add_array("test.floats", [0.25, -1.5])
    writer.add_bool("test.flag", True)
    writer.add_string("test.text", "naïve ☃")
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        if tensor.name in left_out:
            continue
        if values.ndim < 2 or kind == "f32":
            writer.add_tensor(tensor.name, values)
        else:
            raw = gguf.GGMLQuantizationType[kind.upper()]
            writer.add_tensor(tensor.name, values.astype(np.float16) if kind == "f16" else gguf.quants.quantize(values, raw),
                              raw_dtype=raw)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def read_weights(path: Path) -> dict[str, Floats]:
    """All tensors as f32."""
    return {tensor.name: gguf.quants.dequantize(tensor.data, tensor.tensor_type) for tensor in gguf.GGUFReader(path).tensors}


def forward(weights: dict[str, Floats], tokens: Sequence[int]) -> NDArray[np.float64]:
    """The log-probabilities after each token, from the definition of the llama architecture."""
    x = weights["token_embd.weight"][list(tokens)].astype(np.float64)
    for block in range(sum(name.endswith("attn_q.weight") for name in weights)):
        def weight(name: str, block: int = block) -> NDArray[np.float64]:
            return weights[f"blk.{block}.{name}.weight"].astype(np.float64)

        h = _norm(x, weight("attn_norm"))
        x = x + _attend(*(h @ weight(f"attn_{name}").T for name in "qkv")) @ weight("attn_output").T
        h = _norm(x, weight("ffn_norm"))
        gate = h @ weight("ffn_gate").T
        x = x + (gate / (1 + np.exp(-gate)) * (h @ weight("ffn_up").T)) @ weight("ffn_down").T
    logits = _norm(x, weights["output_norm.weight"]) @ weights["output.weight"].astype(np.float64).T
    logits -= logits.max(axis=1, keepdims=True)
    found: NDArray[np.float64] = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return found


def _norm(x: NDArray[np.float64], weight: NDArray[np.floating]) -> NDArray[np.float64]:
    found: NDArray[np.float64] = x / np.sqrt((x * x).mean(axis=1, keepdims=True) + EPSILON) * weight
    return found


def _attend(q: NDArray[np.float64], k: NDArray[np.float64], v: NDArray[np.float64]) -> NDArray[np.float64]:
    n, width = q.shape
    size = width // N_HEADS
    q, k = _rotate(q, size), _rotate(k, size)
    out = np.empty_like(v)
    for head in range(N_HEADS):
        part = slice(head * size, (head + 1) * size)
        scores = q[:, part] @ k[:, part].T / np.sqrt(size)
        scores[np.triu_indices(n, 1)] = -np.inf
        scores = np.exp(scores - scores.max(axis=1, keepdims=True))
        out[:, part] = scores / scores.sum(axis=1, keepdims=True) @ v[:, part]
    return out


def _rotate(x: NDArray[np.float64], size: int) -> NDArray[np.float64]:
    """Rotary positions of neighbouring pairs, base 10,000."""
    n, width = x.shape
    angles = np.arange(n)[:, None] * 10_000.0 ** (-np.arange(0, size, 2) / size)
    turn = np.exp(1j * np.tile(angles, width // size))
    turned = (x[:, 0::2] + 1j * x[:, 1::2]) * turn
    out = np.empty_like(x)
    out[:, 0::2], out[:, 1::2] = turned.real, turned.imag
    return out
