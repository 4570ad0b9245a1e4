"""The live speed of one tier: how soon it begins to answer, and when it has ended.

Problem: a mean of all answers hides the slow tenth, and an answer of 2,000 tokens takes longer than one of 20. Rule, over
the newest SAMPLES answers of the last MAX_AGE_S, to prompts of about this length if there are enough, at a percentile p:

    first = p of the times to the first token
    end   = first + min(max_tokens, p of the lengths of answers) * p of the times per token

Whole answers have no time to the first token. Of these, p of their durations is a second estimate of the end; the smaller
one counts, as both are high: a sum of percentiles is above the percentile of the sum, and a duration ignores max_tokens.
An attempt that was given up after t seconds without a token counts as 2 t: it is known to be longer, not how much.
Fewer than LEAST samples are no prediction. Old samples are dropped, so that a tier that was slow is unknown after a while,
and is tried again (`policy.tiers.choice`).
Source: nearest-rank percentile; the split into prefill and decode is the usual model of an engine's latency.
When wrong: load that has begun in the last seconds is in few samples; a percentile of five samples is their maximum.
"""

from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

from stayfast.policy.histogram import quantile_of

SAMPLES: Final = 128
LEAST: Final = 3
ENOUGH: Final = 16  # samples of prompts of this length; with fewer, those of other lengths count, too
MAX_AGE_S: Final = 300.0
GIVEN_UP_FACTOR: Final = 2.0


class SpeedPrediction(NamedTuple):
    """Seconds from now to the first token and to the end of an answer, and how many answers this is from."""

    first_s: float
    end_s: float
    n: int


class _SpeedSample(NamedTuple):
    at: float
    size: int  # octave of the prompt's length
    seconds: float  # to the first token; of a whole answer, all of it
    per_token_s: float | None = None  # None: not known


class TierSpeed:
    """The samples of one tier. Pure state; changed only by its owner."""

    __slots__ = ("_durations", "_lengths", "_streams")

    def __init__(self) -> None:
        self._streams: deque[_SpeedSample] = deque(maxlen=SAMPLES)
        self._durations: deque[_SpeedSample] = deque(maxlen=SAMPLES)
        self._lengths: deque[tuple[float, int]] = deque(maxlen=SAMPLES)  # instants and tokens of whole answers

    def record_stream(self, n_bytes: int, first_s: float, per_token_s: float | None, now: float) -> None:
        """An answer that arrived in parts. n_bytes: of the request."""
        self._streams.append(_SpeedSample(now, n_bytes.bit_length(), first_s, per_token_s))

    def record_whole(self, n_bytes: int, seconds: float, now: float) -> None:
        """An answer that arrived at once."""
        self._durations.append(_SpeedSample(now, n_bytes.bit_length(), seconds))

    def record_length(self, n_tokens: int, now: float) -> None:
        """The length of an answer that ended by itself."""
        self._lengths.append((now, n_tokens))

    def record_given_up(self, n_bytes: int, after_s: float, now: float, *, is_whole: bool) -> None:
        """An attempt was given up without a token, or without the whole answer."""
        seconds = GIVEN_UP_FACTOR * after_s
        if is_whole:
            self.record_whole(n_bytes, seconds, now)
        else:
            self.record_stream(n_bytes, seconds, None, now)

    def predict(self, n_bytes: int, max_tokens: int | None, now: float, share: float) -> SpeedPrediction | None:
        """The prediction for a request of this length; None: too few samples. share: the percentile, 0.5 to 0.99."""
        size, since = n_bytes.bit_length(), now - MAX_AGE_S
        streams = _nearest([one for one in self._streams if one.at >= since], size)
        durations = _nearest([one for one in self._durations if one.at >= since], size)
        n = len(streams) + len(durations)
        if n < LEAST:
            return None
        whole_s = quantile_of([one.seconds for one in durations], share) if durations else None
        if not streams:
            return SpeedPrediction(whole_s or 0.0, whole_s or 0.0, n)
        first_s = quantile_of([one.seconds for one in streams], share)
        gaps = [one.per_token_s for one in streams if one.per_token_s is not None]
        lengths = [tokens for at, tokens in self._lengths if at >= since]
        n_tokens = quantile_of(lengths, share) if lengths else 0
        if max_tokens is not None and n_tokens > max_tokens:
            n_tokens = max_tokens
        end_s = first_s + n_tokens * quantile_of(gaps, share) if gaps else first_s
        if whole_s is not None and len(durations) >= LEAST and whole_s >= first_s:
            end_s = min(end_s, whole_s) if gaps else whole_s
        return SpeedPrediction(first_s, end_s, n)

    def __repr__(self) -> str:
        return f"<TierSpeed: {len(self._streams)} streams, {len(self._durations)} whole answers>"


def _nearest(samples: Sequence[_SpeedSample], size: int) -> list[_SpeedSample]:
    """The samples of this length; where they are few, also those of the nearest lengths."""
    found: list[_SpeedSample] = []
    for distance in sorted({abs(one.size - size) for one in samples}):
        found += [one for one in samples if abs(one.size - size) == distance]
        if len(found) >= ENOUGH:
            break
    return found
