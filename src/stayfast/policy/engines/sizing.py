"""How many slots, of how many tokens, an engine gets on this machine, and whether its model fits at all.

    KV per token = layers * KV heads * head size * (bytes(keys) + bytes(values))
    need         = weights + slots * tokens per slot * KV per token + work + prompt cache
    work         = WORK_BYTES + BATCH * 4 * (vocabulary + 8 * embedding size)
    usable       = USABLE * memory available to this process

Several processes of one model (speculation `auto`) each need all of that, and a draft model its weights, KV cache and work.

The KV cache grows linearly with the tokens of a context (what grows with their square is the arithmetic of attention).
`auto` begins with 4 slots a core, at least 4 and at most 16, of the model's own context, at most 8192 tokens; halves the
slots down to 2, then the tokens down to 2048, then goes on down to 1 slot of 512 tokens, until the KV cache takes at most
half of what the weights leave. Numbers that were set stay.

Source: the shapes in the file; WORK_BYTES measured on the child (34 to 38 MB over weights and KV cache, 4 to 400 MB of KV).
When wrong: sliding windows and latent attention keep less KV than this; other programs take memory later; the work of models
with unusual layers is larger. Weights are mapped from the file, so a model a little too large would run, slowly, from disk.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

BYTES_OF: Final[Mapping[str, float]] = {  # of one value; ggml's blocks of 32 values have a scale of 2 bytes
    "f32": 4.0, "bf16": 2.0, "f16": 2.0, "fp8": 1.0, "int8": 1.0, "q8_0": 1.0625, "q6_k": 0.8203, "q5_0": 0.6875,
    "q5_k": 0.6875, "q4_0": 0.5625, "q4_k": 0.5625, "awq": 0.53, "int4": 0.5}
CACHE_TYPES: Final = ("f16", "q8_0", "q4_0")
USABLE: Final = 0.9
WORK_BYTES: Final = 64 << 20
BATCH: Final = 512  # prompt tokens that llama.cpp computes at once
BLOCK_VALUES: Final = 32
MOST_TOKENS, LEAST_TOKENS, FEWER_TOKENS = 8192, 512, 2048
_KV_SHARE: Final = 0.5
_SLOTS_PER_CORE, _LEAST_SLOTS, _MOST_SLOTS = 4, 4, 16


@dataclass(frozen=True, slots=True)
class ModelShape:
    """n_params: with a config.json, estimated from its shapes. file_bytes: None without weights in the file. 0: unknown."""

    name: str
    n_params: int
    n_layers: int
    n_kv_heads: int
    head_size: int
    file_bytes: int | None = None
    context_tokens: int = 0
    n_vocab: int = 0
    embedding_size: int = 0
    has_pooling: bool = False  # the file says how vectors of tokens become one

    def weight_bytes(self, dtype: str | None) -> float:
        """Memory of the weights. dtype: in BYTES_OF; None: as in the file, else f16."""
        if dtype is None and self.file_bytes is not None:
            return float(self.file_bytes)
        return self.n_params * BYTES_OF[dtype or "f16"]

    def kv_bytes_per_token(self, keys: str, values: str | None = None) -> float:
        """values: None: as the keys."""
        return self.n_layers * self.n_kv_heads * self.head_size * (BYTES_OF[keys] + BYTES_OF[values or keys])

    @property
    def work_bytes(self) -> float:
        return WORK_BYTES + BATCH * 4.0 * (self.n_vocab + 8 * self.embedding_size)


@dataclass(frozen=True, slots=True)
class WantedSize:
    """What the settings say. None: chosen."""

    n_slots: int | None
    ctx_per_slot: int | None
    cache_type_k: str
    cache_type_v: str
    prompt_cache_bytes: float
    n_processes: int = 1  # of this size, each with its own weights and KV cache
    draft: ModelShape | None = None  # of one of them

    def kv_bytes_per_token(self, shape: ModelShape, keys: str, values: str | None = None) -> float:
        """Of a token of context, in all processes. The draft model's cache is f16."""
        drafted = self.draft.kv_bytes_per_token("f16") if self.draft is not None else 0.0
        return self.n_processes * shape.kv_bytes_per_token(keys, values) + drafted


@dataclass(frozen=True, slots=True)
class EngineSize:
    """The result. Bytes are of all processes; `usable_bytes`: None, if the machine does not show it."""

    n_slots: int
    ctx_per_slot: int
    weight_bytes: float
    kv_bytes_per_token: float
    work_bytes: float
    prompt_cache_bytes: float
    usable_bytes: float | None
    n_processes: int = 1

    @property
    def kv_bytes(self) -> float:
        return self.n_slots * self.ctx_per_slot * self.kv_bytes_per_token

    @property
    def need_bytes(self) -> float:
        return self.weight_bytes + self.kv_bytes + self.work_bytes + self.prompt_cache_bytes

    @property
    def fits(self) -> bool:
        return self.usable_bytes is None or self.need_bytes <= self.usable_bytes

    @property
    def tokens_that_fit(self) -> int:
        """Tokens of KV cache for which there is memory, over all slots."""
        if self.usable_bytes is None:
            return self.n_slots * self.ctx_per_slot
        left = self.usable_bytes - self.weight_bytes - self.work_bytes - self.prompt_cache_bytes
        return max(0, int(left / self.kv_bytes_per_token))


