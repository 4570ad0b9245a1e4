"""Ask the support bot, in a terminal or through its page."""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager

from examples.support_bot import desk as desks
from examples.support_bot import terminal, web
from examples.support_bot.turn import SLOW_S, STAGES, TOTAL_S, Writer


def parse_arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m examples.support_bot", description="Ask the project's own docs.")
    parser.add_argument("question", nargs="*", help="what to ask, in words")
    parser.add_argument("--page", action="store_true", help="serve a page that shows all channels")
    parser.add_argument("--port", type=int, default=8091, help="of the page, on 127.0.0.1; 0 chooses one (default 8091)")
    parser.add_argument("--total", type=_parse_seconds, default=TOTAL_S, help="seconds of a turn (default 2.5)")
    parser.add_argument("--slow", action="append", type=_parse_slow, default=[], metavar="STAGE=SECONDS",
                        help=f"delay one of {', '.join(STAGES)}, as in meaning=30")
    parser.add_argument("--base-url", help="OpenAI-compatible address of another model than the embedded one")
    parser.add_argument("--model", default="stayfast-tiny", help="its name there")
    parsed = parser.parse_args(given)
    if not parsed.question and not parsed.page:
        parser.error('give a question, as in "How do I turn hedging off?", or use --page')
    return parsed


def _parse_seconds(text: str) -> float:
    seconds = float(text)
    if not 0.1 <= seconds <= 60:
        raise argparse.ArgumentTypeError("must be from 0.1 to 60")
    return seconds


def _parse_slow(text: str) -> tuple[str, float]:
    stage, _, seconds = text.partition("=")
    if stage not in STAGES or not seconds.replace(".", "", 1).isdigit():
        raise argparse.ArgumentTypeError(f"must be one of {', '.join(STAGES)}, =, and seconds")
    return stage, float(seconds)


async def run(arguments: argparse.Namespace) -> None:
    """One question, or the page until it is interrupted."""
    writer: AbstractAsyncContextManager[Writer] = desks.embedded_writer()
    if arguments.base_url:
        writer = desks.remote_writer(arguments.base_url, arguments.model)
    sys.stderr.write("Loading the docs; the first time this takes some seconds.\n")
    async with desks.open_desk(writer, SLOW_S | dict(arguments.slow)) as desk:
        for part, why in desk.without.items():
            sys.stderr.write(f"without {part}: {why}\n")
        if arguments.page:
            await web.serve(desk, arguments.port, arguments.total)
        else:
            await terminal.print_answer(" ".join(arguments.question), desk, arguments.total)


def main() -> None:
    try:
        asyncio.run(run(parse_arguments()))
    except KeyboardInterrupt:
        sys.stderr.write("\n")


if __name__ == "__main__":
    main()
