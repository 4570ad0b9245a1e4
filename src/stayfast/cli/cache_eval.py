"""`stayfast cache eval`: hit rate and error of a semantic cache on the user's own questions."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from stayfast.cli import print_message
from stayfast.cli.terminal import ink_of_output
from stayfast.lab.semantic_eval.evaluate import Evaluation, Unreadable, evaluate, of_classes, of_pairs
from stayfast.lab.semantic_eval.report import as_text, page
from stayfast.policy.cache.calibration import LEAST_LABELS
from stayfast.policy.cache.similarity import MOST_LABELS, EligibleConfig
from stayfast.settings import environment
from stayfast.settings.environment import cache_home
from stayfast.stores.embedder import EmbedderConfig, NoEmbedder
from stayfast.stores.onnx_embedder import load

EXIT_NOTHING = 1
EXIT_USAGE = 2
MIN_QUESTIONS = 50


def run(arguments: argparse.Namespace) -> int:
    """Evaluate. Exit status 1: not possible; 2: wrong options."""
    try:
        max_errors = [_parse_share(part) for part in arguments.max_error.split(",")]
        eligible = EligibleConfig(allow_personal=arguments.personal, min_content_words=arguments.words,
                                  volatile_ttl_s=86_400.0 if arguments.volatile else 0.0)
        if not LEAST_LABELS <= arguments.min_labels <= MOST_LABELS:
            raise ValueError(f"--min-labels must be from {LEAST_LABELS} to {MOST_LABELS}, not {arguments.min_labels}")
    except ValueError as wrong:
        print_message(f"stayfast cache eval: {wrong}")
        return EXIT_USAGE
    try:
        found = _evaluate(arguments, eligible, max_errors)
        if arguments.html is not None:
            _write_page(found, arguments.html)
    except (Unreadable, NoEmbedder) as why:
        print_message(f"stayfast cache eval: {why}")
        return EXIT_NOTHING
    if arguments.json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(found), indent=2).decode() + "\n")
    else:
        sys.stdout.write(as_text(found, ink_of_output()))
    return 0


def _parse_share(text: str) -> float:
    """Parse a share: 1%, 0.5 % or 0.01."""
    bare = text.strip()
    try:
        value = float(bare.removesuffix("%")) / (100 if bare.endswith("%") else 1)
    except ValueError:
        raise ValueError(f"--max-error takes shares such as 1%,5%, not {text!r}") from None
    if not 0.0001 <= value <= 0.5:
        raise ValueError(f"--max-error must be from 0.01% to 50%, not {text!r}")
    return value


def _evaluate(arguments: argparse.Namespace, eligible: EligibleConfig, max_errors: Sequence[float]) -> Evaluation:
    """Read, embed and evaluate. Raises Unreadable, NoEmbedder."""
    path = Path(arguments.pairs or arguments.classes)
    questions = of_pairs(path) if arguments.pairs else of_classes(path)
    if len(questions.texts) < MIN_QUESTIONS:
        raise Unreadable(f"{path} has {len(questions.texts)} questions; at least {MIN_QUESTIONS} are needed")
    encoder = load(EmbedderConfig(model=arguments.model or ""), str(cache_home(environment())))
    print_message(f"embedding {len(questions.texts):,} questions")
    vectors = encoder.embed_all(questions.texts)
    return evaluate(questions, vectors, eligible, name=path.name, embedder=encoder.id, seed=arguments.seed,
                    max_errors=max_errors, min_labels=arguments.min_labels, report_progress=print_message)


def _write_page(found: Evaluation, path: str) -> None:
    try:
        Path(path).write_text(page(found), "utf-8")
    except OSError as why:
        raise Unreadable(f"{path} cannot be written: {why.strerror}") from None
