"""Ask the support bot, in a terminal or through its page."""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager

from examples.support_bot import desk as desks
from examples.support_bot import terminal, web
from examples.support_bot.turn import SLOW_S, STAGES, TOTAL_S, Writer


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """What was typed."""
    parser = argparse.ArgumentParser(prog="python -m examples.support_bot", description="Ask the project's own docs.")
    parser.add_argument("question", nargs="*", help="what to ask, in words")
    parser.add_argument("--page", action="store_true", help="serve a page that shows all channels")
    parser.add_argument("--port", type=int, default=8091, help="of the page, on 127.0.0.1; 0 chooses one (default 8091)")
    parser.add_argument("--total", type=_seconds, default=TOTAL_S, help="seconds of a turn (default 2.5)")
    parser.add_argument("--slow", action="append", type=_slow, default=[], metavar="STAGE=SECONDS",
                        help=f"let one of {', '.join(STAGES)} take longer than it has to, as in meaning=30")
    parser.add_argument("--base-url", help="of another model than the embedded one, behind OpenAI's API")
    parser.add_argument("--model", default="stayfast-tiny", help="its name there")
    said = parser.parse_args(given)
    if not said.question and not said.page:
        parser.error('ask something, as in "How do I turn hedging off?", or say --page')
    return said


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0.1 <= seconds <= 60:
        raise argparse.ArgumentTypeError("must be from 0.1 to 60")
    return seconds


def _slow(text: str) -> tuple[str, float]:
    stage, _, seconds = text.partition("=")
    if stage not in STAGES or not seconds.replace(".", "", 1).isdigit():
        raise argparse.ArgumentTypeError(f"must be one of {', '.join(STAGES)}, =, and seconds")
    return stage, float(seconds)


async def run(said: argparse.Namespace) -> None:
    """One question, or the page until it is interrupted."""
    writer: AbstractAsyncContextManager[Writer] = desks.embedded()
    if said.base_url:
        writer = desks.remote(said.base_url, said.model)
    sys.stderr.write("Opening the docs; the first time that takes some seconds.\n")
    async with desks.desk(writer, SLOW_S | dict(said.slow)) as desk:
        for part, why in desk.without.items():
            sys.stderr.write(f"without {part}: {why}\n")
        if said.page:
            await web.serve(desk, said.port, said.total)
        else:
            await terminal.ask(" ".join(said.question), desk, said.total)


def main() -> None:
    """See the module."""
    try:
        asyncio.run(run(arguments()))
    except KeyboardInterrupt:
        sys.stderr.write("\n")


if __name__ == "__main__":
    main()
