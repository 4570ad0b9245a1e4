"""The report: one self-contained HTML file. It makes no network requests, and its policy forbids them.

The charts are SVG, so the page is complete without its script, which only shows the values under the pointer.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from math import isfinite
from typing import Final

from stayfast.core import units as amounts
from stayfast.lab.load.result import Mode
from stayfast.lab.load.stats import DEFINITIONS, LATENCIES, MeasuredRun
from stayfast.lab.report.assertions import AssertionResult
from stayfast.lab.report.compare import Comparison
from stayfast.lab.report.html import charts
from stayfast.lab.report.html.charts import TimelineSeries, heat_map
from stayfast.lab.report.html.frame import COLOURS, COUNTS, RATES, SECONDS, Unit, document
from stayfast.lab.report.html.markup import Child, Markup, join, tag
from stayfast.lab.report.meaning import explain_run
from stayfast.lab.report.table import RANKS, format_actual, sort_by_count
from stayfast.lab.report.timeline import make_gap_heat, make_metric_heat, make_timeline, split_by_stage

MANY = 3  # from this number of runs on, the charts of each run are folded
_SCHED = "From the intended start (solid) and from the actual send (dashed)."
_SHADED = " Shaded: the share of failed requests."


def render_page(runs: Sequence[MeasuredRun], comparison: Comparison | None = None,
                checks: Sequence[AssertionResult] = ()) -> str:
    """The complete file. `comparison`: of the first run (A) and the second (B). Raises ValueError without a run."""
    if not runs:
        raise ValueError("a report needs at least one run")
    is_many = len(runs) >= MANY
    compared = None if comparison is None else _section("Compared", *(
        tag("p", f"Careful: {warning}.", cls="caution") for warning in comparison.warnings),
                                                        charts.interval_chart(comparison))
    summary = (_invalid_banner(runs), _page_header(runs), _headline(runs), _sweep_section(runs), compared,
               _assertion_section(checks), _latency_section(runs), _percentile_section(runs))
    details = [tag("details", tag("summary", tag("b", run.result.label)), _time_section([run]), _detail_section(run))
               for run in runs] if is_many else [_time_section(runs), *map(_detail_section, runs)]
    main = tag("main", *summary, *details, _goodput_section(runs), _facts_section(runs), _definition_section())
    is_valid = all(run.result.health.is_valid for run in runs)
    return document(f"{' against '.join(run.result.label for run in runs[:MANY])} - stayfast bench", main,
                    tag("div", cls="tip", role="status"), has_script=True, cls=None if is_valid else "is-invalid")


def _percentile_section(runs: Sequence[MeasuredRun]) -> Markup:
    is_many = len(runs) >= MANY
    note, n_each = ("From the intended start.", 1) if is_many else (_SCHED, 2)
    if not is_many and any(run.errors for run in runs):
        note += _SHADED
    first, last = ("ttft_sched", "ttft")[:n_each], ("e2e_sched", "e2e")[:n_each]
    return _section(
        "Percentile curves", charts.percentile_chart(runs, "Time to the first token", note, first),
        charts.percentile_chart(runs, "Time to the last token", note, last),
        charts.percentile_chart(runs, "Time per output token", "(tn - t1) / (n - 1), one value an answer.", ("tpot",)),
        charts.percentile_chart(runs, "Gaps between chunks", "Pooled over all answers.", ("gap",)))


def _time_section(runs: Sequence[MeasuredRun]) -> Markup:
    span_s = _span_s(runs)
    drawn = [(run, make_timeline(run.result.samples, run.goodput.is_good, _span_s([run]))) for run in runs]

    def chart(title: str, unit: Unit, *lines: TimelineSeries) -> Markup:
        return charts.time_chart(drawn, title, span_s, unit, lines)

    rates = [TimelineSeries("good", lambda line: line.good_rate)]
    if any(run.errors for run in runs):
        rates.append(TimelineSeries("failed", lambda line: line.bad_rate, is_bad=True))
    if len(runs) == 1:
        rates.insert(0, TimelineSeries("offered", lambda line: line.rate, is_faint=True))
    return _section(
        "Over the run's time",
        chart("Time to the first token, from the intended start", SECONDS, TimelineSeries("p99", lambda line: line.p99_s),
              TimelineSeries("p50", lambda line: line.p50_s, is_faint=True)),
        chart("Time to the last token, from the intended start", SECONDS, TimelineSeries("p99", lambda line: line.e2e_p99_s),
              TimelineSeries("p50", lambda line: line.e2e_p50_s, is_faint=True)),
        chart("Requests a second", RATES, *rates),
        chart("In flight", COUNTS, TimelineSeries("in flight", lambda line: line.in_flight)),
        chart("Output tokens a second", RATES, TimelineSeries("output tokens", lambda line: line.tokens_rate)),
        chart("The client's own lateness", SECONDS, TimelineSeries("p99", lambda line: line.late_p99_s)))


def _detail_section(run: MeasuredRun) -> Markup:
    result = run.result
    span_s = _span_s([run])
    first = heat_map(make_metric_heat(result.samples, "ttft_sched", span_s), "Time to the first token, every request",
                     "From the intended start, by when it was due.", "request",
                     charts.slo_bounds([run], ("ttft_sched", "ttft")))
    gaps = make_gap_heat(result.gaps, span_s)
    second = None if gaps is None else heat_map(
        gaps, "Gaps between chunks, every gap", "By when the gap ended.", "gap", charts.slo_bounds([run], ("gap_max",)))
    usual = run.distributions["e2e_sched"]
    slices = split_by_stage(result.samples, (usual.quantile(0.4), usual.quantile(0.6)),
                            usual.quantile(0.99)) if usual.n else None
    return _section(f"Request by request: {result.label}", first, second,
                   charts.stage_chart(run, slices) if slices else None, charts.waterfall_chart(run))


def _sweep_section(runs: Sequence[MeasuredRun]) -> Markup | None:
    """Curves over the load, if the runs are steps of a sweep."""
    loads = {charts.load_of_run(run) for run in runs}
    if len(runs) < MANY or len(loads) < len(runs) or 0.0 in loads:
        return None
    return _section(
        "Against the load",
        charts.load_chart(runs, "Time to the first token, from the intended start", SECONDS, [
            ("p99", lambda run: run.quantile("ttft_sched", 0.99)), ("p50", lambda run: run.quantile("ttft_sched", 0.5))]),
        charts.load_chart(runs, "Requests a second", RATES, (
            ("good", lambda run: run.per_second(run.goodput.n_good)),
            ("offered", lambda run: run.per_second(run.n_offered)))))


def _span_s(runs: Sequence[MeasuredRun]) -> float:
    latest = [at_s for run in runs for at_s in (run.result.duration_s, max(run.result.samples.floats["at_s"], default=0.0))
              if isfinite(at_s)]
    return max([1e-3, *latest])


MAX_IN_FULL: Final = 3  # runs; with more runs, fewer figures
_FEWER: Final = ("ttft_sched", "e2e_sched", "tpot", "gap_max")
_CAVEATS: Final = (
    "One run is one draw: two runs of the same target differ. `stayfast bench compare` shows intervals of the noise.",
    "Latencies are of complete, successful answers; failures are counted separately and are not good in goodput.",
    "Percentiles are exact (linear interpolation between the closest ranks), those of pooled gaps within 1 %.",
    "A percentile that would only be the maximum is a dash.",
    "TTFT and gaps are of chunks as the network delivered them: behind a buffering proxy, gaps are 0 and TTFT is E2E.",
    "Other tools define TPOT and ITL differently; compare only where the definitions agree.",
)
_INVALID: Final = "The client was the bottleneck: these figures are not the target's."
_CLOSED: Final = ("In a closed loop, each caller waits for its answer before the next request, so the queueing of a slow "
                  "target does not show. Use it to compare, not as the latency of users.")


def _invalid_banner(runs: Sequence[MeasuredRun]) -> Markup | None:
    """Why the figures are invalid."""
    reasons = [(run.result.label, reason) for run in runs for reason in run.result.health.verdict]
    if not reasons:
        return None
    lines = [tag("li", tag("b", label), ": ", reason) for label, reason in reasons]
    return tag("div", tag("strong", "INVALID"), tag("span", _INVALID), tag("ul", *lines), cls="banner", role="alert")


def _page_header(runs: Sequence[MeasuredRun]) -> Markup:
    """What was measured, when, and whether it is valid."""
    first = runs[0].result
    is_valid = all(run.result.health.is_valid for run in runs)
    when = datetime.fromtimestamp(first.began_at_wall, UTC).strftime("%Y-%m-%d %H:%M UTC")
    kinds = list(dict.fromkeys(f"{run.result.mode}{', virtual time' * run.result.is_virtual}" for run in runs))
    subjects = [tag("p", _swatch(order), tag("b", run.result.label),
                    f" {run.result.subject.model} over {run.result.subject.dialect}, ", tag("code", run.result.subject.url))
                for order, run in enumerate(runs[:6])]
    more = tag("p", f"and {len(runs) - 6} more") if len(runs) > 6 else None
    badge = tag("span", "valid" if is_valid else "invalid", cls=f"badge {'good' if is_valid else 'bad'}")
    is_closed = any(run.result.mode is Mode.CLOSED for run in runs)
    title = " against ".join(run.result.label for run in runs) if len(runs) <= 2 else f"{len(runs)} runs"
    lead = (f"{when} \u00b7 {', '.join(kinds)} \u00b7 {amounts.format_count(sum(run.n_offered for run in runs))} requests "
            f"offered "
            f"over {amounts.format_seconds(max(run.result.duration_s for run in runs))}")
    return tag("header", tag("p", "stayfast bench", cls="brand"), tag("h1", title, badge), tag("p", lead, cls="lead"),
               *subjects, more, tag("p", _CLOSED, cls="caution") if is_closed else None)


def _headline(runs: Sequence[MeasuredRun]) -> Markup | None:
    """The main figures; latency is from the intended start. None for many runs."""
    if len(runs) > MAX_IN_FULL:
        return None
    tiles = (
        ("TTFT p99", "from the intended start", [_format_rank(run, "ttft_sched", 0.99) for run in runs]),
        ("TTFT p50", "from the intended start", [_format_rank(run, "ttft_sched", 0.5) for run in runs]),
        ("E2E p99", "from the intended start", [_format_rank(run, "e2e_sched", 0.99) for run in runs]),
        ("Spike factor", "TTFT p99 / p50", [amounts.format_factor(run.spike_factor()) for run in runs]),
        ("Goodput", "of what was offered", [amounts.format_share(run.goodput.share) for run in runs]),
        ("Failed", "no whole answer", [amounts.format_share(run.error_share) for run in runs]),
    )
    meanings = [tag("p", *((_swatch(order), tag("b", run.result.label), ": ") if len(runs) > 1 else ()), text, cls="meaning")
                for order, run in enumerate(runs) if (text := " ".join(explain_run(run)))]
    return tag("section", tag("div", *(_make_tile(*tile) for tile in tiles), cls="tiles"), *meanings)


def _format_rank(run: MeasuredRun, name: str, share: float) -> str:
    return amounts.format_quantile(run.quantile(name, share))


def _make_tile(name: str, note: str, figures: Sequence[str]) -> Markup:
    several = len(figures) > 1
    shown = [tag("span", figure, cls=f"figure t{order}" if several else "figure") for order, figure in enumerate(figures)]
    return tag("div", tag("p", name, cls="name"), tag("p", *shown, cls="figures"), tag("p", note, cls="note"), cls="tile")


def _latency_section(runs: Sequence[MeasuredRun]) -> Markup:
    rows = [row for name in (LATENCIES if len(runs) <= MAX_IN_FULL else _FEWER) for row in _latency_rows(runs, name)]
    heads = ("", *(("",) if len(runs) > 1 else ()), *(name for name, _ in RANKS), "mean", "n")
    table = tag("table", tag("thead", tag("tr", *(tag("th", head, scope="col") for head in heads))), tag("tbody", *rows))
    return tag("section", tag("h2", "Latency"), _failure_note(runs), tag("div", table, cls="card wide"))


def _latency_rows(runs: Sequence[MeasuredRun], name: str) -> list[Markup]:
    rows: list[Markup] = []
    measured = [(order, run) for order, run in enumerate(runs) if name in run.shown_latencies]
    for order, run in measured:
        spread = run.distributions[name]
        span = str(len(measured)) if len(measured) > 1 else None
        head = None if rows else tag("th", name, scope="rowgroup", title=DEFINITIONS[name], rowspan=span)
        label = tag("td", _swatch(order), run.result.label, cls="label") if len(runs) > 1 else None
        cells = [*(_format_rank(run, name, share) for _, share in RANKS), amounts.format_seconds(spread.mean_s),
                 amounts.format_count(spread.n)]
        rows.append(tag("tr", head, label, *(tag("td", cell) for cell in cells),
                        cls="sched" if name.endswith("_sched") else None))
    return rows


def _swatch(order: int) -> Markup:
    return tag("span", cls=f"swatch c{order % COLOURS}")


def _failure_note(runs: Sequence[MeasuredRun]) -> Markup | None:
    high = [f"{run.result.label}: {amounts.format_share(run.error_share)}" for run in runs if run.error_share >= 0.01]
    if not high:
        return None
    return tag("p", f"Failed of the offered: {', '.join(high)}. The table is of successful answers; a rank that "
               "falls among the failed is marked.", cls="caution")


def _goodput_section(runs: Sequence[MeasuredRun]) -> Markup:
    return _section("Goodput", *(_goodput_card(run, order) for order, run in enumerate(runs)))


def _goodput_card(run: MeasuredRun, order: int) -> Markup:
    judged = run.goodput
    slo = ", ".join(f"{name} <= {amounts.format_seconds(bound_s)}" for name, bound_s in judged.slo.bounds().items())
    rows = []
    for cause, n in sort_by_count(judged.misses):
        part = n / judged.n_offered
        fill = tag("span", cls="fill bad" if cause in run.errors else "fill late", style=f"width:{part * 100:.2f}%")
        bar = tag("span", fill, cls="bar")
        rows.append(tag("tr", tag("th", cause, scope="row"), tag("td", bar, cls="bars"), tag("td", amounts.format_count(n)),
                        tag("td", amounts.format_share(part))))
    return tag("figure", tag("figcaption", tag("h3", _swatch(order), run.result.label)),
               tag("p", tag("b", amounts.format_share(judged.share)), f" of {amounts.format_count(judged.n_offered)} "
                                                                      f"offered were good: "
                   f"{amounts.format_rate(run.per_second(judged.n_good))}", cls="big"),
               tag("p", f"SLO: {slo}" if slo else "No SLO was set: good is a whole answer.", cls="note"),
               tag("table", tag("tbody", *rows), cls="causes") if rows else None, cls="card")


def _assertion_section(checks: Sequence[AssertionResult]) -> Markup | None:
    if not checks:
        return None
    rows = []
    for check in checks:
        badge = tag("span", "holds", cls="badge good") if check.holds else tag("span", "fails", cls="badge bad")
        rows.append(tag("tr", tag("td", badge), tag("th", check.assertion.read_as, scope="row"),
                        tag("td", format_actual(check)),
                        tag("td", check.why)))
    return _section("Assertions", tag("div", tag("table", tag("tbody", *rows), cls="checks"), cls="card wide"))


def _facts_section(runs: Sequence[MeasuredRun]) -> Markup:
    """The command, the workload, the machine and the client's own delays."""
    return _section("How it was run", *(_fact_card(run) for run in runs))


