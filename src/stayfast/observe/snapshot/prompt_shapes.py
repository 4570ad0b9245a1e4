"""Shapes of the prompts of each route in the last hour, from samples (`pipeline.request_sampler`).

Growth is the slope of input tokens by messages. The correlations are Pearson's r of logarithms, for the reasons in
`policy.findings.correlation`, inside of each upstream; those of TTFT are over streamed answers.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from stayfast.core.samples import PromptSampled
from stayfast.core.snapshot import PromptRow
from stayfast.observe.snapshot.tallies import PackedTally, RowTally, TallyWindow, merge_tallies
from stayfast.policy.findings.correlation import PairSums, pool_pairs, slope_within

SPAN_S: Final = 3600.0
SLOT_S: Final = 120.0
MAX_BIASES: Final = 64  # different ones that a slot tells apart
_TOKENS: Final = ("input_tokens", "system_tokens", "tool_tokens", "history_tokens", "retrieved_tokens")
_BY_INPUT, _BY_LOAD, _BY_OUTPUT = "ttft by input of ", "ttft by load of ", "e2e by output of "  # and the upstream
PromptParts = Mapping[str, PackedTally]  # by route


class PromptShapes:
    """The samples of one worker. For one event loop."""

    __slots__ = ("_window",)

    def __init__(self) -> None:
        self._window = TallyWindow(SPAN_S, SLOT_S)

    def consume(self, samples: Sequence[PromptSampled]) -> None:
        for sample in samples:
            _add_sample(self._window.at(sample.route, sample.at), sample)

    def collect(self, now: float) -> PromptParts:
        return self._window.collect(now)


def _add_sample(tally: RowTally, sample: PromptSampled) -> None:
    counts, histograms, pairs = tally.counts, tally.histograms, tally.pairs
    counts["n"] += 1
    counts["n_repeated"] += sample.is_repeated
    histograms["input_tokens"].add(sample.input_tokens)
    if sample.has_parts:
        for name in _TOKENS[1:]:
            histograms[name].add(getattr(sample, name))
        histograms["n_messages"].add(sample.n_messages)
        counts["n_images"] += sample.n_images
        pairs["growth"].add(sample.n_messages, sample.input_tokens)
    if sample.max_tokens is None:
        counts["n_uncapped"] += 1
    else:
        histograms["max_tokens"].add(sample.max_tokens)
    if sample.bias_digest is not None:
        counts["n_logit_bias"] += 1
        if len(tally.marks["biases"]) < MAX_BIASES:
            tally.marks["biases"].add(sample.bias_digest)
    if sample.shared_prefix_ratio is not None:
        counts["n_shared"] += 1
        counts["shared"] += sample.shared_prefix_ratio
    for name, value in (("client_timeout_s", sample.client_timeout_s), ("output_tokens", sample.output_tokens)):
        if value is not None:
            histograms[name].add(value)
    _add_pairs(tally, sample)


def _add_pairs(tally: RowTally, sample: PromptSampled) -> None:
    pairs, upstream = tally.pairs, sample.upstream
    if sample.ttft_s is not None:
        pairs[f"{_BY_INPUT}{upstream}"].add_logs(sample.input_tokens, sample.ttft_s)
        if sample.n_running is not None:
            pairs[f"{_BY_LOAD}{upstream}"].add_logs(sample.n_running, sample.ttft_s)
    if sample.e2e_s is not None and sample.output_tokens is not None:
        pairs[f"{_BY_OUTPUT}{upstream}"].add_logs(sample.output_tokens, sample.e2e_s)


def _of_upstreams(tally: RowTally, figure: str) -> list[PairSums]:
    """The sums of each upstream of the route."""
    return [sums for name, sums in tally.pairs.items() if name.startswith(figure)]


def merge_prompts(parts: Iterable[PromptParts]) -> tuple[PromptRow, ...]:
    """The rows of all workers' samples, by route."""
    return tuple([_prompt_row(route, tally) for route, tally in sorted(merge_tallies(parts).items())])


def _prompt_row(route: str, tally: RowTally) -> PromptRow:
    growth, by_input = tally.pairs["growth"].slope, slope_within(_of_upstreams(tally, _BY_INPUT))
    correlations = [pool_pairs(_of_upstreams(tally, figure))[0].correlation for figure in (_BY_INPUT, _BY_LOAD, _BY_OUTPUT)]
    n_shared = tally.counts["n_shared"]
    return PromptRow(
        route, tally.n(), **{name: tally.spread(name) for name in _TOKENS}, n_repeated=tally.n("n_repeated"),
        n_messages=tally.spread("n_messages"), growth_tokens=growth, max_tokens=tally.spread("max_tokens"),
        n_uncapped=tally.n("n_uncapped"), n_logit_bias=tally.n("n_logit_bias"), n_logit_biases=len(tally.marks["biases"]),
        n_images=tally.n("n_images"), client_timeout_s=tally.spread("client_timeout_s"),
        output_tokens=tally.spread("output_tokens"),
        shared_prefix_ratio=tally.counts["shared"] / n_shared if n_shared else None,
        ttft_by_input=correlations[0], ttft_by_load=correlations[1], e2e_by_output=correlations[2],
        s_per_1k_input=1000.0 * by_input if by_input is not None else None)
