"""A llama model with random weights, written as GGUF from the format's own description: small, and never says anything
private. It answers in lower-case letters and does not end by itself, so that a test can count what it generated.
"""

import random
import struct
from array import array
from pathlib import Path

_U32, _F32, _STRING, _ARRAY = 4, 6, 8, 9
_ALIGNMENT = 32
_LETTERS = range(ord("a"), ord("z") + 1)
_TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}<|im_start|>"


def write_random_gguf(path: Path, *, n_embd: int = 128, n_layer: int = 4, ban: float = -30.0) -> Path:
    """Write the model; returns `path`. 128 x 4 makes a file of 3.5 MB. ban: the weight of all but letters."""
    tokens = [*_byte_tokens(), "<|im_start|>", "<|im_end|>"]
    tensors = _tensors(n_embd, n_layer, len(tokens), ban)
    metadata = [
        _pair("general.architecture", _string("llama"), _STRING),
        _pair("llama.context_length", struct.pack("<I", 32_768), _U32),
        _pair("llama.embedding_length", struct.pack("<I", n_embd), _U32),
        _pair("llama.block_count", struct.pack("<I", n_layer), _U32),
        _pair("llama.feed_forward_length", struct.pack("<I", 2 * n_embd), _U32),
        _pair("llama.attention.head_count", struct.pack("<I", 4), _U32),
        _pair("llama.attention.layer_norm_rms_epsilon", struct.pack("<f", 1e-5), _F32),
        _pair("tokenizer.ggml.model", _string("gpt2"), _STRING),
        _pair("tokenizer.ggml.pre", _string("gpt-2"), _STRING),
        _pair("tokenizer.ggml.tokens", _strings(tokens), _ARRAY),
        _pair("tokenizer.ggml.merges", _strings(["t h"]), _ARRAY),
        _pair("tokenizer.ggml.eos_token_id", struct.pack("<I", len(tokens) - 1), _U32),
        _pair("tokenizer.chat_template", _string(_TEMPLATE), _STRING),
    ]
    infos, offset = [], 0
    for name, shape, values in tensors:
        infos.append(_string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, 0, offset))  # type 0: f32
        offset += -(-len(values) * 4 // _ALIGNMENT) * _ALIGNMENT
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata)) + b"".join(metadata) + b"".join(infos)
    with path.open("wb") as file:
        file.write(_padded(head))
        for _, _, values in tensors:
            file.write(_padded(values.tobytes()))
    return path


def _tensors(n_embd: int, n_layer: int, n_vocab: int, ban: float) -> list[tuple[str, tuple[int, ...], "array[float]"]]:
    rng = random.Random(1)
    noise = array("f", (rng.gauss(0.0, 0.05) for _ in range(10_007)))  # repeated: nobody learns from these weights

    def weights(n: int) -> "array[float]":
        start = rng.randrange(len(noise))
        return (noise[start:] + noise * (n // len(noise) + 1))[:n]

    # Dimension 0 of the embedding is large, so it survives all layers: a negative weight there bans an output token.
    embedding, output = weights(n_vocab * n_embd), weights(n_vocab * n_embd)
    for token in range(n_vocab):
        embedding[token * n_embd] = 10.0
        output[token * n_embd] = 0.0 if token in _LETTERS else ban
    ones = array("f", [1.0]) * n_embd
    tensors = [("token_embd.weight", (n_embd, n_vocab), embedding), ("output.weight", (n_embd, n_vocab), output),
               ("output_norm.weight", (n_embd,), ones)]
    for block in range(n_layer):
        for name, n_in, n_out in (("attn_q", n_embd, n_embd), ("attn_k", n_embd, n_embd), ("attn_v", n_embd, n_embd),
                                  ("attn_output", n_embd, n_embd), ("ffn_gate", n_embd, 2 * n_embd),
                                  ("ffn_up", n_embd, 2 * n_embd), ("ffn_down", 2 * n_embd, n_embd)):
            tensors.append((f"blk.{block}.{name}.weight", (n_in, n_out), weights(n_in * n_out)))
        tensors += [(f"blk.{block}.{name}.weight", (n_embd,), ones) for name in ("attn_norm", "ffn_norm")]
    return tensors


def _byte_tokens() -> list[str]:
    """GPT-2's printable stand-ins for the 256 bytes, in byte order."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    spare = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(spare)) for byte in range(256)]


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _strings(texts: list[str]) -> bytes:
    return struct.pack("<IQ", _STRING, len(texts)) + b"".join(map(_string, texts))


def _pair(key: str, value: bytes, kind: int) -> bytes:
    return _string(key) + struct.pack("<I", kind) + value


def _padded(data: bytes) -> bytes:
    return data + b"\0" * (-len(data) % _ALIGNMENT)
