"""The report in a terminal. The headline is latency from the *intended* start; an invalid run says so before any figure."""

import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import isnan
from typing import Final

from stayfast.core import units as amounts
from stayfast.core.units import printable
from stayfast.lab.load.stats import Measured
from stayfast.lab.report.assertions import SHARES, Checked
from stayfast.lab.report.compare import ComparedQuantity, Comparison, Interval

_RANKS: Final = (("p50", 0.5), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99), ("p99.9", 0.999), ("max", 1.0))
_HEADLINE: Final = (("ttft_sched", "to the first token"), ("e2e_sched", "to the last token"))
_BESIDE: Final = (("ttft", "to the first token"), ("ttfo", "beyond reasoning"), ("e2e", "to the last token"),
                  ("ttfb", "to the headers"), ("tpot", "per output token"), ("gap", "between chunks"),
                  ("gap_max", "the longest gap"))
WIDTH: Final = 80  # what a table may take up, and where sentences are broken
_CELL: Final = 8
_SHARE_CELL: Final = 9  # 99.995 %
_LONGEST_LABEL: Final = WIDTH - 2 - 6 * _CELL - 2 * _SHARE_CELL
_COLUMN: Final = 12  # where sentences begin that have a name before them
_WIDE: Final = 118  # from which on a comparison has room for the differences, too


class Ink:
    """Colours and the length of lines: neither where the output is no terminal, and no colours where NO_COLOR is set."""

    def __init__(self, *, is_on: bool, width: int | None = None) -> None:
        self._is_on = is_on
        self.width = width  # columns; None: lines may be of any length

    @classmethod
    def choose(cls, *, is_terminal: bool, no_color: str | None, columns: int | None = None) -> "Ink":
        """By the convention of no-color.org: any non-empty value of NO_COLOR turns colour off."""
        return cls(is_on=is_terminal and not no_color, width=columns if is_terminal else None)

    def wrap(self, line: str, hanging: int = 2) -> list[str]:
        """A sentence as lines that fit, all but the first indented by `hanging`; addresses are not broken."""
        if self.width is None:
            return [line]
        return textwrap.wrap(line, max(40, self.width), subsequent_indent=" " * hanging, break_long_words=False,
                             break_on_hyphens=False) or [line]

    def painted(self, paint: Callable[[str], str], *sentences: str, hanging: int = 2) -> list[str]:
        """Sentences in a colour, each line of them by itself."""
        return [paint(line) for sentence in sentences for line in self.wrap(sentence, hanging)]

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
    """A line for each quantity; the differences with their intervals only where a line has room for them."""
    level, is_wide = f"{result.config.level:.0%} interval", ink.width is None or ink.width >= _WIDE
    difference = f"{f'B - A, {level}':32} " if is_wide else ""
    lines = [ink.bold(f"{printable(result.label_a)} (A) against {printable(result.label_b)} (B)"),
             *ink.painted(ink.red, *(f"careful: {printable(warning)}" for warning in result.warnings)),
             ink.dim(f"  {'':16}{'A':>{_CELL}}{'B':>{_CELL}}   {difference}B / A, {level}")]
    lines += [_compared(row, ink, is_wide=is_wide) for row in result.rows if not isnan(row.a) or not isnan(row.b)]
    if result.invalid:
        end, paint = f"not judged: {printable(' and '.join(result.invalid))} invalid; measure again", ink.red
    elif result.regressions:
        end, paint = f"regressed by more than {result.config.threshold:.0%}: {', '.join(result.regressions)}", ink.red
    else:
        end, paint = f"no regression of more than {result.config.threshold:.0%} seen", ink.green
    return "\n".join([*lines, *ink.painted(paint, end)]) + "\n"


def assertions(checks: Iterable[Checked], ink: Ink) -> str:
    lines = []
    for check in checks:
        summary = f"{printable(check.assertion.read_as)}: {actual(check)}{f' ({check.why})' if check.why else ''}"
        first, *others = ink.wrap(f"{'holds' if check.holds else 'FAILS'}  {summary}", 7)
        lines += [(ink.green if check.holds else ink.red)(first[:5]) + first[5:], *others]
    return "".join(f"{line}\n" for line in lines)


def actual(check: Checked) -> str:
    wanted = check.assertion
    if wanted.statistic:
        return amounts.seconds_in_unit(check.actual, wanted.unit or "s")
    show = amounts.share if wanted.metric in SHARES else amounts.three
    return show(check.actual)


def _one(run: Measured, ink: Ink) -> str:
    result = run.result
    kind = f"{result.mode}{', virtual time' if result.is_virtual else ''}"
    label = printable(result.label)
    first, *others = ink.wrap(printable(f"{label}  {result.subject.url} {result.subject.dialect} {result.subject.model} - "
                                        f"{kind}, seed {result.seed}"))
    lines = ["", ink.bold(label) + ink.dim(first.removeprefix(label)), *map(ink.dim, others)]
    lines += _validity(run, ink)
    lines += [ink.bold(f"  {'from the intended start':29}") + "".join(f"{name:>{_CELL}}" for name, _ in _RANKS)]
    lines += [_latency(run, name, words, ink.bold) for name, words in _HEADLINE]
    lines += [ink.dim("  from the actual send")]
    lines += [_latency(run, name, words, str) for name, words in _BESIDE if name in run.as_lines]
    return "\n".join([*lines, "", *_counts(run, ink), ""])


def _latency(run: Measured, name: str, words: str, paint: Callable[[str], str]) -> str:
    cells = "".join(f"{amounts.ranked(run.ranked(name, share)):>{_CELL}}" for _, share in _RANKS)
    line = f"{name:11}{words:18}{cells}"
    return "  " + (paint(line))


