"""The timing and length of one answer, drawn before it starts from the request's own random numbers."""

from math import exp, log1p
from random import Random
from typing import Final
from zlib import crc32

import msgspec

from stayfast.core.types import Api
from stayfast.lab.simulated.config import GapConfig, Preset, ProviderConfig
from stayfast.lab.simulated.faults import Regime
from stayfast.lab.simulated.filler_text import CHARACTERS_A_TOKEN, N_WORDS
from stayfast.lab.simulated.request import SimulatedRequest
from stayfast.wire.dialect import Reason

NEVER: Final = 1 << 60  # the index of a chunk beyond any answer
_FAULT, _WEATHER, _SESSION, _COLD, _ERROR = range(1, 6)


class Dice:
    """The random number generators of a provider, from its seed and name: one for each purpose and number."""

    __slots__ = ("_base",)

    def __init__(self, seed: int, name: str) -> None:
        self._base = ((seed << 32) | crc32(name.encode())) << 80

    def for_request(self, number: int) -> Random:
        return Random(self._base | number)

    def for_faults(self, number: int) -> Random:
        """For the faults of a request; separate, so that another fault rule changes no latency."""
        return Random(self._base | (_FAULT << 64) | number)

    def for_errors(self, number: int) -> Random:
        return Random(self._base | (_ERROR << 64) | number)

    def for_regimes(self) -> Random:
        return Random(self._base | (_WEATHER << 64))

    def for_session(self, session: str, window: int) -> Random:
        """For the shared luck of a session in one window of time."""
        return Random(self._base | (_SESSION << 64) | (crc32(session.encode()) << 32) | (window & 0xFFFFFFFF))

    def for_cold_start(self, number: int) -> Random:
        return Random(self._base | (_COLD << 64) | number)


class RequestPace(msgspec.Struct, gc=False):
    """The timing of one answer. `slow_from`: the chunk from which the pace is lower."""

    ttft_s: float
    n_output: int  # of one choice
    reason: Reason
    gap_factor: float
    slow_from: int
    slow_factor: float
    words_from: int
    gaps: GapConfig


def draw_timing(config: ProviderConfig, numbers: Preset, request: SimulatedRequest, rng: Random, *, luck: float | None,
         regime: Regime) -> RequestPace:
    """Draw the timing of a request. `luck`: shared by its session, selects body or tail; None: its own."""
    own_luck = rng.random()
    ttft_s = numbers.ttft.draw(rng, own_luck if luck is None else luck)
    ttft_s *= regime.ttft_factor * (1 + (request.n_prompt_tokens - request.n_cached_tokens) * config.prefill_per_token)
    if not request.api.can_stream:
        share = config.embedding_share if request.api in (Api.EMBEDDINGS, Api.RERANK) else 0.0
        return RequestPace(ttft_s * share, 0, "stop", 1.0, NEVER, 1.0, 0, numbers.gaps)
    n_output, reason = _draw_length(config, request, rng)
    sag = config.slowdown
    slow_from = NEVER
    if sag.share and rng.random() < sag.share:
        n_chunks = -(-n_output // numbers.gaps.tokens_per_chunk)
        slow_from = int(rng.random() * n_chunks)
    return RequestPace(ttft_s, n_output, reason, regime.gap_factor, slow_from, 1 / sag.rate_factor,
                       int(rng.random() * N_WORDS), numbers.gaps)


def _draw_length(config: ProviderConfig, request: SimulatedRequest, rng: Random) -> tuple[int, Reason]:
    """Tokens of the answer, and its finish reason."""
    most = request.max_output_tokens
    if request.value is not None:
        n_output = max(1, -(-len(request.value) // CHARACTERS_A_TOKEN))
    elif request.n_output is not None:
        n_output = request.n_output
    elif config.fills_max_tokens and most is not None:
        n_output = most
    else:
        lengths = config.output
        n_output = min(lengths.max, max(1, round(lengths.median * exp(lengths.sigma * rng.gauss()))))
    if most is not None and n_output >= most:
        return most, "length" if n_output > most or request.value is None else "stop"
    return n_output, "stop"


def draw_chunks_until(share: float, rng: Random) -> int:
    """Chunks before the next selected one, if each is selected with probability `share` (geometric)."""
    if share <= 0:
        return NEVER
    if share >= 1:
        return 0
    return int(log1p(-rng.random()) / log1p(-share))


def rest_s(config: ProviderConfig, pace: RequestPace, rng: Random, n_there: int = 1) -> float:
    """Seconds from the `n_there`-th token to the last one, drawn at once for an answer that is not streamed."""
    n_rest, gaps = pace.n_output - n_there, pace.gaps
    if n_rest <= 0:
        return 0.0
    n_chunks = -(-n_rest // gaps.tokens_per_chunk)
    n_fast = max(0, pace.slow_from - (n_there - 1) // gaps.tokens_per_chunk)
    n_slow = min(n_rest, max(0, n_chunks - n_fast) * gaps.tokens_per_chunk)
    seconds = gaps.draw(rng, n_rest) * (1 + (pace.slow_factor - 1) * n_slow / n_rest) * pace.gap_factor
    at = draw_chunks_until(config.stalls.share, rng)
    while at < n_chunks:
        seconds += config.stalls.duration.draw(rng, rng.random())
        at += 1 + draw_chunks_until(config.stalls.share, rng)
    return seconds
