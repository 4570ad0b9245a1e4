"""Train a classifier from labelled examples, test it on others, show what a file holds. Needs numpy and tokenizers."""

import argparse
import sys
from pathlib import Path
from time import process_time

import msgspec
import numpy as np

from stayfast.cli import print_message
from stayfast.core.clock import SystemClock
from stayfast.lab.classify_eval import (
    ClassifierFigures,
    UnreadableExamples,
    embed_examples,
    judge_examples,
    measure_answers,
    read_examples,
)
from stayfast.policy.classify.training import split_rows, train_classifier
from stayfast.stores.classifier_file import (
    ClassifierFileError,
    StoredClassifier,
    TrainedOn,
    read_classifier,
    write_classifier,
)
from stayfast.stores.embedder import NoEmbedder

EXIT_NOTHING = 1
EXIT_USAGE = 2
HELD_OUT_PARTS = 10


def run(arguments: argparse.Namespace) -> int:
    """Exit status: 0 done, 1 unreadable file or no embedder, 2 wrong options."""
    try:
        action = {"train": _train, "test": _test, "show": _show}[arguments.action]
        return action(arguments)
    except (UnreadableExamples, ClassifierFileError, NoEmbedder, OSError) as why:
        print_message(f"stayfast classify {arguments.action}: {why}")
        return EXIT_NOTHING


def _train(arguments: argparse.Namespace) -> int:
    if not 0 <= arguments.precision < 1:
        print_message(f"stayfast classify train: --precision must be from 0 to below 1, not {arguments.precision:g}")
        return EXIT_USAGE
    began, cpu_began = SystemClock().now(), process_time()
    examples = read_examples(Path(arguments.file))
    ids, vectors = embed_examples(examples.texts, arguments.embedder, arguments.model or "")
    embedded_s = SystemClock().now() - began
    held_out = split_rows(examples.rows, HELD_OUT_PARTS, arguments.seed) == 0
    held_out &= np.isin(examples.rows, examples.rows[~held_out])
    trained = train_classifier([each[~held_out] for each in vectors], examples.rows[~held_out], examples.labels,
                               precision=arguments.precision, is_isotonic=arguments.calibration == "isotonic",
                               seed=arguments.seed)
    trained_on = TrainedOn(examples.digest, int((~held_out).sum()), arguments.seed)
    stored = StoredClassifier(trained.heads, trained.rule, ids, trained_on)
    right = [examples.labels[row] for row in examples.rows[held_out].tolist()]
    figures = measure_answers(judge_examples(stored, [each[held_out] for each in vectors]), right) if right else None
    if figures is not None:
        stored = msgspec.structs.replace(stored, trained_on=msgspec.structs.replace(
            trained_on, n_held_out=figures.n, accuracy=figures.accuracy, calibration_error=figures.calibration_error,
            unknown_share=figures.unknown_share, precision=figures.precision))
    digest = write_classifier(Path(arguments.out), stored)
    seconds = SystemClock().now() - began
    sys.stdout.write(f"{trained_on.n_rows:,} rows, {len(examples.labels)} labels, {examples.n_repeated} repeated rows left "
                     f"out; {seconds:.1f} s, of which {embedded_s:.1f} s for vectors; {process_time() - cpu_began:.1f} s of "
                     f"CPU\n{_format_figures(figures)}{arguments.out}: {digest[:16]}\n")
    return 0


def _format_figures(figures: ClassifierFigures | None) -> str:
    if figures is None:
        return "no rows were held out: there are too few\n"
    precision = "-" if figures.precision is None else f"{figures.precision:.1%}"
    worst = ", ".join(f"{label} {share:.0%} of {n}" for label, share, n in figures.worst)
    return (f"on {figures.n:,} rows that were held out:\n  right            {figures.accuracy:.1%}\n"
            f"  unknown          {figures.unknown_share:.1%}, right of the others {precision}\n"
            f"  calibration      {figures.calibration_error:.1%} error (ECE)\n"
            f"  second embedder  {figures.share_second:.0%}\n  worst labels     {worst}\n")


def _test(arguments: argparse.Namespace) -> int:
    stored, examples = read_classifier(Path(arguments.classifier)), read_examples(Path(arguments.file))
    strange = sorted(set(examples.labels) - set(stored.rule.labels))
    if strange:
        raise UnreadableExamples(f"{arguments.file}: label {strange[0]!r} is not one of {arguments.classifier}")
    is_static = stored.embedders[0].startswith("static-")
    kind = ("both" if len(stored.embedders) > 1 else "static") if is_static else "minilm"
    ids, vectors = embed_examples(examples.texts, kind, arguments.model or "")
    if ids != stored.embedders:
        raise UnreadableExamples(f"{arguments.classifier} was trained with the vectors {', '.join(stored.embedders)}, and "
                                 f"here are {', '.join(ids)}: train it again, or set --model")
    figures = measure_answers(judge_examples(stored, vectors), [examples.labels[row] for row in examples.rows.tolist()])
    same = examples.digest == stored.trained_on.sha256
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(figures)).decode() + "\n" if arguments.json else
                     ("the file is the one that it was trained on: the figures flatter\n" if same else "")
                     + _format_figures(figures).replace(" that were held out", ""))
    return 0


def _show(arguments: argparse.Namespace) -> int:
    stored = read_classifier(Path(arguments.classifier))
    rule, trained = stored.rule, stored.trained_on
    second = (f"if the margin is below {rule.second_margin:g}, with weight {rule.second_share:g}" if len(stored.heads) > 1
              else "none")
    share = "-" if trained.accuracy is None else f"{trained.accuracy:.1%} of {trained.n_held_out:,} held-out rows"
    error = "-" if trained.calibration_error is None else f"{trained.calibration_error:.1%}"
    sys.stdout.write(f"digest      {stored.digest}\nembedders   {', '.join(stored.embedders)}\nsecond      {second}\n"
                     f"threshold   {rule.threshold:.3f}\nright       {share}\ncalibration {error} error (ECE)\n"
                     f"trained on  {trained.n_rows:,} rows, seed {trained.seed}, sha256 {trained.sha256}\n"
                     f"labels      {len(rule.labels)}\n" + "".join(f"  {label}\n" for label in rule.labels))
    return 0