def size_engine(shape: ModelShape, wanted: WantedSize, *, n_cores: int, available_bytes: float | None) -> EngineSize:
    """The size for this machine; it may not fit. available_bytes: None: unknown, so nothing is reduced."""
    usable = None if available_bytes is None else USABLE * available_bytes
    n_slots = wanted.n_slots or min(_MOST_SLOTS, max(_LEAST_SLOTS, _SLOTS_PER_CORE * n_cores))
    n_tokens = wanted.ctx_per_slot or min(MOST_TOKENS, shape.context_tokens or MOST_TOKENS)
    weights, work = shape.weight_bytes(None) * wanted.n_processes, shape.work_bytes * wanted.n_processes
    if wanted.draft is not None:
        weights, work = weights + wanted.draft.weight_bytes(None), work + wanted.draft.work_bytes
    prompt_cache = wanted.prompt_cache_bytes * wanted.n_processes
    per_token = wanted.kv_bytes_per_token(shape, wanted.cache_type_k, wanted.cache_type_v)
    left = None if usable is None else _KV_SHARE * (usable - weights - work - prompt_cache)
    while left is not None and n_slots * n_tokens * per_token > left:
        if wanted.n_slots is None and n_slots > 2:
            n_slots = max(2, n_slots // 2)
        elif wanted.ctx_per_slot is None and n_tokens > FEWER_TOKENS:
            n_tokens = max(FEWER_TOKENS, n_tokens // 2)
        elif wanted.n_slots is None and n_slots > 1:
            n_slots = 1
        elif wanted.ctx_per_slot is None and n_tokens > LEAST_TOKENS:
            n_tokens = max(LEAST_TOKENS, n_tokens // 2)
        else:
            break
    return EngineSize(n_slots, n_tokens, weights, per_token, work, prompt_cache, usable, wanted.n_processes)


def explain_size(shape: ModelShape, size: EngineSize, wanted: WantedSize) -> list[str]:
    """Lines for a reader: the memory of each part, and the contexts that fit by type of the KV cache."""
    free = "unknown" if size.usable_bytes is None else f"{format_bytes(size.usable_bytes)} usable"
    several = f" in each of {size.n_processes} processes" if size.n_processes > 1 else ""
    lines = [(f"{shape.name}: {shape.n_params / 1e6:,.1f} M parameters, weights {format_bytes(size.weight_bytes)}, "
              f"KV cache {shape.kv_bytes_per_token(wanted.cache_type_k, wanted.cache_type_v):,.0f} bytes per token"),
             (f"{size.n_slots} slots of {size.ctx_per_slot} tokens{several}: KV cache {format_bytes(size.kv_bytes)}, in all "
              f"{format_bytes(size.need_bytes)}; memory: {free}")]
    if size.usable_bytes is None:
        return lines
    left = size.usable_bytes - size.weight_bytes - size.work_bytes - size.prompt_cache_bytes
    fitting = []
    for kind in CACHE_TYPES:
        n = max(0, int(left / (wanted.kv_bytes_per_token(shape, kind) * size.ctx_per_slot)))
        fitting.append(f"{n:,} in {kind}")
    return [*lines, f"contexts of {size.ctx_per_slot} tokens that fit: {', '.join(fitting)}"]


def explain_misfit(shape: ModelShape, size: EngineSize, wanted: WantedSize) -> str:
    """Why it does not fit, and what to change."""
    assert size.usable_bytes is not None
    several = f" in {size.n_processes} processes" if size.n_processes > 1 else ""
    needs = (f"needs {format_bytes(size.need_bytes)}{several} (weights {format_bytes(size.weight_bytes)}, {size.n_slots} x "
             f"{size.ctx_per_slot} tokens of KV cache {format_bytes(size.kv_bytes)}), but {format_bytes(size.usable_bytes)} "
             "are usable")
    advice = ["speculation.mode: off"] if size.n_processes > 1 else []
    if size.tokens_that_fit >= LEAST_TOKENS:
        if n := size.tokens_that_fit // size.ctx_per_slot:
            advice.append(f"n_slots: {n}")
        advice.append(f"ctx_per_slot: {max(64, size.tokens_that_fit // size.n_slots)}")
    for kind in CACHE_TYPES[1:]:
        kv_bytes = size.n_slots * size.ctx_per_slot * wanted.kv_bytes_per_token(shape, kind)
        if kv_bytes < size.kv_bytes and size.need_bytes - size.kv_bytes + kv_bytes <= size.usable_bytes:
            advice.append(f"cache_type_k and cache_type_v: {kind}")
            break
    if size.prompt_cache_bytes and size.need_bytes - size.prompt_cache_bytes <= size.usable_bytes:
        advice.append("prompt_cache_mib: 0")
    if not advice or size.tokens_that_fit < LEAST_TOKENS:
        advice.append("a smaller model, or weights of fewer bits")
    return f"{needs}: take {advice[0]}" if len(advice) == 1 else f"{needs}: take one of {'; '.join(advice)}"


def format_bytes(n: float) -> str:
    """In GiB, or MiB below one."""
    return f"{n / 2**30:.1f} GiB" if n >= 1 << 30 else f"{n / (1 << 20):.0f} MiB"
