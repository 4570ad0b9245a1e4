"""Quantise one model and check it. Needs gguf and numpy; the check needs xllamacpp."""

import argparse
import asyncio
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from stayfast.cli import print_message
from stayfast.cli.terminal import ProgressLine
from stayfast.core.units import make_printable
from stayfast.engine.model_file import UnreadableModel, read_shape
from stayfast.engine.quantise.model_file import ConversionPlan, NotQuantisable, plan_conversion
from stayfast.engine.quantise.writer import check_target, write_quantised
from stayfast.lab.quantise.accuracy import TextTooShort
from stayfast.lab.quantise.check import (
    DEFAULT_TEXT,
    MOST_CHUNKS,
    CheckFigures,
    CheckOptions,
    check_model,
    make_report,
    read_default_text,
)
from stayfast.lab.quantise.loaded_model import ModelFailed
from stayfast.lab.quantise.questions import UnreadableQuestions, read_questions
from stayfast.lab.quantise.report import KV_TYPES, LossBounds, QuantiseVerdict, write_report
from stayfast.lab.quantise.report_text import format_report

EXIT_NOT_WRITTEN = 2
EXIT_INCONCLUSIVE = 6
_STATUS = {QuantiseVerdict.HOLDS: 0, QuantiseVerdict.NOT_CHECKED: 0, QuantiseVerdict.EXCEEDS: 1,
           QuantiseVerdict.INCONCLUSIVE: EXIT_INCONCLUSIVE}
_SUFFIXES = (".f32", ".f16", ".bf16", ".q8_0", "-f32", "-f16", "-bf16", "-q8_0")


def run(arguments: argparse.Namespace) -> int:
    """Exit status: see `stayfast.cli.quantise.run`."""
    line = ProgressLine(is_quiet=not sys.stderr.isatty())
    try:
        options = _read_options(arguments)
        source = Path(arguments.model)
        plan = plan_conversion(source, arguments.to)
        target = Path(arguments.output) if arguments.output is not None else default_target(source, arguments.to)
        check_target(plan, target, overwrite=arguments.force)
        write_quantised(plan, target, overwrite=arguments.force, report=lambda name, share: line.show([name], share))
    except OSError as error:
        return _refuse(line, f"{error.filename or arguments.model}: {error.strerror or error}")
    except (NotQuantisable, UnreadableQuestions, UnicodeDecodeError) as error:
        return _refuse(line, str(error))
    found, failure = None, ""
    if not arguments.no_check:
        found, failure = _check(plan, target, options, lambda name, share: line.show([name], share))
    line.clear()
    bounds = LossBounds(arguments.max_perplexity_loss, arguments.max_kl, arguments.max_answers_lost)
    report = make_report(plan, target, found, bounds, _kv_bytes(source))
    path = write_report(report, target)
    if arguments.json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(report), indent=2).decode() + "\n")
    else:
        text = "\n".join(make_printable(each) for each in format_report(report).split("\n"))
        sys.stdout.write(text + f"Report: {path}\n")
    if failure:
        print_message(f"stayfast quantise: {target} is written, but not checked: {failure}")
        return EXIT_INCONCLUSIVE
    return _STATUS[report.verdict]


def default_target(source: Path, to: str) -> Path:
    """MODEL.f16.gguf -> MODEL.q4_0.gguf."""
    stem = source.name.removesuffix(".gguf")
    suffix = next((one for one in _SUFFIXES if stem.lower().endswith(one) and len(stem) > len(one)), "")
    return source.with_name(f"{stem[:len(stem) - len(suffix)]}.{to}.gguf")


def _read_options(arguments: argparse.Namespace) -> CheckOptions:
    """Raises UnreadableQuestions, UnicodeDecodeError, OSError."""
    is_own = arguments.text is not None
    questions = read_questions(Path(arguments.questions)) if arguments.questions is not None else []
    return CheckOptions(
        Path(arguments.text).name if is_own else DEFAULT_TEXT,
        Path(arguments.text).read_text(encoding="utf-8-sig") if is_own else read_default_text(),
        Path(arguments.questions).name if questions else "", questions, n_threads=arguments.threads, seed=arguments.seed,
        most_chunks=arguments.chunks or MOST_CHUNKS)


def _check(plan: ConversionPlan, target: Path, options: CheckOptions,
           report: Callable[[str, float], None]) -> tuple[CheckFigures | None, str]:
    """The figures, or why there are none."""
    try:
        return asyncio.run(check_model(plan.path, target, options, report)), ""
    except (ModelFailed, TextTooShort) as error:
        return None, str(error)


def _kv_bytes(path: Path) -> dict[str, float] | None:
    """By the type of the cache; None: the metadata lack the shape."""
    try:
        shape = read_shape(path)
    except UnreadableModel:
        return None
    return {kind: shape.kv_bytes_per_token(kind) for kind in KV_TYPES}


def _refuse(line: ProgressLine, why: str) -> int:
    line.clear()
    print_message(f"stayfast quantise: {why}")
    return EXIT_NOT_WRITTEN
