"""A plan as text of at most 80 columns."""

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from stayfast.lab.plan.break_even import HARDWARE_BELOW, SOFTWARE_ABOVE, BreakEven
from stayfast.lab.plan.changes import GROUPS
from stayfast.lab.plan.model_memory import MemoryPlan
from stayfast.lab.plan.predict import DO, METRICS, QUESTION, Estimate, PlanResult, Prediction

COLUMNS = 80
_FAILED_S = 1e5
_EFFORTS = {"setting": "a setting", "client": "client code, half a day", "prompt": "prompts, 3 days",
            "machine": "a machine, 1 day", "model": "a model, 5 days", "engine": "an engine, 10 days"}


def format_plan(plan: PlanResult) -> str:
    """Everything but break-even and memory."""
    return "\n".join([*_wrap(_title(plan)), *_wrap(_promise(plan)), "", *_model(plan), "", *_baseline(plan), "",
                      *(_changes(plan) if plan.is_reproduced else _refusal(plan))]) + "\n"


def _wrap(text: str, indent: int = 0) -> list[str]:
    return textwrap.wrap(text, COLUMNS, subsequent_indent=" " * indent) or [""]


def _title(plan: PlanResult) -> str:
    cost = f", {plan.usd_per_day:,.2f} USD a day" if plan.usd_per_day is not None else ""
    return (f"Route {plan.route}: {plan.n_requests:,} requests in {_span(plan.span_s)}, a rate of "
            f"{plan.requests_per_day:,.0f} a day{cost}.")


def _span(seconds: float) -> str:
    if seconds < 5400:
        return "1 minute" if seconds < 90 else f"{seconds / 60:.0f} minutes"
    return f"{seconds / 3600:.1f} hours" if seconds < 172_800 else f"{seconds / 86_400:.1f} days"


def _promise(plan: PlanResult) -> str:
    verdict = ("and is kept with room" if plan.has_room else
            "and is kept" if plan.good_ratio >= plan.promise_ratio else "and is missed")
    return (f"The promise: a first token within {plan.promise_s:g} s for {plan.promise_ratio * 100:g} % of the requests. "
            f"{plan.good_ratio:.2%} had one, {verdict}.")


def _model(plan: PlanResult) -> Iterator[str]:
    yield "What the log shows"
    for line in (*plan.upstreams, *plan.notes):
        yield from _wrap(f"  {line}", 4)


def _baseline(plan: PlanResult) -> Iterator[str]:
    yield f"The log, and its replay ({plan.n_seeds} resamples), in s with 95 % intervals"
    yield f"  {'':17}{'log':>7}  {'':15}{'replay':>8}"
    for one in plan.baseline:
        mark = "" if one.is_reproduced else "  differs"
        yield (f"  {_metric(one.metric):17}{_s(one.observed.value):>7}  {_interval(one.observed):15}"
               f"{_s(one.replayed.value):>8}  {_interval(one.replayed):15}{mark}").rstrip()


def _metric(metric: str) -> str:
    return f"{'first token' if metric.startswith('first') else 'whole answer'} {metric[-3:]}"


def _refusal(plan: PlanResult) -> list[str]:
    wrong = ", ".join(_metric(one.metric) for one in plan.baseline if not one.is_reproduced)
    return _wrap(f"Nothing is predicted: the replay does not reproduce the log ({wrong}). Either the gateway's settings "
                 "differ from those given with --config, or the waits come from something that is not in the log. Give the "
                 "settings of the gateway that wrote this log, or a log without an incident.")


def _changes(plan: PlanResult) -> Iterator[str]:
    yield from _wrap("Changes in the order in which they usually pay, by effect per effort within a group. Seconds at p50, "
                     "p95, p99; the first token is the whole answer where it is not streamed.")
    yield ""
    yield f"  {'':12}{'first token':21}{'whole answer':21}{'kept':>7}{'USD/day':>11}"
    yield _row("as it is", [one.replayed for one in plan.baseline], plan.replayed_good_ratio, plan.usd_per_day)
    for group, members in groupby(plan.predictions, key=lambda one: one.group):
        yield ""
        yield f"{GROUPS.index(group) + 1}. {group}"
        for one in members:
            yield from _change(one)
    if plan.left_out:
        yield ""
        yield "Not considered here"
        for name, why in plan.left_out.items():
            yield from _wrap(f"  {name}: {why}.", 4)
    chosen = sorted((one for one in plan.predictions if one.verdict == DO), key=lambda one: -one.gain / one.effort_days)
    yield ""
    yield from _wrap("First: " + "; then ".join(f"{one.name} ({one.why})" for one in chosen[:3]) + "." if chosen
                     else "Do nothing: no change has an effect worth its effort.")


