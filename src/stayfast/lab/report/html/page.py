"""The report: one HTML file with everything in it. It asks the network for nothing, and its policy forbids it to.

Charts are SVG drawn here, so the page is whole without its script; the script only names the values under the pointer.
"""

import hashlib
from base64 import b64encode
from collections.abc import Sequence
from functools import partial
from importlib.resources import files
from math import isfinite

from stayfast.lab.load.stats import Measured
from stayfast.lab.report.assertions import Checked
from stayfast.lab.report.compare import Comparison
from stayfast.lab.report.html import curves, lanes, parts
from stayfast.lab.report.html.curves import Line
from stayfast.lab.report.html.heatmap import heat_map
from stayfast.lab.report.html.markup import Markup, tag
from stayfast.lab.report.html.scale import COUNTS, RATES, SECONDS, Unit
from stayfast.lab.report.stages import breakdown
from stayfast.lab.report.timeline import heat_of_gaps, heat_of_rows, timeline

MANY = 3  # from this many runs on, what is drawn for each of them is folded
_SCHED = "From the intended start (solid) and from the actual send (dashed)."
_SHADED = " Shaded: the share of the offered that failed."


def page(runs: Sequence[Measured], comparison: Comparison | None = None, checks: Sequence[Checked] = ()) -> str:
    """The whole file. `comparison` is of the first run (A) and the second (B). Raises ValueError without a run."""
    if not runs:
        raise ValueError("a report needs at least one run")
    folder = files("stayfast.lab.report.html")
    style, script = (folder.joinpath(name).read_text("utf-8") for name in ("report.css", "report.js"))
    policy = (f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{_digest(script)}'; base-uri 'none'; "
              "form-action 'none'")
    title = f"{' against '.join(run.result.label for run in runs[:MANY])} - stayfast bench"
    head = tag("head", Markup('<meta charset="utf-8">'), tag("meta", http_equiv="Content-Security-Policy", content=policy),
               tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
               tag("meta", name="color-scheme", content="light dark"), tag("title", title), tag("style", Markup(style)))
    is_many = len(runs) >= MANY
    main = tag("main", parts.banner(runs), parts.header(runs), parts.headline(runs), _sweep(runs), _compared(comparison),
               parts.checked(checks), parts.latencies(runs), _percentiles(runs), None if is_many else _times(runs),
               *(_folded(run) if is_many else _details(run) for run in runs), parts.goodput(runs), parts.facts(runs),
               parts.definitions())
    body = tag("body", main, tag("div", cls="tip", role="status"), tag("script", Markup(script)))
    is_valid = all(run.result.health.is_valid for run in runs)
    return "<!doctype html>\n" + tag("html", head, body, lang="en", cls=None if is_valid else "is-invalid") + "\n"


def _digest(script: str) -> str:
    return b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")


def _percentiles(runs: Sequence[Measured]) -> Markup:
    is_many = len(runs) >= MANY
    note, n_each = ("From the intended start.", 1) if is_many else (_SCHED, 2)
    if not is_many and any(run.errors for run in runs):
        note += _SHADED
    first, last = ("ttft_sched", "ttft")[:n_each], ("e2e_sched", "e2e")[:n_each]
    return parts.section(
        "Percentile curves", curves.percentiles(runs, "Time to the first token", note, first),
        curves.percentiles(runs, "Time to the last token", note, last),
        curves.percentiles(runs, "Time per output token", "(tn - t1) / (n - 1), one value an answer.", ("tpot",)),
        curves.percentiles(runs, "Gaps between chunks", "Pooled over all answers.", ("gap",)))


def _times(runs: Sequence[Measured]) -> Markup:
    span_s = _span_s(runs)
    drawn = [(run, timeline(run.result.samples, run.goodput.is_good, _span_s([run]))) for run in runs]

    def chart(title: str, unit: Unit, *lines: Line) -> Markup:
        return curves.over_time(drawn, title, span_s, unit, lines)

    rates = [Line("good", lambda line: line.good_rate)]
    if any(run.errors for run in runs):
        rates.append(Line("failed", lambda line: line.bad_rate, is_bad=True))
    if len(runs) == 1:
        rates.insert(0, Line("offered", lambda line: line.rate, is_faint=True))
    return parts.section(
        "Over the run's time",
        chart("Time to the first token, from the intended start", SECONDS, Line("p99", lambda line: line.p99_s),
              Line("p50", lambda line: line.p50_s, is_faint=True)),
        chart("Time to the last token, from the intended start", SECONDS, Line("p99", lambda line: line.e2e_p99_s),
              Line("p50", lambda line: line.e2e_p50_s, is_faint=True)),
        chart("Requests a second", RATES, *rates),
        chart("In flight", COUNTS, Line("in flight", lambda line: line.in_flight)),
        chart("Output tokens a second", RATES, Line("output tokens", lambda line: line.tokens_rate)),
        chart("The client's own lateness", SECONDS, Line("p99", lambda line: line.late_p99_s)))


def _folded(run: Measured) -> Markup:
    """One of many: its own charts, to be opened."""
    return tag("details", tag("summary", tag("b", run.result.label)), _times([run]), _details(run))


def _details(run: Measured) -> Markup:
    """What is drawn for one run alone."""
    result = run.result
    span_s = _span_s([run])
    first = heat_map(heat_of_rows(result.samples, "ttft_sched", span_s), "Time to the first token, every request",
                     "From the intended start, by when it was due.", "request", curves.slo_of([run], ("ttft_sched", "ttft")))
    gaps = heat_of_gaps(result.gaps, span_s)
    second = None if gaps is None else heat_map(
        gaps, "Gaps between chunks, every gap", "By when the gap ended.", "gap", curves.slo_of([run], ("gap_max",)))
    usual = run.spreads["e2e_sched"]
    slices = breakdown(result.samples, (usual.at(0.4), usual.at(0.6)), usual.at(0.99)) if usual.n else None
    return parts.section(f"Request by request: {result.label}", first, second,
                         lanes.breakdown(run, slices) if slices else None, lanes.waterfall(run))


def _compared(comparison: Comparison | None) -> Markup | None:
    if comparison is None:
        return None
    warnings = [tag("p", f"Careful: {warning}.", cls="caution") for warning in comparison.warnings]
    return parts.section("Compared", *warnings, lanes.intervals(comparison))


def _sweep(runs: Sequence[Measured]) -> Markup | None:
    """Against the load, where the runs are steps of one."""
    loads = {curves.load_of(run) for run in runs}
    if len(runs) < MANY or len(loads) < len(runs) or 0.0 in loads:
        return None
    return parts.section(
        "Against the load",
        curves.against_load(runs, "Time to the first token, from the intended start", SECONDS, [
            (f"p{rank}", partial(_first_at, rank / 100)) for rank in (99, 50)]),
        curves.against_load(runs, "Requests a second", RATES, (
            ("good", lambda run: run.rate(run.goodput.n_good)), ("offered", lambda run: run.rate(run.n_offered)))))


def _first_at(share: float, run: Measured) -> float:
    return run.ranked("ttft_sched", share)


def _span_s(runs: Sequence[Measured]) -> float:
    latest = [at_s for run in runs for at_s in (run.result.duration_s, max(run.result.samples.floats["at_s"], default=0.0))
              if isfinite(at_s)]
    return max([1e-3, *latest])
