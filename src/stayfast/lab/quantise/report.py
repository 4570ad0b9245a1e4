"""The report of a quantised model: a JSON file beside it, which `stayfast plan --model` reads, and a text."""

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Final

import msgspec

from stayfast.lab.quantise.accuracy import AccuracyFigures, Estimate95
from stayfast.lab.quantise.questions import QuestionFigures
from stayfast.lab.quantise.speed import SpeedFigures

KV_TYPES: Final = ("f16", "q8_0", "q4_0")


class QuantiseVerdict(StrEnum):
    """Whether the loss is within its bound."""

    HOLDS = "holds"
    EXCEEDS = "exceeds the bound"
    INCONCLUSIVE = "inconclusive"
    NOT_CHECKED = "not checked"


class UnreadableReport(ValueError):
    """The file is no report of `stayfast quantise`."""


class ModelSide(msgspec.Struct, frozen=True):
    """The model before or after. file: its name, without a folder. types: bytes of the tensors of each type."""

    file: str
    file_bytes: int
    weight_bytes: int
    types: dict[str, int]
    resident_bytes: int | None = None  # of an engine's process that has answered; None: not measured


class LossBounds(msgspec.Struct, frozen=True):
    """The largest losses that are accepted: shares of the perplexity and of the questions; KL in nats a token."""

    perplexity: float = 0.02
    kl: float = 0.03
    questions: float = 0.02


class LossVerdict(msgspec.Struct, frozen=True):
    """One measure: does its interval show that the loss is within the bound?"""

    measure: str
    loss: Estimate95
    bound: float
    verdict: QuantiseVerdict


class QuantiseReport(msgspec.Struct, frozen=True):
    """kv_bytes_per_token: by the type of the KV cache, which is the same before and after; None: not in the metadata."""

    to: str
    before: ModelSide
    after: ModelSide
    kv_bytes_per_token: dict[str, float] | None = None
    speed: SpeedFigures | None = None
    accuracy: AccuracyFigures | None = None
    questions: QuestionFigures | None = None
    verdicts: tuple[LossVerdict, ...] = ()
    verdict: QuantiseVerdict = QuantiseVerdict.NOT_CHECKED
    notes: tuple[str, ...] = ()


def judge(accuracy: AccuracyFigures | None, questions: QuestionFigures | None,
          bounds: LossBounds) -> tuple[tuple[LossVerdict, ...], QuantiseVerdict]:
    """The verdict of each measure, and of all: the worst of them."""
    found: list[LossVerdict] = []
    if accuracy is not None:
        found += [judge_loss("perplexity", accuracy.perplexity_loss, bounds.perplexity),
                  judge_loss("KL divergence", accuracy.kl, bounds.kl)]
    if questions is not None:
        found.append(judge_loss("questions", questions.loss, bounds.questions))
    words = {one.verdict for one in found}
    worst = (QuantiseVerdict.EXCEEDS, QuantiseVerdict.INCONCLUSIVE, QuantiseVerdict.HOLDS)
    return tuple(found), next((word for word in worst if word in words), QuantiseVerdict.NOT_CHECKED)


def judge_loss(measure: str, loss: Estimate95, bound: float) -> LossVerdict:
    """Holds only if the whole interval is within the bound."""
    word = (QuantiseVerdict.HOLDS if loss.high <= bound else QuantiseVerdict.EXCEEDS if loss.low > bound else
            QuantiseVerdict.INCONCLUSIVE)
    return LossVerdict(measure, loss, bound, word)


def report_path(model: Path) -> Path:
    """Where the report of a quantised model is."""
    return model.with_name(model.name + ".json")


def write_report(report: QuantiseReport, model: Path) -> Path:
    """Write it beside the model, whole or not at all. Raises OSError."""
    path = report_path(model)
    partial = path.with_name(f".{path.name}.partial")
    partial.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")
    partial.replace(path)
    return path


def read_report(path: Path) -> QuantiseReport:
    """Raises UnreadableReport, OSError."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=QuantiseReport)
    except msgspec.MsgspecError as error:
        raise UnreadableReport(f"{path} is no report of `stayfast quantise`: {error}") from error


def find_reports(model: Path) -> Mapping[Path, QuantiseReport]:
    """The reports about a model file in its folder: its own, or those of the models made of it. Files of other sizes than
    the report's are others by now, and do not count.
    """
    size = model.stat().st_size
    found = {}
    for path in sorted(model.parent.glob("*.gguf.json")):
        try:
            report = read_report(path)
        except (UnreadableReport, OSError):
            continue  # of something else
        if (model.name, size) in ((report.before.file, report.before.file_bytes),
                                  (report.after.file, report.after.file_bytes)):
            found[path] = report
    return found
