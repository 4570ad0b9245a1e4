"""The report in a terminal. The headline is latency from the *intended* start; an invalid run is marked first."""

import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import isnan
from typing import Final

from stayfast.core import units as amounts
from stayfast.core.units import make_printable
from stayfast.lab.load.stats import MeasuredRun
from stayfast.lab.report.assertions import SHARES, AssertionResult
from stayfast.lab.report.compare import ComparedQuantity, Comparison, Interval
from stayfast.lab.report.meaning import explain_run

RANKS: Final = (("p50", 0.5), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99), ("p99.9", 0.999), ("max", 1.0))
_HEADLINE: Final = (("ttft_sched", "to the first token"), ("e2e_sched", "to the last token"))
_FROM_SEND: Final = (("ttft", "to the first token"), ("ttfo", "after reasoning"), ("e2e", "to the last token"),
                  ("ttfb", "to the headers"), ("tpot", "per output token"), ("gap", "between chunks"),
                  ("gap_max", "the longest gap"))
WIDTH: Final = 80  # of tables
_CELL: Final = 8
_SHARE_CELL: Final = 9  # 99.995 %
_LONGEST_LABEL: Final = WIDTH - 2 - 6 * _CELL - 2 * _SHARE_CELL
_COLUMN: Final = 12  # indent of wrapped lines after a name
_WIDE: Final = 118  # the width from which a comparison also shows differences


