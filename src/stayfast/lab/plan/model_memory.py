"""How many requests of a model fit into a machine's memory, and how fast memory bandwidth lets it decode.

    weights          = parameters * bytes(dtype), or the size of a GGUF file
    KV per token     = 2 * layers * KV heads * head size * bytes(kv)             keys and values
    most concurrent  = (memory * 0.9 - weights - overhead) / (KV per token * tokens of a running request)
    tokens per s     = B * bandwidth / (weights + B * KV per token * tokens)      B answers at a time; each step reads all

Source: the shapes in GGUF metadata or Hugging Face's config.json; block sizes of ggml's formats.
When wrong: mixtures of experts read only some of their weights for a token, sliding windows and latent attention keep less
KV than this; compute, not bandwidth, bounds large batches and prefill. Engines need more or less overhead than assumed.
"""

from typing import Final

import msgspec

from stayfast.policy.engines.sizing import USABLE, ModelShape

OVERHEAD_BYTES: Final = 1e9


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
