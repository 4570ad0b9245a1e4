"""Which answers of a route may be served again, and for how long.

Rule: a cache is off unless the route enables it; then it serves only what both the operator and the client allow, and only
if the model would have answered about the same again:

    may be stored     temperature <= max_temperature, or a seed is set, or there is no sampling (embeddings)
    is fresh          age <= ttl_s, and age <= the client's max-age
    is stale          older by at most stale_while_revalidate_s: served at once, and renewed in the background
    stale-if-error    older by at most stale_if_error_s: served only if the call for a new answer fails
    is unusable       from the future by more than MAX_CLOCK_SKEW_S, as the clock that stamped it was ahead

Without a temperature a request uses its provider's default, mostly 1. Clients use HTTP's Cache-Control directives, which
only restrict the route's settings: no-store, no-cache (no look-up, but storage), max-age, only-if-cached; also a storage
time and a namespace. Source: RFC 9111, 5.2.1, and RFC 5861 for stale answers.
When wrong: a provider that changes a model behind its name is not noticed until ttl_s ends or `epoch` changes.
"""

from dataclasses import dataclass, field
from math import inf
from typing import Annotated, Literal

from stayfast.core.setting import SettingDoc, check_bounds
from stayfast.core.types import CacheControl, Word
from stayfast.policy.cache.similarity import SemanticConfig


class Freshness(Word):
    FRESH = "fresh"  # serve it
    STALE = "stale"  # serve it, and renew it in the background
    STALE_IF_ERROR = "spare"  # serve it only if a new answer cannot be had (stale-if-error)


FRESH, STALE, SPARE = Freshness
DEFAULT_TEMPERATURE = 1.0  # of a request without one: the default of OpenAI, Anthropic, vLLM


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """The cache of one route. `epoch`: any word; changing it invalidates all answers."""

    mode: Annotated[Literal["off", "exact", "semantic"], SettingDoc(
        "exact: equal requests share one call and its answer. semantic: so do questions with the same meaning, within "
        "`max_error`. off: no cache.")] = "off"
    ttl_s: Annotated[float, SettingDoc("Lifetime of an answer.", more_than=0, maximum=31_536_000)] = 86_400.0
    max_temperature: Annotated[float, SettingDoc(
        "Highest temperature of cacheable requests without a seed. A missing temperature counts as 1.",
        minimum=0, maximum=2)] = 0.3
    max_bytes: Annotated[int, SettingDoc(
        "Memory for answers, per worker.", minimum=1024, maximum=1 << 40)] = 64 * 1024 * 1024
    max_answer_bytes: Annotated[int, SettingDoc(
        "Longest answer that is stored.", minimum=1024, maximum=1 << 40)] = 1024 * 1024
    epoch: Annotated[str, SettingDoc(
        "Any word; a change discards all stored answers, for example after new knowledge.")] = ""
    stale_while_revalidate_s: Annotated[float, SettingDoc(
        "Time after `ttl_s` in which an answer is served and refreshed in the background.",
        minimum=0, maximum=31_536_000)] = 0.0
    stale_if_error_s: Annotated[float, SettingDoc(
        "Time after `ttl_s` in which an answer is served if the call fails.", minimum=0, maximum=31_536_000)] = 0.0
    store: Annotated[str, SettingDoc(
        "A name in `stores`, shared by routes and workers. Empty: memory of this route, `max_bytes`.")] = ""
    semantic: Annotated[SemanticConfig, SettingDoc(
        "Settings of the semantic cache.", is_inline=True)] = field(default_factory=SemanticConfig)

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.max_answer_bytes > self.max_bytes:
            raise ValueError(f"max_answer_bytes must be at most max_bytes ({self.max_bytes}), not "
                             f"{self.max_answer_bytes}")

    @property
    def storage_s(self) -> float:
        """The age at which an answer is of no more use, and a store may drop it."""
        return self.ttl_s + max(self.stale_while_revalidate_s, self.stale_if_error_s)


def is_too_random(config: CacheConfig, temperature: float | None, *, is_seeded: bool) -> bool:
    """Whether repeated sampling would give different answers, so that an answer must not be reused."""
    warmth = DEFAULT_TEMPERATURE if temperature is None else temperature
    return warmth > config.max_temperature and not is_seeded


def max_fresh_age_s(config: CacheConfig, control: CacheControl | None) -> float:
    requested_s = inf if control is None or control.max_age_s is None else control.max_age_s
    return min(config.ttl_s, requested_s)


MAX_CLOCK_SKEW_S = 5.0  # largest tolerated difference between the clocks of machines that share a store


def age_of(stored_at: float, now_wall: float) -> float:
    """Seconds since an answer was stored; infinite if it is from the future, as it would never grow old."""
    age_s = now_wall - stored_at
    return max(0.0, age_s) if age_s >= -MAX_CLOCK_SKEW_S else inf


def freshness_of(config: CacheConfig, age_s: float, max_age_s: float = inf) -> Freshness | None:
    """How an answer of this age may be used; None: not at all. `max_age_s`: the client's."""
    if age_s > max_age_s:
        return None
    if age_s <= config.ttl_s:
        return FRESH
    if age_s <= config.ttl_s + config.stale_while_revalidate_s:
        return STALE
    return SPARE if age_s <= config.ttl_s + config.stale_if_error_s else None


def merge_directives(one: CacheControl | None, other: CacheControl | None) -> CacheControl | None:
    """The combination of two sets of directives for the same request."""
    if one is None or other is None:
        return one or other
    return CacheControl(one.no_store or other.no_store, one.no_cache or other.no_cache,
                        one.only_if_cached or other.only_if_cached, _shorter(one.max_age_s, other.max_age_s),
                        one.tags + other.tags, _shorter(one.keep_s, other.keep_s), one.namespace or other.namespace)


def _shorter(one_s: float | None, other_s: float | None) -> float | None:
    return min((seconds for seconds in (one_s, other_s) if seconds is not None), default=None)
