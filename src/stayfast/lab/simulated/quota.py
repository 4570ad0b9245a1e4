"""What a key may use: buckets that really refill, as the provider's rate-limit headers tell."""

from dataclasses import dataclass
from typing import Annotated, Final

from stayfast.lab.simulated.vendor import Limit, Trouble, over_limit
from stayfast.policy.admission.quota import Bucket
from stayfast.settings.about import About

_FIELDS: Final = {"requests": "requests_per_min", "tokens": "tokens_per_min", "input-tokens": "input_tokens_per_min",
                  "output-tokens": "output_tokens_per_min"}


@dataclass(frozen=True, slots=True)
class Quota:
    """Limits a minute; None: no limit. OpenAI and Azure know requests and tokens, Anthropic all four.

    burst_s: a bucket holds what comes in so many seconds, one request or token at least; that is the limit which headers
    and errors tell. Output is charged in advance by what the request allows itself (`max_tokens`), or by `assumed_output`
    tokens, and corrected when the answer ends.
    """

    requests_per_min: Annotated[int | None, About(
        "Requests a minute. null: no limit.", minimum=1, maximum=1_000_000_000)] = None
    tokens_per_min: Annotated[int | None, About(
        "Tokens, prompt and answer together, a minute. null: no limit.", minimum=1, maximum=1_000_000_000)] = None
    input_tokens_per_min: Annotated[int | None, About(
        "Tokens of prompts a minute. null: no limit.", minimum=1, maximum=1_000_000_000)] = None
    output_tokens_per_min: Annotated[int | None, About(
        "Tokens of answers a minute. null: no limit.", minimum=1, maximum=1_000_000_000)] = None
    burst_s: Annotated[float, About("A bucket holds what comes in so many seconds.", more_than=0, maximum=3600)] = 60.0
    assumed_output: Annotated[int, About(
        "Tokens charged in advance for an answer whose request sets no limit.", minimum=0, maximum=1000000)] = 256

    def __post_init__(self) -> None:
        for name in _FIELDS.values():
            value = getattr(self, name)
            if value is not None and not 1 <= value <= 1_000_000_000:
                raise ValueError(f"{name} must be from 1 to 1000000000, not {value}")
        if not 0 < self.burst_s <= 3600:
            raise ValueError(f"burst_s must be more than 0 and at most 3600, not {self.burst_s}")
        if not 0 <= self.assumed_output <= 1_000_000:
            raise ValueError(f"assumed_output must be from 0 to 1000000, not {self.assumed_output}")


class Meter:
    """The buckets of one provider. One loop."""

    def __init__(self, quota: Quota, now: float) -> None:
        self._quota = quota
        self._buckets: dict[str, Bucket] = {}
        for name, field in _FIELDS.items():
            per_min = getattr(quota, field)
            if per_min is not None:
                self._buckets[name] = Bucket(max(1.0, per_min * quota.burst_s / 60), per_min / 60, now)

    def admit(self, n_input: int, most_output: int | None, model: str, now: float) -> "Trouble | Charge":
        """Take a request's tokens from every bucket, or from none and say which one lacks them."""
        n_output = most_output if most_output is not None else self._quota.assumed_output
        costs = {"requests": 1, "tokens": n_input + n_output, "input-tokens": n_input, "output-tokens": n_output}
        for name, bucket in self._buckets.items():
            if not bucket.has(costs[name], now):
                cost = costs[name]
                return over_limit(self._limit(name, now), cost, model, bucket.wait_s(cost, now))
        for name, bucket in self._buckets.items():
            bucket.take(costs[name], now)
        return Charge(self, n_output)

    def correct(self, n_tokens: int, now: float) -> None:
        """Charge (or, when negative, give back) output tokens that the estimate had wrong."""
        for name in ("tokens", "output-tokens"):
            bucket = self._buckets.get(name)
            if bucket is not None:
                bucket.charge(n_tokens, now)

    def limits(self, now: float) -> list[Limit]:
        """Every limit as it stands."""
        return [self._limit(name, now) for name in self._buckets]

    def _limit(self, name: str, now: float) -> Limit:
        bucket = self._buckets[name]
        return Limit(name, int(bucket.capacity), max(0, int(bucket.level(now))), bucket.full_in_s(now),
                     max(self._quota.burst_s, 1 / bucket.per_s))


class Charge:
    """What one request was charged in advance."""

    __slots__ = ("_meter", "_n_output")

    def __init__(self, meter: Meter, n_output: int) -> None:
        self._meter = meter
        self._n_output = n_output

    def settle(self, n_output: int, now: float) -> None:
        """The answer has ended after `n_output` tokens."""
        self._meter.correct(n_output - self._n_output, now)