class TerminalStyle:
    """Colours and line length of the output. Both are off if it is not a terminal; NO_COLOR turns off the colours."""

    def __init__(self, *, is_on: bool, width: int | None = None) -> None:
        self._is_on = is_on
        self.width = width  # columns; None: unlimited

    @classmethod
    def choose(cls, *, is_terminal: bool, no_color: str | None, columns: int | None = None) -> "TerminalStyle":
        """Any non-empty value of NO_COLOR turns colour off (no-color.org)."""
        return cls(is_on=is_terminal and not no_color, width=columns if is_terminal else None)

    def wrap(self, line: str, hanging: int = 2) -> list[str]:
        """Wrap a sentence; all lines but the first are indented by `hanging`. Words are never broken."""
        if self.width is None:
            return [line]
        return textwrap.wrap(line, max(40, self.width), subsequent_indent=" " * hanging, break_long_words=False,
                             break_on_hyphens=False) or [line]

    def paint_lines(self, paint: Callable[[str], str], *sentences: str, hanging: int = 2) -> list[str]:
        """Wrapped sentences, coloured line by line."""
        return [paint(line) for sentence in sentences for line in self.wrap(sentence, hanging)]

    def _colour(self, code: str, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._is_on else text

    def red(self, text: str) -> str:
        return self._colour("1;31", text)

    def green(self, text: str) -> str:
        return self._colour("32", text)

    def yellow(self, text: str) -> str:
        return self._colour("33", text)

    def bold(self, text: str) -> str:
        return self._colour("1", text)

    def dim(self, text: str) -> str:
        return self._colour("2", text)


def format_report(runs: Sequence[MeasuredRun], ink: TerminalStyle) -> str:
    """One or two runs in full, more in one line each."""
    return "\n".join(_format_run(run, ink) for run in runs) if len(runs) <= 2 else _format_runs(runs, ink)


def format_comparison(result: Comparison, ink: TerminalStyle) -> str:
    """A line for each quantity, with the differences if the terminal is wide enough."""
    level, is_wide = f"{result.config.level:.0%} interval", ink.width is None or ink.width >= _WIDE
    difference = f"{f'B - A, {level}':32} " if is_wide else ""
    lines = [ink.bold(f"{make_printable(result.label_a)} (A) against {make_printable(result.label_b)} (B)"),
             *ink.paint_lines(ink.red, *(f"careful: {make_printable(warning)}" for warning in result.warnings)),
             ink.dim(f"  {'':16}{'A':>{_CELL}}{'B':>{_CELL}}   {difference}B / A, {level}")]
    lines += [_format_quantity(row, ink, is_wide=is_wide) for row in result.rows if not isnan(row.a) or not isnan(row.b)]
    if result.invalid:
        end, paint = f"not judged: {make_printable(' and '.join(result.invalid))} invalid; measure again", ink.red
    elif result.regressions:
        end, paint = f"regressed by more than {result.config.threshold:.0%}: {', '.join(result.regressions)}", ink.red
    else:
        end, paint = f"no regression of more than {result.config.threshold:.0%} seen", ink.green
    return "\n".join([*lines, *ink.paint_lines(paint, end)]) + "\n"


def format_assertions(checks: Iterable[AssertionResult], ink: TerminalStyle) -> str:
    lines = []
    for check in checks:
        why = f" ({check.why})" if check.why else ""
        summary = f"{make_printable(check.assertion.read_as)}: {format_actual(check)}{why}"
        first, *others = ink.wrap(f"{'holds' if check.holds else 'FAILS'}  {summary}", 7)
        lines += [(ink.green if check.holds else ink.red)(first[:5]) + first[5:], *others]
    return "".join(f"{line}\n" for line in lines)


def format_actual(check: AssertionResult) -> str:
    wanted = check.assertion
    if wanted.statistic:
        return amounts.format_in_unit(check.actual, wanted.unit or "s")
    show = amounts.format_share if wanted.metric in SHARES else amounts.format_digits
    return show(check.actual)


def _format_run(run: MeasuredRun, ink: TerminalStyle) -> str:
    result = run.result
    kind = f"{result.mode}{', virtual time' if result.is_virtual else ''}"
    label = make_printable(result.label)
    first, *others = ink.wrap(make_printable(f"{label}  {result.subject.url} {result.subject.dialect} "
                                             f"{result.subject.model} - "
                                        f"{kind}, seed {result.seed}"))
    lines = ["", ink.bold(label) + ink.dim(first.removeprefix(label)), *map(ink.dim, others)]
    lines += _format_validity(run, ink)
    lines += [ink.bold(f"  {'from the intended start':29}") + "".join(f"{name:>{_CELL}}" for name, _ in RANKS)]
    lines += [_format_latency(run, name, words, ink.bold) for name, words in _HEADLINE]
    lines += [ink.dim("  from the actual send")]
    lines += [_format_latency(run, name, words, str) for name, words in _FROM_SEND if name in run.shown_latencies]
    lines += ["", *(line for sentence in explain_run(run) for line in ink.wrap(f"  {sentence}"))]
    return "\n".join([*lines, "", *_format_counts(run, ink), ""])


def _format_latency(run: MeasuredRun, name: str, words: str, paint: Callable[[str], str]) -> str:
    cells = "".join(f"{amounts.format_quantile(run.quantile(name, share)):>{_CELL}}" for _, share in RANKS)
    return "  " + paint(f"{name:11}{words:18}{cells}")


def _format_validity(run: MeasuredRun, ink: TerminalStyle) -> list[str]:
    result = run.result
    lines = ink.paint_lines(ink.red, *(f"  INVALID: {make_printable(reason)}" for reason in result.health.verdict),
                            hanging=4)
    notes = [f"  {make_printable(note)}" for note in result.notes]
    if run.error_share == 1:  # the cause first
        return [*ink.paint_lines(ink.red, *notes), *lines]
    if run.error_share >= 0.01:
        failed = amounts.format_share(run.error_share)
        lines += ink.paint_lines(ink.red, f"  {failed} of the offered requests failed: the latencies below are of the "
                                          f"others; a "
                                      "rank among the failed is marked", hanging=4)
    return [*lines, *ink.paint_lines(ink.dim, *notes)]


def _format_counts(run: MeasuredRun, ink: TerminalStyle) -> list[str]:
    result, goodput = run.result, run.goodput
    slo = " ".join(f"{name}<={amounts.format_seconds(bound_s).replace(' ', '')}" for name,
                   bound_s in goodput.slo.bounds().items())
    good = amounts.format_share(goodput.share)
    first, *others = ink.wrap(f"  good      {good} of {amounts.format_count(run.n_offered)} offered, "
                              f"{amounts.format_rate(run.per_second(goodput.n_good))}; "
                              f"{slo or 'no SLO was set: whole answers'}", _COLUMN)
    lines = [first.replace(good, ink.bold(good), 1), *others]
    if goodput.misses:
        lines += ink.wrap(f"  missed    {_list_causes(goodput.misses)}", _COLUMN)
    n_failed = run.n_offered - run.n_succeeded
    failed = f"  failed    {amounts.format_count(n_failed)} ({amounts.format_share(run.error_share)})"
    lines += ink.paint_lines(ink.red, f"{failed}: {_list_causes(run.errors)}", hanging=_COLUMN) if n_failed else [failed]
    lines += ink.wrap(f"  rate      {amounts.format_rate(run.per_second(run.n_offered))} offered, "
                      f"{amounts.format_rate(run.per_second(run.n_output))} "
                      f"output tokens (by {result.counted_by}) over {amounts.format_seconds(result.duration_s)}; "
                      f"spike p99/p50 of ttft_sched {amounts.format_factor(run.spike_factor())}", _COLUMN)
    health = result.health
    late = ", ".join(f"{name} {amounts.format_seconds(value_s)}" for name, value_s in (
        ("p50", health.lateness_p50_s), ("p99", health.lateness_p99_s), ("max", health.lateness_max_s)))
    client = f"  client    late {late}; loop lag p99 {amounts.format_seconds(health.loop_lag_p99_s)}"
    return lines + ink.paint_lines(ink.dim, client, hanging=_COLUMN)


def _list_causes(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{cause} {amounts.format_count(n)}" for cause, n in sort_by_count(counts))


def _format_runs(runs: Sequence[MeasuredRun], ink: TerminalStyle) -> str:
    """One line a run, for a sweep or many targets. A long name gets its own line."""
    labels = [make_printable(run.result.label) for run in runs]
    wide = max((len(label) for label in labels if len(label) <= _LONGEST_LABEL), default=0)
    times = (("ttft_sched", 0.5), ("ttft_sched", 0.99), ("e2e_sched", 0.5), ("e2e_sched", 0.99), ("tpot", 0.5))
    sizes = (*(_CELL for _ in times), _SHARE_CELL, _CELL, _SHARE_CELL)
    above = f"{'ttft_sched':>{2 * _CELL}}{'e2e_sched':>{2 * _CELL}}{'tpot':>{_CELL}}"
    lines = [ink.bold(f"  {'':{wide}}{above}"), ink.bold(f"  {'':{wide}}" + _join_cells(
        ("p50", "p99", "p50", "p99", "p50", "good", "good/s", "failed"), sizes))]
    for label, run in zip(labels, runs, strict=True):
        cells = (*(amounts.format_quantile(run.quantile(name, share)) for name, share in times),
                 amounts.format_share(run.goodput.share),
                 amounts.format_rate(run.per_second(run.goodput.n_good)), amounts.format_share(run.error_share))
        if len(label) > wide:
            lines.append(f"  {label}")
        lines.append(f"  {label if len(label) <= wide else '':{wide}}{_join_cells(cells, sizes)}")
        lines += _format_validity(run, ink)
    return "\n".join(["", *lines, ""])


def _join_cells(texts: Sequence[str], sizes: Sequence[int]) -> str:
    return "".join(f"{text:>{size}}" for text, size in zip(texts, sizes, strict=True))


def _format_quantity(row: ComparedQuantity, ink: TerminalStyle, *, is_wide: bool) -> str:
    is_share = row.quantity in {"goodput", "errors"}
    show = amounts.format_share if is_share else amounts.format_seconds
    paint = ink.red if row.is_regression else ink.green if row.verdict == "better" else ink.dim
    verdict = row.verdict + ", few values" * row.is_few if is_wide else _shorten_verdict(row)
    of = row.ratio
    ratio = amounts.DASH if isnan(of.value) else f"{of.value:.3f} [{of.low:.3f}, {of.high:.3f}]"
    difference = f"{_format_interval(row.difference, is_share=is_share):32} " if is_wide else ""
    return (f"  {row.quantity:16}{show(row.a):>{_CELL}}{show(row.b):>{_CELL}}   {difference}{ratio:21} "
            f"{paint(verdict)}")


def _shorten_verdict(row: ComparedQuantity) -> str:
    """The verdict in a word or two."""
    return row.verdict.partition(",")[0].removesuffix(" seen").removesuffix(" in both") + ", few" * row.is_few


def _format_interval(interval: Interval, *, is_share: bool) -> str:
    if isnan(interval.value):
        return amounts.DASH
    show = amounts.format_share if is_share else amounts.format_seconds
    signed = ["+" * (value > 0) + show(value) for value in (interval.value, interval.low, interval.high)]
    return f"{signed[0]} [{signed[1]}, {signed[2]}]"


def sort_by_count(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
