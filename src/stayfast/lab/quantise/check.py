"""Runs a model before and after quantisation in two engine processes, and compares them."""

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from importlib.resources import files
from pathlib import Path
from typing import Final

import msgspec

from stayfast.engine.machine import n_cores
from stayfast.engine.quantise.model_file import ConversionPlan
from stayfast.lab.quantise.accuracy import AccuracyFigures, compare_scores, cut_text, score_source, summarise_losses
from stayfast.lab.quantise.loaded_model import load_model
from stayfast.lab.quantise.questions import QuestionFigures, UserQuestion, answer_questions, compare_answers, count_needed
from stayfast.lab.quantise.report import LossBounds, ModelSide, QuantiseReport, judge
from stayfast.lab.quantise.speed import MOST_ROUNDS, SpeedFigures, measure_speed
from stayfast.lab.quantise.token_scores import make_scorer

DEFAULT_TEXT: Final = "the text that comes with Stayfast"
MOST_CHUNKS: Final = 24
CTX_TOKENS: Final = 2048
Report = Callable[[str, float], None]


class CheckOptions(msgspec.Struct, frozen=True):
    """What is compared. text: with its name; questions: with the name of their file, or none. n_threads: 0: all cores but
    one. ctx_tokens: of a prompt and answer together.
    """

    text_name: str
    text: str
    questions_name: str = ""
    questions: Sequence[UserQuestion] = ()
    n_threads: int = 0
    seed: int = 1
    most_chunks: int = MOST_CHUNKS
    most_rounds: int = MOST_ROUNDS
    ctx_tokens: int = CTX_TOKENS


class CheckFigures(msgspec.Struct, frozen=True):
    """What the comparison found. resident_bytes: before and after; None: unknown on this system."""

    accuracy: AccuracyFigures
    questions: QuestionFigures | None
    speed: SpeedFigures
    resident_bytes: tuple[int | None, int | None]


def read_default_text() -> str:
    """Prose of this project, some 5,000 tokens for a usual vocabulary."""
    return files("stayfast.lab.quantise").joinpath("text.txt").read_text(encoding="utf-8")


async def check_model(before: Path, after: Path, options: CheckOptions, report: Report) -> CheckFigures:
    """Compare two models with one vocabulary. report: gets the step and the share of it that is done.

    Both are in memory at once. Raises ModelFailed, TextTooShort.
    """
    def step(name: str) -> Callable[[float], None]:
        return lambda share: report(name, share)

    async with AsyncExitStack() as stack:
        report("loading the model", 0.0)
        source = await stack.enter_async_context(load_model(before, ctx_per_slot=options.ctx_tokens,
                                                            n_threads=options.n_threads))
        chunks = await cut_text(source, options.text, most_chunks=options.most_chunks)
        scores = await score_source(await make_scorer(source, options.seed), chunks, step("text, before"))
        answers = await answer_questions(source, options.questions, step("questions, before"))
        quantised = await stack.enter_async_context(load_model(after, ctx_per_slot=options.ctx_tokens,
                                                               n_threads=options.n_threads))
        losses = await compare_scores(await make_scorer(quantised, options.seed), chunks, scores, step("text, after"))
        new_answers = await answer_questions(quantised, options.questions, step("questions, after"))
        tokens = [token for chunk in chunks for token in chunk.tokens]
        speed = await measure_speed((source, quantised), tokens, options.n_threads or max(1, n_cores() - 1), step("speed"),
                                    most_rounds=options.most_rounds)
        resident = source.resident_bytes, quantised.resident_bytes
    questions = compare_answers(options.questions_name, options.questions, answers, new_answers) if answers else None
    return CheckFigures(summarise_losses(options.text_name, losses), questions, speed, resident)


def make_report(plan: ConversionPlan, target: Path, found: CheckFigures | None, bounds: LossBounds,
                kv_bytes_per_token: dict[str, float] | None) -> QuantiseReport:
    """found: None: only converted. kv_bytes_per_token: by the type of the cache."""
    before, after = found.resident_bytes if found is not None else (None, None)
    accuracy, questions = (found.accuracy, found.questions) if found is not None else (None, None)
    verdicts, verdict = judge(accuracy, questions, bounds)
    notes = []
    if plan.is_second_loss:
        notes.append("the source was q8_0: its own loss against f16 comes on top, and is not in these figures")
    if questions is not None and questions.n < count_needed(bounds.questions):
        notes.append(f"{questions.n} questions cannot exclude a loss of {bounds.questions:.1%}: that takes at least "
                     f"{count_needed(bounds.questions)}")
    return QuantiseReport(
        plan.to, ModelSide(plan.path.name, plan.path.stat().st_size, plan.weight_bytes[0],
                           _bytes_by_type([(one.source, one.rows.nbytes) for one in plan.tensors]), before),
        ModelSide(target.name, plan.n_bytes, plan.weight_bytes[1],
                  _bytes_by_type([(one.target, one.n_bytes) for one in plan.tensors]), after),
        kv_bytes_per_token, None if found is None else found.speed, accuracy, questions, verdicts, verdict, tuple(notes))


def _bytes_by_type(tensors: Sequence[tuple[str, int]]) -> dict[str, int]:
    found: dict[str, int] = {}
    for kind, n_bytes in tensors:
        found[kind] = found.get(kind, 0) + n_bytes
    return found
