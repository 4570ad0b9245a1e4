"""The `/metrics` page of a simulated provider, in vLLM's names and form, with figures that a test can set.

What is not set comes from the engine: running and waiting requests, KV use, prompt tokens and those read from a cache. Rates
and ratios that are set become counters that grow with the provider's age.
"""

from collections.abc import Iterator
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from stayfast.lab.simulated.provider_state import ProviderState

_BOUNDS_S: Final = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0)  # vLLM's
_TOKENS_A_S: Final = 1000.0  # of the counters behind a ratio that is set
_REQUESTS_A_S: Final = 10.0
_DRAFT_TOKENS: Final = 3.0
Amount = Annotated[float, Meta(ge=0)]
Share = Annotated[float, Meta(ge=0, le=1)]


class EnginePage(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Figures to show instead of the engine's own, in the names of `core.snapshot.ENGINE_FIGURES`. None: not set. A time
    (`queue_s`, ...) is that of every request. restarted_s: age of the provider at which its process started again.
    """

    running: Amount | None = None
    waiting: Amount | None = None
    kv_used_ratio: Share | None = None
    kv_hit_ratio: Share | None = None
    spec_accepted_ratio: Share | None = None
    preemptions_per_s: Amount | None = None
    queue_s: Amount | None = None
    prefill_s: Amount | None = None
    decode_s: Amount | None = None
    gpu_memory_bytes: Amount | None = None
    gpu_memory_growth_bytes_per_h: float = 0.0
    restarted_s: Amount | None = None


def render_engine_page(provider: ProviderState, page: EnginePage | None = None) -> str:
    """The page now."""
    return "".join([f'{name}{{engine="0",model_name="{provider.name}"{labels}}} {value:.17g}\n'
                    for name, labels, value in _samples(provider, page or EnginePage())])


class SimulatedPage:
    """The page of a provider in this process, for `observe.snapshot.engine_scraper`."""

    def __init__(self, provider: ProviderState, page: EnginePage | None = None) -> None:
        self._provider = provider
        self.page = page

    async def fetch(self, path: str) -> str | None:
        return None if path != "/metrics" else render_engine_page(self._provider, self.page)

    def close(self) -> None:
        """Nothing to close."""


def _samples(provider: ProviderState, page: EnginePage) -> Iterator[tuple[str, str, float]]:
    age_s, counts, engine, model = provider.age_s, provider.counts, provider.engine, provider.config.engine
    age_s -= page.restarted_s if page.restarted_s is not None and page.restarted_s <= age_s else 0.0
    n_waiting = engine.n_waiting if engine is not None else 0
    running, waiting = counts.n_running - n_waiting, float(n_waiting)
    used = 1.0 - engine.n_kv_free / model.kv_tokens if engine is not None and model is not None else 0.0
    yield "vllm:num_requests_running", "", page.running if page.running is not None else running
    yield "vllm:num_requests_waiting", "", page.waiting if page.waiting is not None else waiting
    yield "vllm:kv_cache_usage_perc", "", page.kv_used_ratio if page.kv_used_ratio is not None else used
    n_tokens, n_hits = (float(engine.n_prefix_tokens), float(engine.n_prefix_hits)) if engine is not None else (0.0, 0.0)
    if page.kv_hit_ratio is not None:
        n_tokens, n_hits = age_s * _TOKENS_A_S, age_s * _TOKENS_A_S * page.kv_hit_ratio
    yield "vllm:prefix_cache_queries_total", "", n_tokens  # as of vLLM, 0 without a prefix cache
    yield "vllm:prefix_cache_hits_total", "", n_hits
    yield "vllm:num_preemptions_total", "", age_s * (page.preemptions_per_s or 0.0)
    if page.spec_accepted_ratio is not None:
        yield "vllm:spec_decode_num_drafts_total", "", age_s * _TOKENS_A_S / _DRAFT_TOKENS
        yield "vllm:spec_decode_num_draft_tokens_total", "", age_s * _TOKENS_A_S
        yield "vllm:spec_decode_num_accepted_tokens_total", "", age_s * _TOKENS_A_S * page.spec_accepted_ratio
    for name, seconds in (("queue", page.queue_s), ("prefill", page.prefill_s), ("decode", page.decode_s)):
        if seconds is not None:
            n = age_s * _REQUESTS_A_S
            for bound in _BOUNDS_S:
                yield f"vllm:request_{name}_time_seconds_bucket", f',le="{bound}"', n if bound >= seconds else 0.0
            yield f"vllm:request_{name}_time_seconds_bucket", ',le="+Inf"', n
    yield "process_start_time_seconds", "", provider.clock.wall() - age_s
    if page.gpu_memory_bytes is not None:
        grown = page.gpu_memory_growth_bytes_per_h * age_s / 3600.0
        yield "nvidia_smi_memory_used_bytes", "", page.gpu_memory_bytes + grown
