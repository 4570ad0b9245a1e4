"""The report in a terminal. The headline is latency from the *intended* start; an invalid run says so before any figure."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import isnan
from typing import Final

from stayfast.core import units as amounts
from stayfast.core.units import printable
from stayfast.lab.load.stats import Measured
from stayfast.lab.report.assertions import SHARES, Checked
from stayfast.lab.report.compare import Comparison, Interval, Row

_RANKS: Final = (("p50", 0.5), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99), ("p99.9", 0.999), ("max", 1.0))
_HEADLINE: Final = (("ttft_sched", "to the first token"), ("e2e_sched", "to the last token"))
_BESIDE: Final = (("ttft", "to the first token"), ("ttfo", "first beyond reasoning"), ("e2e", "to the last token"),
                  ("ttfb", "to the answer's head"), ("tpot", "per output token"), ("gap", "between chunks, pooled"),
                  ("gap_max", "longest gap of an answer"))
_WIDTH: Final = 9


class Ink:
    """Colours, or none: where the output is no terminal, or NO_COLOR is set."""

    def __init__(self, *, is_on: bool) -> None:
        self._is_on = is_on

    @classmethod
    def choose(cls, *, is_terminal: bool, no_color: str | None) -> "Ink":
        """By the convention of no-color.org: any non-empty value of NO_COLOR turns colour off."""
        return cls(is_on=is_terminal and not no_color)

    def _with(self, code: str, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._is_on else text

    def red(self, text: str) -> str:
        return self._with("1;31", text)

    def green(self, text: str) -> str:
        return self._with("32", text)

    def bold(self, text: str) -> str:
        return self._with("1", text)

    def dim(self, text: str) -> str:
        return self._with("2", text)


def report(runs: Sequence[Measured], ink: Ink) -> str:
    """All runs: each in full where there are one or two, else one line each under a common head."""
    return "\n".join(_one(run, ink) for run in runs) if len(runs) <= 2 else _many(runs, ink)


def comparison(result: Comparison, ink: Ink) -> str:
    level = f"{result.config.level:.0%} interval"
    lines = [ink.bold(f"{printable(result.label_a)} (A) against {printable(result.label_b)} (B)"),
             *(ink.red(f"careful: {printable(warning)}") for warning in result.warnings),
             ink.dim(f"  {'':16}{'A':>{_WIDTH}}{'B':>{_WIDTH}}   {f'B - A, {level}':32} B / A, {level}")]
    lines += [_compared(row, ink) for row in result.rows if not isnan(row.a) or not isnan(row.b)]
    if result.invalid:
        lines.append(ink.red(f"not judged: {printable(' and '.join(result.invalid))} invalid; measure again"))
    elif result.regressions:
        lines.append(ink.red(f"regressed by more than {result.config.threshold:.0%}: {', '.join(result.regressions)}"))
    else:
        lines.append(ink.green(f"no regression of more than {result.config.threshold:.0%} seen"))
    return "\n".join(lines) + "\n"


def assertions(checks: Iterable[Checked], ink: Ink) -> str:
    return "".join(f"{ink.green('holds') if check.holds else ink.red('FAILS')}  {printable(check.assertion.read_as)}: "
                   f"{actual(check)}{f' ({check.why})' if check.why else ''}\n" for check in checks)


def actual(check: Checked) -> str:
    wanted = check.assertion
    if wanted.statistic:
        return amounts.seconds_in_unit(check.actual, wanted.unit or "s")
    show = amounts.share if wanted.metric in SHARES else amounts.three
    return show(check.actual)


def _one(run: Measured, ink: Ink) -> str:
    result = run.result
    kind = f"{result.mode}{', virtual time' if result.is_virtual else ''}"
    lines = ["", ink.bold(printable(result.label)) + ink.dim(printable(
        f"  {result.subject.url} {result.subject.dialect} {result.subject.model} - {kind}, seed {result.seed}"))]
    lines += _validity(run, ink)
    lines += [ink.bold(f"  {'from the intended start':36}") + "".join(f"{name:>{_WIDTH}}" for name, _ in _RANKS)]
    lines += [_latency(run, name, words, ink.bold) for name, words in _HEADLINE]
    lines += [ink.dim("  from the actual send")]
    lines += [_latency(run, name, words, str) for name, words in _BESIDE if name in run.told]
    return "\n".join([*lines, "", *_counts(run, ink), ""])


def _latency(run: Measured, name: str, words: str, paint: Callable[[str], str]) -> str:
    cells = "".join(f"{amounts.ranked(run.ranked(name, share)):>{_WIDTH}}" for _, share in _RANKS)
    line = f"{name:11}{words:25}{cells}"
    return "  " + (paint(line))


def _validity(run: Measured, ink: Ink) -> list[str]:
    result = run.result
    lines = [ink.red(f"  INVALID: {printable(reason)}") for reason in result.health.verdict]
    if run.error_share == 1:  # why comes before all that follows from it
        return [*(ink.red(f"  {printable(note)}") for note in result.notes), *lines]
    if run.error_share >= 0.01:
        lines.append(ink.red(f"  {amounts.share(run.error_share)} of the offered failed: "
                             "the latencies below are of the answers that were left, and a rank among the failed says so"))
    return [*lines, *(ink.dim(f"  {printable(note)}") for note in result.notes)]


def _counts(run: Measured, ink: Ink) -> list[str]:
    result, goodput = run.result, run.goodput
    slo = " ".join(f"{name}<={amounts.seconds(bound_s).replace(' ', '')}" for name, bound_s in goodput.slo.bounds().items())
    good = ink.bold(amounts.share(goodput.share))
    lines = [f"  good      {good} of {amounts.count(run.n_offered)} offered, {amounts.rate(run.rate(goodput.n_good))}; "
             + (slo or "no SLO was set: whole answers")]
    if goodput.misses:
        lines.append(f"  missed    {_listed(goodput.misses)}")
    n_failed = run.n_offered - run.n_whole
    failed = f"  failed    {amounts.count(n_failed)} ({amounts.share(run.error_share)})"
    lines.append(ink.red(f"{failed}: {_listed(run.errors)}") if n_failed else failed)
    lines.append(f"  rate      {amounts.rate(run.rate(run.n_offered))} offered, {amounts.rate(run.rate(run.n_output))} "
                 f"output tokens (by {result.counted_by}) over {amounts.seconds(result.duration_s)}; "
                 f"spike p99/p50 of ttft_sched {amounts.factor(run.spike_factor())}")
    health = result.health
    late = ", ".join(f"{name} {amounts.seconds(value_s)}" for name, value_s in (
        ("p50", health.lateness_p50_s), ("p99", health.lateness_p99_s), ("max", health.lateness_max_s)))
    return [*lines, ink.dim(f"  client    late {late}; loop lag p99 {amounts.seconds(health.loop_lag_p99_s)}")]


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{cause} {amounts.count(n)}" for cause, n in by_size(counts))


def _many(runs: Sequence[Measured], ink: Ink) -> str:
    """A sweep, or several targets: a line each."""
    wide = max(8, *(len(printable(run.result.label)) for run in runs))
    heads = ("ttft_sched p50", "p99", "e2e_sched p50", "p99", "tpot p50", "good", "good/s", "failed")
    lines = [ink.bold("  " + " " * wide + "".join(f"{head:>{max(_WIDTH, len(head) + 2)}}" for head in heads))]
    for run in runs:
        cells = (*(amounts.ranked(run.ranked(name, share)) for name, share in (
            ("ttft_sched", 0.5), ("ttft_sched", 0.99), ("e2e_sched", 0.5), ("e2e_sched", 0.99), ("tpot", 0.5))),
            amounts.share(run.goodput.share), amounts.rate(run.rate(run.goodput.n_good)), amounts.share(run.error_share))
        line = "".join(f"{cell:>{max(_WIDTH, len(head) + 2)}}" for head, cell in zip(heads, cells, strict=True))
        lines.append(f"  {printable(run.result.label):{wide}}{line}")
        lines += _validity(run, ink)
    return "\n".join(["", *lines, ""])


def _compared(row: Row, ink: Ink) -> str:
    is_share = row.quantity in {"goodput", "errors"}
    show = amounts.share if is_share else amounts.seconds
    paint = ink.red if row.is_regression else ink.green if row.verdict == "better" else ink.dim
    few = ", few values" if row.is_few else ""
    of = row.ratio
    ratio = amounts.DASH if isnan(of.value) else f"{of.value:.3f} [{of.low:.3f}, {of.high:.3f}]"
    between = f"{_span(row.difference, is_share=is_share):32} {ratio:24}"
    return f"  {row.quantity:16}{show(row.a):>{_WIDTH}}{show(row.b):>{_WIDTH}}   {between} {paint(row.verdict + few)}"


def _span(interval: Interval, *, is_share: bool) -> str:
    if isnan(interval.value):
        return amounts.DASH
    show = amounts.share if is_share else amounts.seconds
    signed = ["+" * (value > 0) + show(value) for value in (interval.value, interval.low, interval.high)]
    return f"{signed[0]} [{signed[1]}, {signed[2]}]"


def by_size(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
