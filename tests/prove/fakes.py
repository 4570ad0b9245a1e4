"""Claims with fixed results. As a program: `stayfast prove` with these claims."""

import asyncio
import sys
import threading
from dataclasses import dataclass
from unittest.mock import patch

from stayfast.cli import main
from stayfast.lab.harness.claim import Claim, ClaimResult, Conditions, Figure, NeedsData, Sense, SetUpFailed
from stayfast.lab.harness.processes import Processes

NAN = float("nan")
HOLDS = ClaimResult((Figure("time to nothing", 1.25, "ms", 50.0, low=0.5, high=2.0), Figure("clients", 10.0, "")),
                    ("A note.",))
FALLS_SHORT = ClaimResult((Figure("time to nothing", 51.0, "ms", 50.0), Figure("share", 99.0, "%", 100.0, Sense.AT_LEAST),
                       Figure("never taken", NAN, "ms", 1.0)))
OPEN = ClaimResult((Figure("time to nothing", 45.0, "ms", 50.0, low=40.0, high=60.0),))
SPOILED = ClaimResult((Figure("time to nothing", 1.0, "ms", 50.0),), spoiled="the client was late")


@dataclass(frozen=True)
class Fake:
    """Returns a fixed finding. failed: the message of a failed set-up. needs: the message if `--data` is missing."""

    name: str
    finding: ClaimResult = HOLDS
    failed: str = ""
    needs: str = ""

    @property
    def statement(self) -> str:
        return f"What {self.name} claims."

    async def run(self, conditions: Conditions) -> ClaimResult:
        conditions.report_progress("half of it done")
        if self.failed:
            raise SetUpFailed(self.failed)
        if self.needs and conditions.data is None:
            raise NeedsData(self.needs)
        return self.finding


class Computing:
    """Computes for an hour in a thread that cannot be stopped, like a proof in virtual time."""

    name = "computing"
    statement = "What computing claims."

    async def run(self, conditions: Conditions) -> ClaimResult:
        conditions.report_progress("in a thread")
        await asyncio.to_thread(threading.Event().wait, 3600)
        return HOLDS


class Endless:
    """Starts a server, reports its process id, and waits for ever."""

    name = "endless"
    statement = "It never ends."

    async def run(self, conditions: Conditions) -> ClaimResult:
        async with Processes() as processes:
            floor = await processes.start_bare_proxy("http://127.0.0.1:9")
            conditions.report_progress(f"pid {floor.process.pid}")
            await floor.process.wait()
        return HOLDS


def fakes() -> dict[str, Claim]:
    claims: tuple[Claim, ...] = (
        Fake("good"), Fake("bad", FALLS_SHORT), Fake("void", SPOILED), Fake("open", OPEN),
        Fake("broken", failed="`stayfast sim` did not start:\nno such preset"), Endless(), Computing())
    return {claim.name: claim for claim in claims}


if __name__ == "__main__":
    with patch("stayfast.cli.prove.claims", fakes):
        sys.exit(main(["prove", *sys.argv[1:]]))
