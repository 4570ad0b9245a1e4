"""Which answers of a route may be given twice, and for how long.

Problem: a cache answers in no time, and wrongly where nobody looked. Rule: off, unless a route says so; then only what its
operator and its client both allow, and only where the model would have said about the same again:

    may be kept     sampling is cold (temperature <= max_temperature, or a seed), or has no part in it (embeddings)
    is fresh        age <= ttl_s, and age <= the client's max-age
    is stale        older by at most stale_while_revalidate_s: given at once all the same, and made again meanwhile
    is spare        older by at most stale_if_error_s: given where the call for another one fails
    is nothing      from the future by more than SKEW_S: the clock that it was stamped by was ahead

A request without a temperature is drawn at its provider's own, which is 1 nearly everywhere: such a route needs
max_temperature: 1, by which its operator says that one good answer is as good as the next. The client's words are those of
HTTP's Cache-Control, and they can only make it stricter: no-store (neither look nor keep), no-cache (do not look, but keep),
max-age, only-if-cached; and two that people know from elsewhere: a time to keep the answer, and a namespace. What a
request is judged by besides stands in `wire.canonical`; its answer, in `wire.replay`.
Source: RFC 9111, 5.2.1, and RFC 5861 for what is stale; the published caches' own complaints for the rest
(docs/concepts/cache.md).
When wrong: a provider that changes a model behind its name changes nothing here until ttl_s is over, or `epoch` is another.
"""

from dataclasses import dataclass, field
from math import inf
from typing import Annotated, Literal

from stayfast.core.setting import SettingDoc, check_bounds
from stayfast.core.types import CacheControl, Word
from stayfast.policy.cache.similarity import SemanticConfig


class Use(Word):
    """What a kept answer is good for."""

    FRESH = "fresh"  # to be given
    STALE = "stale"  # to be given, and made again behind its back
    SPARE = "spare"  # to be given where nobody makes another


FRESH, STALE, SPARE = Use
UNSAID_TEMPERATURE = 1.0  # of a request that has none: the default of OpenAI, Anthropic, vLLM


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """The cache of one route. `epoch`: any word; another one forgets everything."""

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
    def keep_s(self) -> float:
        """How long an answer may be of use; a store may forget it then."""
        return self.ttl_s + max(self.stale_while_revalidate_s, self.stale_if_error_s)


def is_too_warm(config: CacheConfig, temperature: float | None, *, is_seeded: bool) -> bool:
    """Whether another drawing would say something else, so that no answer stands for the next one."""
    warmth = UNSAID_TEMPERATURE if temperature is None else temperature
    return warmth > config.max_temperature and not is_seeded


def fresh_for_s(config: CacheConfig, control: CacheControl | None) -> float:
    """How old an answer may be, in seconds."""
    requested_s = inf if control is None or control.max_age_s is None else control.max_age_s
    return min(config.ttl_s, requested_s)


SKEW_S = 5.0  # clocks of machines that share a store differ by less


def age_of(stored_at: float, now_wall: float) -> float:
    """Seconds since an answer was kept; infinite for one from the future, whose clock was ahead: it would never grow old."""
    age_s = now_wall - stored_at
    return max(0.0, age_s) if age_s >= -SKEW_S else inf


def use_of(config: CacheConfig, age_s: float, max_age_s: float = inf) -> Use | None:
    """What an answer of this age is good for. max_age_s: its client's, beyond which it is good for nothing."""
    if age_s > max_age_s:
        return None
    if age_s <= config.ttl_s:
        return FRESH
    if age_s <= config.ttl_s + config.stale_while_revalidate_s:
        return STALE
    return SPARE if age_s <= config.ttl_s + config.stale_if_error_s else None


def stricter(one: CacheControl | None, other: CacheControl | None) -> CacheControl | None:
    """What holds of two wishes for the same request."""
    if one is None or other is None:
        return one or other
    return CacheControl(one.no_store or other.no_store, one.no_cache or other.no_cache,
                        one.only_if_cached or other.only_if_cached, _shorter(one.max_age_s, other.max_age_s),
                        one.tags + other.tags, _shorter(one.keep_s, other.keep_s), one.namespace or other.namespace)


def _shorter(one_s: float | None, other_s: float | None) -> float | None:
    return min(inf if one_s is None else one_s, other_s) if other_s is not None else one_s
