"""`stayfast quantise`: a GGUF model with smaller weights, and what that costs."""

import argparse
import signal
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NoReturn

from stayfast.cli import Command, print_message
from stayfast.engine.quantise.tensor_types import SOURCES, TARGETS
from stayfast.lab.quantise.report import LossBounds

EXIT_NOT_WRITTEN = 2
INSTALL_HINT = "it is the extra `quantise`: in the source folder, pip install '.[quantise]'"
_BOUNDS = LossBounds()


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Parse the words after `stayfast quantise`."""
    command = Command(prog="stayfast quantise", description="Write a GGUF model with smaller weights, and measure what that "
                      "costs: memory, tokens per second, accuracy.",
                      epilog="K-quants (q4_K_M and others) need llama.cpp's own `llama-quantize`.")
    add = command.add_argument
    add("model", metavar="MODEL", help=f"a GGUF file in {', '.join(SOURCES)}")
    add("--to", required=True, choices=TARGETS, help="the type of the weights")
    add("-o", "--output", metavar="FILE", help="the new model (default: beside MODEL, with the type in its name)")
    add("--force", action="store_true", help="overwrite the file if it exists")
    add("--text", metavar="FILE", help="the text on which both models are compared (default: one that comes with Stayfast)")
    add("--questions", metavar="FILE", help="your own questions with what is expected: YAML or .jsonl")
    add("--max-perplexity-loss", type=_share, default=_BOUNDS.perplexity, metavar="SHARE",
        help=f"that is accepted, such as 2%% (default: {_BOUNDS.perplexity:.0%}%)")
    add("--max-kl", type=_positive, default=_BOUNDS.kl, metavar="NATS", help="a token (default: %(default)s)")
    add("--max-answers-lost", type=_share, default=_BOUNDS.questions, metavar="SHARE",
        help=f"of the questions (default: {_BOUNDS.questions:.0%}%)")
    add("--chunks", type=_count, metavar="N", help="most chunks of 192 tokens of the text (default: 24)")
    add("--threads", type=_count, default=0, metavar="N", help="of the engine (default: all cores but one)")
    add("--seed", type=int, default=1, help="of the tokens that are drawn (default: %(default)s)")
    add("--no-check", action="store_true", help="only write the model: no engine is started")
    add("--json", action="store_true", help="print the report as JSON")
    return command.parse_args(words)


def run(arguments: argparse.Namespace) -> int:
    """Exit status: 0: written, and the loss holds its bounds or was not checked; 1: it exceeds one; 2: nothing was written;
    6: written, and inconclusive or the check failed.
    """
    previous = signal.signal(signal.SIGTERM, _interrupt)
    try:
        status: int = import_module("stayfast.cli.quantise_model").run(arguments)
    except ModuleNotFoundError as missing:
        if missing.name not in ("gguf", "numpy"):
            raise
        print_message(f"stayfast quantise: {missing.name} is not installed; {INSTALL_HINT}")
        return EXIT_NOT_WRITTEN
    finally:
        signal.signal(signal.SIGTERM, previous)
    return status


def _interrupt(number: int, frame: Any) -> NoReturn:
    """As Ctrl-C, so that a file that is half written is removed."""
    raise KeyboardInterrupt


def _share(text: str) -> float:
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"must be a share above 0 and below 1, such as 2% or 0.02, not {text!r}")
    return value


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e6:
        raise argparse.ArgumentTypeError(f"must be a number above 0, not {text!r}")
    return value


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= 10_000):
        raise argparse.ArgumentTypeError(f"must be a whole number from 1 to 10000, not {text!r}")
    return int(text)