def _fact_card(run: MeasuredRun) -> Markup:
    result, health = run.result, run.result.health
    late = (("p50", health.lateness_p50_s), ("p99", health.lateness_p99_s), ("max", health.lateness_max_s))
    rows = {
        "target": f"{result.subject.url} ({result.subject.dialect}, {result.subject.model})", "seed": str(result.seed),
        "mode": result.mode + ", virtual time" * result.is_virtual, **result.workload,
        "tokens counted by": result.counted_by,
        "client late": ", ".join(f"{word} {amounts.format_seconds(value_s)}" for word, value_s in late),
        "client loop lag": f"p99 {amounts.format_seconds(health.loop_lag_p99_s)}, max "
                           f"{amounts.format_seconds(health.loop_lag_max_s)}",
    }
    if health.requested_rps:
        rows["rate"] = (f"{amounts.format_rate(health.requested_rps)} scheduled, "
                        f"{amounts.format_rate(health.achieved_rps)} sent")
    listed = [join(tag("dt", key), tag("dd", value)) for key, value in (*rows.items(), *result.machine.items())]
    return tag("figure", tag("figcaption", tag("h3", result.label)), tag("pre", result.command), tag("dl", *listed),
               *(tag("p", note, cls="note") for note in result.notes), cls="card")


def _definition_section() -> Markup:
    """The definitions, and the limits of the figures."""
    words = [join(tag("dt", name), tag("dd", text)) for name, text in DEFINITIONS.items()]
    return tag("section", tag("h2", "Definitions"), tag("div", tag("dl", *words), cls="card wide"),
               tag("h2", "Caveats"), tag("ul", *(tag("li", text) for text in _CAVEATS), cls="caveats"))


def _section(title: str, *inside: Child) -> Markup:
    return tag("section", tag("h2", title), tag("div", *inside, cls="grid"))