def _change(one: Prediction) -> Iterator[str]:
    yield _row(one.name, [one.quantiles[metric] for metric in METRICS], one.good_ratio.value, one.usd_per_day)
    first, whole = one.quantiles["first_p95"], one.quantiles["e2e_p95"]
    effort = "" if one.verdict == QUESTION else f"{_EFFORTS[one.effort]}; "
    yield from (f"    {line}" for line in textwrap.wrap(
        f"{one.title} ({effort}{one.source}). p95 {_interval(first)} and {_interval(whole)}"
        + (f", {one.failed_ratio:.2%} fail" if one.failed_ratio >= 0.0005 else ""), COLUMNS - 4))
    yield from (f"    {line}" for line in textwrap.wrap(f"-> {one.verdict}: {one.why}", COLUMNS - 4))


def _row(name: str, quantiles: Sequence[Estimate], good_ratio: float, usd: float | None) -> str:
    figures = "".join(f"{_s(one.value):>7}" for one in quantiles)
    cost = "-" if usd is None else f"{usd:,.2f}"
    return f"  {name:11}{figures}{good_ratio:>8.1%}{cost:>11}"


def _s(seconds: float) -> str:
    if seconds >= _FAILED_S:
        return "fails"
    return f"{seconds:.3f}" if seconds < 0.1 else f"{seconds:.2f}" if seconds < 10 else f"{seconds:.1f}"


def _interval(one: Estimate) -> str:
    low, high = (_s(one.low) if one.low > 0 else "0", _s(one.high) if one.high < _FAILED_S else "fails")
    return f"[{low}, {high}]"


def format_break_even(found: BreakEven) -> str:
    """When work on software pays."""
    lines = ["Work or machines", f"  {found.assumptions}.",
             f"  Software: {found.software_usd:,.2f} USD a day, whatever the traffic."]
    if found.machine_usd is not None:
        lines.append(f"  Bigger machines at {found.traffic_per_day:,.0f} requests a day: {found.machine_usd:,.2f} USD a "
                     "day.")
    if found.saved_usd is not None:
        lines.append(f"  It would save {found.saved_usd:,.2f} USD a day at {found.traffic_per_day:,.0f} requests a day.")
    even = "none" if found.requests_per_day is None else f"{found.requests_per_day:,.0f} requests a day"
    lines.append(f"  Break-even: {even}. Rule of thumb: hardware below {HARDWARE_BELOW:,}, software above "
                 f"{SOFTWARE_ABOVE:,}. Here: {found.advice}.")
    return _join(lines)


def format_memory(plan: MemoryPlan) -> str:
    """The memory of a model."""
    lines = [f"{plan.model}: {plan.n_params / 1e9:.2f} billion parameters",
             f"  weights {plan.weight_bytes / 1e9:.2f} GB, KV cache {plan.kv_bytes_per_token / 1e3:.1f} kB a token",
             f"  a running request of {plan.live_tokens:,.0f} tokens: {plan.kv_bytes_per_request / 1e9:.3f} GB"]
    if plan.most_concurrent is not None:
        lines.append(f"  most requests at a time: {plan.most_concurrent:,}" if plan.most_concurrent else
                     "  it does not fit: choose a smaller dtype or more memory")
    if plan.tokens_per_s_alone is not None:
        lines.append(f"  by memory bandwidth: {plan.tokens_per_s_alone:,.0f} tokens/s for one answer" + (
            f", {plan.tokens_per_s_full:,.0f} for all together" if plan.tokens_per_s_full is not None else ""))
    return _join(lines)


def _join(lines: Iterable[str]) -> str:
    return "\n".join(part.rstrip() for line in lines for part in textwrap.wrap(line, COLUMNS, subsequent_indent="    ",
                                                                      drop_whitespace=False)) + "\n"
