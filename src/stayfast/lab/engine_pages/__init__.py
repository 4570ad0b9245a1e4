"""Metrics pages of engines, two of each 10 s apart, and what they show, computed by hand.

Recorded: vLLM 0.32 (0.32.0, a CPU build with a model of random weights, before and in a load of 30 requests, and before and
after `/sleep`; without the families that no table reads), and llama.cpp b11549 (the embedded engine). Their rates are
computed as if the two pages were 10 s apart. All others are not recordings: they are written from the names, types and help
texts of the engines' documentation and public sources, with figures of our own. `.json`: what the engine reports in
addition to its metrics (`wire.engines.load_report`).
"""

from collections.abc import Iterator, Mapping
from functools import partial
from importlib.resources import files
from typing import Final, NamedTuple

from stayfast.core.engine_signals import EngineSignals

SECONDS: Final = 10.0  # between the two pages
_Shown = partial(EngineSignals, 0.0)


class RecordedPage(NamedTuple):
    """Two pages of one engine. shown: all that they show; fields that are None must stay unknown."""

    name: str
    before: str
    after: str
    report_before: str | None
    report_after: str | None
    shown: EngineSignals


_SHOWN: Final[Mapping[str, EngineSignals]] = {
    "vllm-0.33": _Shown(
        "vllm", "0.33", running=17.0, waiting=3.0, kv_used_ratio=0.52, kv_tokens=880_000.0, block_tokens=16.0,
        prefix_hit_ratio=0.75, preemptions_per_s=0.2, spec_accepted_ratio=0.7, spec_accepted_length=3.1,
        prefill_tokens_per_s=2000.0, decode_tokens_per_s=900.0, inter_token_s=150 / 5960, queue_p95_s=0.77,
        is_sleeping=False),
    "vllm-0.32": _Shown(  # its names are those of 0.33
        "vllm", "0.33", running=8.0, waiting=4.0, kv_used_ratio=0.6153846153846154, kv_tokens=9600.0, block_tokens=32.0,
        prefix_hit_ratio=4128 / 15871, preemptions_per_s=0.0, prefill_tokens_per_s=6351 / 1.685403225000755,
        decode_tokens_per_s=55.0, inter_token_s=7.620406110999511 / 525, queue_p95_s=0.285, is_sleeping=False),
    "vllm-0.32-asleep": _Shown(
        "vllm", "0.33", running=0.0, waiting=0.0, kv_used_ratio=0.0, kv_tokens=9600.0, block_tokens=32.0,
        prefix_hit_ratio=0.0, preemptions_per_s=0.0, prefill_tokens_per_s=9 / (4.873668196000381 - 4.863877370000409),
        decode_tokens_per_s=5.5, inter_token_s=(58.78761814799941 - 58.330445871999245) / 53, queue_p95_s=0.285,
        is_sleeping=True),
    "vllm-0.9": _Shown(
        "vllm", "0.9", running=24.0, waiting=8.0, kv_used_ratio=0.95, kv_tokens=96_000.0, block_tokens=16.0,
        prefix_hit_ratio=0.25, preemptions_per_s=0.5, prefill_tokens_per_s=600.0, decode_tokens_per_s=800.0,
        inter_token_s=0.03, queue_p95_s=0.785),
    "vllm-0.6": _Shown(  # its hit rate of -1 means that it has no prefix cache
        "vllm", "0.6", running=16.0, waiting=5.0, kv_used_ratio=0.81, kv_tokens=80_000.0, block_tokens=16.0,
        preemptions_per_s=0.0, spec_accepted_ratio=0.58, prefill_tokens_per_s=1500.0, decode_tokens_per_s=300.0,
        inter_token_s=0.03, queue_p95_s=0.475),
    "vllm-seed": _Shown("vllm", "0.6", waiting=12.0, kv_used_ratio=0.95, spec_accepted_length=1.9),
    "sglang-0.5.23": _Shown(
        "sglang", "0.5.23", running=57.0, waiting=10.0, waiting_tokens=12_000.0, max_running=128.0, kv_used_ratio=0.5,
        kv_tokens=700_000.0, block_tokens=64.0, prefix_hit_ratio=0.55, preemptions_per_s=0.2, spec_accepted_ratio=0.58,
        spec_accepted_length=2.4, prefill_tokens_per_s=9000.0, decode_tokens_per_s=1800.0, inter_token_s=0.025,
        queue_p95_s=0.48125),
    "sglang-0.5.23 without /v1/loads": _Shown(
        "sglang", "0.5.23", running=56.0, waiting=9.0, kv_used_ratio=0.5, kv_tokens=700_000.0, block_tokens=64.0,
        prefix_hit_ratio=0.55, preemptions_per_s=0.2, spec_accepted_ratio=0.58, spec_accepted_length=2.4,
        decode_tokens_per_s=1800.0, inter_token_s=0.025, queue_p95_s=0.48125),
    "sglang-0.4": _Shown(
        "sglang", "0.4", running=162.0, waiting=2826.0, kv_used_ratio=0.28, prefix_hit_ratio=0.007507552643049313,
        decode_tokens_per_s=200.0, inter_token_s=0.12),
    "llamacpp-b11549": _Shown(
        "llamacpp", "b11549", running=0.0, waiting=0.0, max_running=2.0, kv_tokens=1024.0, prefix_hit_ratio=30 / 98,
        prefill_tokens_per_s=68 / 0.00941, decode_tokens_per_s=9.6, inter_token_s=0.028162 / 96, is_sleeping=False),
    "llamacpp-b4000": _Shown(
        "llamacpp", "b4000", running=4.0, waiting=3.0, kv_used_ratio=0.42, prefill_tokens_per_s=500.0,
        decode_tokens_per_s=60.0, inter_token_s=0.02),
    "trtllm-1.2": _Shown(
        "trtllm", "1.2", running=31.0, waiting=2.0, max_running=64.0, kv_used_ratio=0.62, kv_tokens=128_000.0,
        block_tokens=32.0, prefix_hit_ratio=0.5, spec_accepted_ratio=0.75, spec_accepted_length=2.8,
        prefill_tokens_per_s=5000.0, decode_tokens_per_s=500.0, inter_token_s=0.02, queue_p95_s=0.2425),
    "trtllm-1.0": _Shown(  # 0.0 is shown, so it is known
        "trtllm", "1.0", kv_used_ratio=0.0, prefix_hit_ratio=0.27, inter_token_s=0.03, queue_p95_s=0.095),
    "trtllm-triton": _Shown(
        "trtllm", "triton", running=48.0, waiting=4.0, max_running=512.0, kv_used_ratio=0.4875, kv_tokens=399_296.0,
        block_tokens=64.0, decode_tokens_per_s=500.0),
    "tgi-3.3": _Shown(
        "tgi", "3.3", running=16.0, waiting=6.0, spec_accepted_length=1.5, prefill_tokens_per_s=5000.0,
        decode_tokens_per_s=600.0, inter_token_s=0.025, queue_p95_s=0.195),
}


def recorded_pages() -> Iterator[RecordedPage]:
    """All of them."""
    for name, shown in _SHOWN.items():
        file, is_bare = name.partition(" ")[0], " " in name
        texts = [_read(f"{file}.{when}") for when in ("before.txt", "after.txt")]
        reports = [None if is_bare else _read(f"{file}.{when}") for when in ("before.json", "after.json")]
        yield RecordedPage(name, texts[0] or "", texts[1] or "", reports[0], reports[1], shown)


def _read(name: str) -> str | None:
    path = files("stayfast.lab.engine_pages").joinpath(name)
    return path.read_text() if path.is_file() else None
