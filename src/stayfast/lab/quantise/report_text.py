"""The report of a quantised model as text of at most 80 columns."""

import textwrap
from collections.abc import Iterator

from stayfast.core.units import format_digits
from stayfast.lab.quantise.accuracy import AccuracyFigures, Estimate95
from stayfast.lab.quantise.questions import QuestionFigures
from stayfast.lab.quantise.report import LossVerdict, ModelSide, QuantiseReport
from stayfast.lab.quantise.speed import SpeedFigures

COLUMNS = 80
_SHOWN = 10  # changed answers


def format_report(report: QuantiseReport) -> str:
    """Memory, speed, accuracy, the user's questions, and the verdict."""
    lines = [*_memory(report), *(_speed(report.speed) if report.speed is not None else ()),
             *(_accuracy(report.accuracy) if report.accuracy is not None else ()),
             *(_questions(report.questions) if report.questions is not None else ()), *_verdict(report)]
    return "\n".join(part.rstrip() for line in lines for part in textwrap.wrap(
        line, COLUMNS, subsequent_indent=" " * 24, drop_whitespace=False, break_on_hyphens=False)) + "\n"


def format_change(report: QuantiseReport) -> str:
    """The losses and the verdict in one sentence, for a plan."""
    accuracy = report.accuracy
    if accuracy is None:
        return "accuracy not checked"
    parts = [f"perplexity {_signed(accuracy.perplexity_loss)}", f"KL {_interval(accuracy.kl, 4)} nats"]
    if report.questions is not None:
        parts.append(f"{report.questions.n_lost} of {report.questions.n} answers lost, {report.questions.n_gained} gained")
    return f"{', '.join(parts)}: {report.verdict}"


def _memory(report: QuantiseReport) -> Iterator[str]:
    before, after = report.before, report.after
    yield f"{before.file} -> {after.file}"
    yield f"  {'':22}{'before':>12}{'after':>12}"
    for name, old, new in (("weights", before.weight_bytes, after.weight_bytes),
                           ("file", before.file_bytes, after.file_bytes),
                           ("process, resident", before.resident_bytes, after.resident_bytes)):
        if old and new:
            yield _row(name, format_bytes(old), format_bytes(new), f"{new / old:.0%}")
    yield f"  types                 {_types(before)} -> {_types(after)}"
    if report.kv_bytes_per_token is not None:
        kinds = ", ".join(f"{kind} {format_bytes(size)}" for kind, size in report.kv_bytes_per_token.items())
        yield f"  KV cache of a token   {kinds}; unchanged by the weights' type"


def _types(side: ModelSide) -> str:
    return ", ".join(f"{kind} {size / side.weight_bytes:.0%}"
                     for kind, size in sorted(side.types.items(), key=lambda one: -one[1]))


def _row(name: str, before: str, after: str, more: str) -> str:
    return f"  {name:22}{before:>12}{after:>12}  {more}".rstrip()


def _speed(speed: SpeedFigures) -> Iterator[str]:
    threads = f"{speed.n_threads} thread{'s' * (speed.n_threads > 1)}"
    yield f"Speed, tokens/s, one request at a time, {threads}, {speed.n_rounds} rounds in turn"
    yield _row("prompt", format_digits(speed.prompt_before), format_digits(speed.prompt_after),
               f"x {_interval(speed.prompt_ratio, 2)}")
    yield _row("answer", format_digits(speed.answer_before), format_digits(speed.answer_after),
               f"x {_interval(speed.answer_ratio, 2)}")


def _accuracy(found: AccuracyFigures) -> Iterator[str]:
    yield from textwrap.wrap(f"Accuracy on {found.n_positions:,} tokens of {found.text}, in {found.n_chunks} chunks; 95 % "
                             "intervals", COLUMNS)
    yield f"  {'perplexity':22}{_figure(found.perplexity_before)}"
    yield f"  {'  after':22}{_figure(found.perplexity_after)}"
    yield f"  {'  loss':22}{_signed(found.perplexity_loss)}"
    yield f"  {'KL divergence':22}{_interval(found.kl, 5)} nats a token"
    yield f"  {'same first token':22}{_percent(found.same_first)}"


def _questions(found: QuestionFigures) -> Iterator[str]:
    yield f"Questions of {found.file}, at temperature 0"
    yield _row("right", f"{found.n_right_before} of {found.n}", f"{found.n_right_after} of {found.n}", "")
    yield (f"  {'loss':22}{_signed(found.loss)}: {found.n_lost} lost, {found.n_gained} gained (McNemar p = {found.p:.2g}), "
           f"{found.n_reworded} differ")
    for one in found.changed[:_SHOWN]:
        yield from textwrap.wrap(f"{'lost' if one.is_lost else 'gained'}: {one.question!r}: {one.before!r} -> {one.after!r}",
                                 COLUMNS, initial_indent="  ", subsequent_indent="    ")
    if len(found.changed) > _SHOWN:
        yield f"  and {len(found.changed) - _SHOWN} more in the report"


def _verdict(report: QuantiseReport) -> Iterator[str]:
    for note in report.notes:
        yield from textwrap.wrap(f"Note: {note}.", COLUMNS, subsequent_indent="  ")
    for one in report.verdicts:
        yield f"  {one.measure:22}{_loss(one)}: {one.verdict}"
    yield f"Verdict: {report.verdict}"


def _loss(one: LossVerdict) -> str:
    """Where the interval is, and the bound."""
    if one.measure == "KL divergence":
        return f"at most {one.loss.high:.5f}, bound {one.bound:g} nats"
    return f"at most {one.loss.high:+.2%}, bound {one.bound:+.2%}"


def _figure(one: Estimate95) -> str:
    return f"{one.value:.4g} [{one.low:.4g}, {one.high:.4g}]"


def _interval(one: Estimate95, digits: int) -> str:
    return f"{one.value:.{digits}f} [{one.low:.{digits}f}, {one.high:.{digits}f}]"


def _signed(one: Estimate95) -> str:
    return f"{one.value:+.2%} [{one.low:+.2%}, {one.high:+.2%}]"


def _percent(one: Estimate95) -> str:
    return f"{one.value:.2%} [{one.low:.2%}, {one.high:.2%}]"


def format_bytes(n_bytes: float) -> str:
    """12345678 -> 12.3 MB."""
    for bound, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if n_bytes >= bound:
            return f"{format_digits(n_bytes / bound)} {unit}"
    return f"{n_bytes:.0f} B"
