"""The settings of a simulated provider, with defaults and ranges.

A preset has the figures of a known provider; other settings override parts of it. "Assumed" marks figures without a public
source: stalls, incidents, cold starts, queues and prices are for experiments.

Waits are a mixture of two lognormals. Problem: the p99 of providers fits no Gaussian and no single lognormal (gpt-4o: p95 is
1.8 times the median, p99 seven times). Rule: a share `tail_share` of requests has a second, slower lognormal:

    cdf(x) = (1 - tail_share) * Phi(ln(x / median_s) / sigma) + tail_share * Phi(ln(x / tail_median_s) / tail_sigma)

The closed form allows a measurement to be compared with the true value (`quantile`, `cdf`).
Source: fits to p50, p95 and p99 of modelstats.ai's pings; bodies and tails as published there, `tail_sigma` 0.45.
When wrong: the real tail is not lognormal, and p99.9 of a fit to 288 pings is a guess.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import erf, exp, log, sqrt
from random import Random
from types import MappingProxyType
from typing import Annotated, Final

from stayfast.core.setting import SettingDoc, check_bounds
from stayfast.lab.simulated.engine import EngineModel
from stayfast.lab.simulated.faults import FaultRule, Regimes
from stayfast.lab.simulated.prompt_cache import PromptCacheModel
from stayfast.lab.simulated.vendor import Vendor, VendorQuota


@dataclass(frozen=True, slots=True)
class Mixture:
    """A body and a tail. Medians in seconds; sigmas are of the logarithm; 0: always the median."""

    median_s: Annotated[float, SettingDoc("Median of the body.", minimum=0, maximum=3600)] = 0.0
    sigma: Annotated[float, SettingDoc("Sigma of the logarithm; 0: always the median.", minimum=0, maximum=3)] = 0.0
    tail_share: Annotated[float, SettingDoc("Share of requests in the tail.", minimum=0, maximum=1)] = 0.0
    tail_median_s: Annotated[float, SettingDoc("Median of the tail.", minimum=0, maximum=3600)] = 1.0
    tail_sigma: Annotated[float, SettingDoc("Sigma of the tail's logarithm.", minimum=0, maximum=3)] = 0.45

    def __post_init__(self) -> None:
        check_bounds(self)

    def draw(self, rng: Random, luck: float) -> float:
        """One wait in seconds. `luck`, uniform in [0, 1), selects body or tail; equal luck is a shared tail."""
        if luck < self.tail_share:
            return self.tail_median_s * exp(self.tail_sigma * rng.gauss())
        return self.median_s * exp(self.sigma * rng.gauss())

    def scale(self, factor: float) -> "Mixture":
        return replace(self, median_s=self.median_s * factor, tail_median_s=self.tail_median_s * factor)

    @property
    def mean_s(self) -> float:
        return ((1 - self.tail_share) * self.median_s * exp(self.sigma**2 / 2)
                + self.tail_share * self.tail_median_s * exp(self.tail_sigma**2 / 2))

    def cdf(self, seconds: float) -> float:
        """The share of waits that are `seconds` or shorter."""
        return ((1 - self.tail_share) * _lognormal_cdf(seconds, self.median_s, self.sigma)
                + self.tail_share * _lognormal_cdf(seconds, self.tail_median_s, self.tail_sigma))

    def quantile(self, p: float) -> float:
        """The `p` quantile in seconds. Raises ValueError unless 0 < p < 1."""
        if not 0 < p < 1:
            raise ValueError(f"p must be between 0 and 1, not {p}")
        low, high = 0.0, max(self.median_s, self.tail_median_s)
        while self.cdf(high) < p:
            high *= 2.0
        while high - low > high * 1e-12:
            middle = (low + high) / 2
            if self.cdf(middle) < p:
                low = middle
            else:
                high = middle
        return high


def _lognormal_cdf(seconds: float, median_s: float, sigma: float) -> float:
    if median_s == 0 or sigma == 0:
        return 1.0 if seconds >= median_s else 0.0
    if seconds <= 0:
        return 0.0
    return (1 + erf(log(seconds / median_s) / (sigma * sqrt(2)))) / 2


@dataclass(frozen=True, slots=True)
class GapConfig:
    """The pace of a running answer: seconds per token, and how tokens are bundled into chunks and writes.

    A chunk of k tokens takes k gaps, with the sigma of the mean of k gaps. Defaults are assumed.
    """

    median_s: Annotated[float, SettingDoc("Median per token.", minimum=0, maximum=60)] = 0.011
    sigma: Annotated[float, SettingDoc("Sigma of the logarithm.", minimum=0, maximum=3)] = 0.3
    tokens_per_chunk: Annotated[int, SettingDoc("Tokens per event.", minimum=1, maximum=10000)] = 1
    chunks_per_write: Annotated[int, SettingDoc(
        "Events sent together, as behind a buffering proxy.", minimum=1, maximum=10000)] = 1

    def __post_init__(self) -> None:
        check_bounds(self)

    def draw(self, rng: Random, n_tokens: int) -> float:
        """Seconds for the next `n_tokens` tokens together."""
        if self.sigma == 0:
            return n_tokens * self.median_s
        if n_tokens == 1:
            return self.median_s * exp(self.sigma * rng.gauss())
        return n_tokens * self.median_s * exp(self.sigma / sqrt(n_tokens) * rng.gauss())

    def chunk_gaps(self, n_tokens: int) -> Mixture:
        """The distribution of the gaps between chunks of `n_tokens` tokens each, in closed form."""
        return Mixture(n_tokens * self.median_s, self.sigma / sqrt(n_tokens))


@dataclass(frozen=True, slots=True)
class Preset:
    """The figures of one provider: TTFT fitted to published percentiles of small prompts; gaps from published tokens per
    second, else assumed.
    """

    ttft: Mixture
    gaps: GapConfig
    vendor: Vendor = "openai"


def _fitted_ttft(median_ms: float, sigma: float, tail_share: float, tail_median_ms: float) -> Mixture:
    return Mixture(median_ms / 1000, sigma, tail_share, tail_median_ms / 1000, 0.45)


def _token_rate(tokens_per_s: float, tokens_per_chunk: int = 1) -> GapConfig:
    return GapConfig(1 / tokens_per_s, 0.3, tokens_per_chunk)


# TTFT: fits of modelstats.ai pings (24 h, one place, n = 288 a model), not ground truth. Pace: costhawk's medians of
# March 2026 for gpt-4o (90 tokens/s), gpt-4o-mini (120), gemini-flash (150), sonnet (80), opus (40); the others assumed.
PRESETS: Final = MappingProxyType({
    "gpt-4o-like": Preset(_fitted_ttft(632, .29, .03, 3721), _token_rate(90)),
    "gpt-4o-mini-like": Preset(_fitted_ttft(531, .23, .03, 3675), _token_rate(120)),
    "gpt-4.1-like": Preset(_fitted_ttft(719, .28, .03, 1591), _token_rate(90)),
    "gpt-4.1-mini-like": Preset(_fitted_ttft(655, .26, .03, 1787), _token_rate(120)),
    "haiku-4.5-like": Preset(_fitted_ttft(530, .55, .03, 3380), _token_rate(150, 4), "anthropic"),
    "sonnet-4.6-like": Preset(_fitted_ttft(918, .64, .03, 3154), _token_rate(80, 4), "anthropic"),
    "opus-4.6-like": Preset(_fitted_ttft(1611, .20, .05, 2599), _token_rate(40, 4), "anthropic"),
    "gemini-flash-like": Preset(_fitted_ttft(474, .27, .02, 1303), _token_rate(150, 16)),
    "gemini-flash-lite-like": Preset(_fitted_ttft(301, .51, .05, 2109), _token_rate(250, 16)),
    "deepseek-v3-like": Preset(_fitted_ttft(1475, .15, .02, 2463), _token_rate(40)),
    "instant": Preset(Mixture(0.0), GapConfig(0.0, 0.0)),
    "steady": Preset(Mixture(0.2), GapConfig(0.01, 0.0)),
})


@dataclass(frozen=True, slots=True)
class OutputLengths:
    """Tokens of an answer, if the request sets no length: a lognormal, at most `max`.

    The defaults are a fit to the answers in Azure's conversation trace of 2023.
    """

    median: Annotated[float, SettingDoc("Median, in tokens.", minimum=1, maximum=1000000)] = 151.0
    sigma: Annotated[float, SettingDoc("Sigma of the logarithm.", minimum=0, maximum=3)] = 0.86
    max: Annotated[int, SettingDoc("Longest answer, in tokens.", minimum=1, maximum=1000000)] = 4096

    def __post_init__(self) -> None:
        check_bounds(self)


@dataclass(frozen=True, slots=True)
class StallConfig:
    """Pauses inside a running answer: before each chunk with probability `share`. All assumed."""

    share: Annotated[float, SettingDoc("Share of chunks with a pause before them.", minimum=0, maximum=1)] = 0.0
    duration: Annotated[Mixture, SettingDoc("Length of a pause.")] = field(default_factory=lambda: Mixture(1.0, 0.8))

    def __post_init__(self) -> None:
        check_bounds(self)


@dataclass(frozen=True, slots=True)
class SlowdownConfig:
    """A share of answers slows down to `rate_factor` of the pace at a random point. Assumed."""

    share: Annotated[float, SettingDoc("Share of answers.", minimum=0, maximum=1)] = 0.0
    rate_factor: Annotated[float, SettingDoc("Remaining share of the token rate.", more_than=0, maximum=1)] = 0.3

    def __post_init__(self) -> None:
        check_bounds(self)


@dataclass(frozen=True, slots=True)
class ColdStart:
    """After `after_idle_s` without a request, the next requests wait for a container and then for the model.

    Both waits are uniform between their bounds, in seconds. Providers do not publish how often this happens.
    """

    after_idle_s: Annotated[float, SettingDoc("Idle time after which it is cold.", more_than=0, maximum=86_400)] = 300.0
    starts_cold: Annotated[bool, SettingDoc("The first request finds it cold.")] = True
    container_min_s: Annotated[float, SettingDoc("Shortest container start.", minimum=0, maximum=3600)] = 2.0
    container_max_s: Annotated[float, SettingDoc("Longest container start.", minimum=0, maximum=3600)] = 5.0
    load_min_s: Annotated[float, SettingDoc("Shortest model load.", minimum=0, maximum=3600)] = 3.0
    load_max_s: Annotated[float, SettingDoc("Longest model load.", minimum=0, maximum=3600)] = 8.0

    def __post_init__(self) -> None:
        check_bounds(self)
        for name in ("container", "load"):
            least, most = getattr(self, f"{name}_min_s"), getattr(self, f"{name}_max_s")
            if least > most:
                raise ValueError(f"{name}_min_s must be at most {name}_max_s, not {least} and {most}")


@dataclass(frozen=True, slots=True)
class Tariff:
    """US dollars per million tokens. Assumed: set your own prices. The prompt cache has its own factors."""

    input_usd_per_mtok: Annotated[float, SettingDoc(
        "USD per million input tokens. Assumed.", minimum=0, maximum=1_000_000)] = 1.0
    output_usd_per_mtok: Annotated[float, SettingDoc(
        "USD per million output tokens. Assumed.", minimum=0, maximum=1_000_000)] = 4.0

    def __post_init__(self) -> None:
        check_bounds(self)

    def cost_usd(self, n_input: float, n_output: int) -> float:
        return (n_input * self.input_usd_per_mtok + n_output * self.output_usd_per_mtok) / 1e6


@dataclass(frozen=True, slots=True)
class ModelTiming:
    """The timing of one model of a provider, where it differs."""

    ttft: Annotated[Mixture | None, SettingDoc("Time to the first token. null: the provider's.")] = None
    gaps: Annotated[GapConfig | None, SettingDoc("Pace of a running answer. null: the provider's.")] = None


@dataclass(frozen=True, slots=True)
class ProviderConfig:
    """One simulated provider. All random numbers come from `seed`, the provider's name and the request's number."""

    preset: Annotated[str, SettingDoc(
        "Figures of a known provider; other settings replace parts of it.", words=tuple(PRESETS))] = ""
    seed: Annotated[int, SettingDoc(
        "Seed of all random draws, with the upstream's name and the request's number.", minimum=0, maximum=2 ** 32 - 1)] = 0
    vendor: Annotated[Vendor | None, SettingDoc(
        "Vendor of the rate-limit headers and overload errors. null: the preset's.")] = None
    ttft: Annotated[Mixture | None, SettingDoc(
        "Time to the first token, without queue and prefill: a body and a tail. null: the preset's.")] = None
    gaps: Annotated[GapConfig | None, SettingDoc(
        "Pace of a running answer, in seconds per token. null: the preset's.")] = None
    by_model: Annotated[Mapping[str, ModelTiming], SettingDoc(
        "Timing of single models by name; others have the provider's.")] = field(default_factory=dict)
    output: Annotated[OutputLengths, SettingDoc(
        "Length of answers without a limit in the request: a lognormal.")] = field(default_factory=OutputLengths)
    fills_max_tokens: Annotated[bool, SettingDoc(
        "Answers are as long as allowed, as with `ignore_eos` in the request.")] = False
    head_share: Annotated[float, SettingDoc(
        "Share of the time to the first token before the response head. Assumed.", minimum=0, maximum=1)] = 1.0
    comments_every_s: Annotated[float | None, SettingDoc(
        "Interval of keep-alive comments (messages: pings) between the head and the first token. null: none. Assumed.",
        more_than=0, maximum=3600)] = None
    prefill_per_token: Annotated[float, SettingDoc(
        "Relative increase of the first wait per prompt token; 0.0001: 10,000 tokens double it.",
        minimum=0, maximum=1)] = 0.0
    embedding_share: Annotated[float, SettingDoc(
        "Time of an embedding, as a share of a time to the first token. Assumed.", minimum=0, maximum=1)] = 0.3
    tail_correlation: Annotated[float, SettingDoc(
        "Correlation of two requests of one session to be in the tail. Assumed.", minimum=0, maximum=1)] = 0.0
    tail_redraw_s: Annotated[float, SettingDoc(
        "Interval after which a session's chance of the tail is drawn again. Assumed.", more_than=0, maximum=86_400)] = 60.0
    stalls: Annotated[StallConfig, SettingDoc(
        "Pauses inside running answers. Assumed.")] = field(default_factory=StallConfig)
    slowdown: Annotated[SlowdownConfig, SettingDoc(
        "Answers whose pace drops at a random point. Assumed.")] = field(default_factory=SlowdownConfig)
    regimes: Annotated[Regimes | None, SettingDoc(
        "Bad minutes, common to all requests of a time. null: none. Assumed.")] = None
    cold_start: Annotated[ColdStart | None, SettingDoc(
        "Start of container and model after an idle time. null: none.")] = None
    quota: Annotated[VendorQuota | None, SettingDoc("Rate limits of the provider. null: none.")] = None
    prompt_cache: Annotated[PromptCacheModel | None, SettingDoc("Prompt cache of the provider. null: none.")] = None
    engine: Annotated[EngineModel | None, SettingDoc(
        "An inference engine: waits rise with load, gaps are the engine's. null: none.")] = None
    faults: Annotated[tuple[FaultRule, ...], SettingDoc("Faults; the first rule that matches a request applies.")] = ()
    cancels_on_disconnect: Annotated[bool, SettingDoc(
        "A disconnect cancels the generation; otherwise it runs to its end and is counted.")] = True
    tariff: Annotated[Tariff, SettingDoc("Prices, for the simulator's own cost count.")] = field(default_factory=Tariff)

    def __post_init__(self) -> None:
        check_bounds(self)

    @property
    def numbers(self) -> Preset:
        """The preset with its overrides."""
        preset = PRESETS[self.preset or "instant"]
        return Preset(self.ttft or preset.ttft, self.gaps or preset.gaps, self.vendor or preset.vendor)

    def numbers_of(self, model: str) -> Preset:
        """The figures of one model."""
        numbers, own = self.numbers, self.by_model.get(model)
        if own is None:
            return numbers
        return Preset(own.ttft or numbers.ttft, own.gaps or numbers.gaps, numbers.vendor)

    def ttft_for(self, n_prompt_tokens: int) -> Mixture:
        """The TTFT for a prompt of this length, in the normal regime and without an engine, in closed form."""
        return self.numbers.ttft.scale(1 + n_prompt_tokens * self.prefill_per_token)