def _validity(run: Measured, ink: Ink) -> list[str]:
    result = run.result
    lines = ink.painted(ink.red, *(f"  INVALID: {printable(reason)}" for reason in result.health.verdict), hanging=4)
    notes = [f"  {printable(note)}" for note in result.notes]
    if run.error_share == 1:  # why comes before all that follows from it
        return [*ink.painted(ink.red, *notes), *lines]
    if run.error_share >= 0.01:
        failed = amounts.share(run.error_share)
        lines += ink.painted(ink.red, f"  {failed} of the offered failed: the latencies below are of the answers that were "
                                      "left, and a rank among the failed says so", hanging=4)
    return [*lines, *ink.painted(ink.dim, *notes)]


def _counts(run: Measured, ink: Ink) -> list[str]:
    result, goodput = run.result, run.goodput
    slo = " ".join(f"{name}<={amounts.seconds(bound_s).replace(' ', '')}" for name, bound_s in goodput.slo.bounds().items())
    good = amounts.share(goodput.share)
    first, *others = ink.wrap(f"  good      {good} of {amounts.count(run.n_offered)} offered, "
                              f"{amounts.rate(run.rate(goodput.n_good))}; {slo or 'no SLO was set: whole answers'}", _COLUMN)
    lines = [first.replace(good, ink.bold(good), 1), *others]
    if goodput.misses:
        lines += ink.wrap(f"  missed    {_listed(goodput.misses)}", _COLUMN)
    n_failed = run.n_offered - run.n_whole
    failed = f"  failed    {amounts.count(n_failed)} ({amounts.share(run.error_share)})"
    lines += ink.painted(ink.red, f"{failed}: {_listed(run.errors)}", hanging=_COLUMN) if n_failed else [failed]
    lines += ink.wrap(f"  rate      {amounts.rate(run.rate(run.n_offered))} offered, {amounts.rate(run.rate(run.n_output))} "
                      f"output tokens (by {result.counted_by}) over {amounts.seconds(result.duration_s)}; "
                      f"spike p99/p50 of ttft_sched {amounts.factor(run.spike_factor())}", _COLUMN)
    health = result.health
    late = ", ".join(f"{name} {amounts.seconds(value_s)}" for name, value_s in (
        ("p50", health.lateness_p50_s), ("p99", health.lateness_p99_s), ("max", health.lateness_max_s)))
    client = f"  client    late {late}; loop lag p99 {amounts.seconds(health.loop_lag_p99_s)}"
    return lines + ink.painted(ink.dim, client, hanging=_COLUMN)


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{cause} {amounts.count(n)}" for cause, n in by_size(counts))


def _many(runs: Sequence[Measured], ink: Ink) -> str:
    """A sweep, or several targets: a line each; a long name has one of its own."""
    labels = [printable(run.result.label) for run in runs]
    wide = max((len(label) for label in labels if len(label) <= _LONGEST_LABEL), default=0)
    times = (("ttft_sched", 0.5), ("ttft_sched", 0.99), ("e2e_sched", 0.5), ("e2e_sched", 0.99), ("tpot", 0.5))
    sizes = (*(_CELL for _ in times), _SHARE_CELL, _CELL, _SHARE_CELL)
    above = f"{'ttft_sched':>{2 * _CELL}}{'e2e_sched':>{2 * _CELL}}{'tpot':>{_CELL}}"
    lines = [ink.bold(f"  {'':{wide}}{above}"), ink.bold(f"  {'':{wide}}" + _cells(
        ("p50", "p99", "p50", "p99", "p50", "good", "good/s", "failed"), sizes))]
    for label, run in zip(labels, runs, strict=True):
        cells = (*(amounts.ranked(run.ranked(name, share)) for name, share in times), amounts.share(run.goodput.share),
                 amounts.rate(run.rate(run.goodput.n_good)), amounts.share(run.error_share))
        if len(label) > wide:
            lines.append(f"  {label}")
        lines.append(f"  {label if len(label) <= wide else '':{wide}}{_cells(cells, sizes)}")
        lines += _validity(run, ink)
    return "\n".join(["", *lines, ""])


def _cells(texts: Sequence[str], sizes: Sequence[int]) -> str:
    return "".join(f"{text:>{size}}" for text, size in zip(texts, sizes, strict=True))


def _compared(row: ComparedQuantity, ink: Ink, *, is_wide: bool) -> str:
    is_share = row.quantity in {"goodput", "errors"}
    show = amounts.share if is_share else amounts.seconds
    paint = ink.red if row.is_regression else ink.green if row.verdict == "better" else ink.dim
    verdict = row.verdict + ", few values" * row.is_few if is_wide else _short(row)
    of = row.ratio
    ratio = amounts.DASH if isnan(of.value) else f"{of.value:.3f} [{of.low:.3f}, {of.high:.3f}]"
    difference = f"{_span(row.difference, is_share=is_share):32} " if is_wide else ""
    return (f"  {row.quantity:16}{show(row.a):>{_CELL}}{show(row.b):>{_CELL}}   {difference}{ratio:21} "
            f"{paint(verdict)}")


def _short(row: ComparedQuantity) -> str:
    """The verdict in a word or two; regressions are listed below the table."""
    return row.verdict.partition(",")[0].removesuffix(" seen").removesuffix(" in both") + ", few" * row.is_few


def _span(interval: Interval, *, is_share: bool) -> str:
    if isnan(interval.value):
        return amounts.DASH
    show = amounts.share if is_share else amounts.seconds
    signed = ["+" * (value > 0) + show(value) for value in (interval.value, interval.low, interval.high)]
    return f"{signed[0]} [{signed[1]}, {signed[2]}]"


def by_size(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
