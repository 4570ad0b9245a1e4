"""The load of one self-hosted engine at one instant, as its own metrics show it, in the same names for all engines."""

import msgspec


class EngineSignals(msgspec.Struct, frozen=True, gc=False):
    """One reading. None: the engine does not show it, which is not 0. Rates and ratios are over the last minute; shares 0 to
    1. Calibration, not the load itself: pages are seconds old, so what the gateway has in flight counts first.
    """

    read_at: float  # of the process's own clock
    kind: str = ""  # vllm, sglang, llamacpp, trtllm, tgi; empty: not recognised
    version: str = ""  # of the alias table that its names belong to
    running: float | None = None  # requests
    waiting: float | None = None
    waiting_tokens: float | None = None  # uncached prompt tokens of waiting requests
    kv_used_ratio: float | None = None
    kv_tokens: float | None = None  # capacity of its KV memory
    block_tokens: float | None = None  # of one block of its prefix cache
    max_running: float | None = None
    prefix_hit_ratio: float | None = None  # prompt tokens that were in its cache, over all
    preemptions_per_s: float | None = None
    spec_accepted_ratio: float | None = None
    spec_accepted_length: float | None = None  # tokens of one step, the own one included
    prefill_tokens_per_s: float | None = None  # uncached prompt tokens over the time of prefills
    decode_tokens_per_s: float | None = None  # of all answers together
    inter_token_s: float | None = None  # mean time between two tokens of one answer
    queue_p95_s: float | None = None
    is_sleeping: bool | None = None
