"""The page's cost: it holds for the gateway, and falls short of one that makes a frame for each request."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
import uvloop

from stayfast.lab.claims.board import BoardClaim, paint_figures
from stayfast.lab.harness.browser import find_browser, open_browser
from stayfast.lab.harness.claim import Extent, Verdict
from stayfast.lab.harness.processes import Processes, ServerProcess
from tests.absent import absent
from tests.prove.running import figure_of, run, run_until_not_short, short_of, without_interval
from tests.server.fakes import serving

BRIEF = Extent(n=6, real_s=1.5, n_rounds=6)


async def start_eager(processes: Processes, settings: Mapping[str, Any]) -> ServerProcess:
    return await processes.start("tests/prove/eager_board.py", processes.write_file(settings))


@pytest.mark.sockets
@pytest.mark.serial
def test_board_claim_quick_run_does_not_fall_short() -> None:
    """On a machine that others use, its CPU figures are open; frames are never missed, doubled or too large."""
    finding = run_until_not_short(BoardClaim(quick=BRIEF))
    assert short_of(finding) == []
    assert without_interval(finding) == []
    assert figure_of(finding, "largest frame, 6 routes").value > 500


@pytest.mark.sockets
def test_board_claim_frame_for_each_request_falls_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Processes, "reserve_core", lambda *_: False)
    finding = run(BoardClaim(quick=Extent(n=1, real_s=1.5, n_rounds=1), sizes=(6,), start=start_eager))
    short = short_of(finding)
    assert "largest frame, 6 routes and upstreams" in short
    assert "frames beyond one a second, 6 routes and upstreams" in short
    assert finding.verdict is Verdict.FALLS_SHORT


def test_late_paint_on_a_busy_machine_proves_nothing() -> None:
    """A page of one line that takes long shows that the machine is the cause; one load that nothing disturbed suffices."""
    quick, late, busy = [0.03] * 9, [0.15] * 9, [0.09] * 9
    assert paint_figures(quick, late)[0].verdict is Verdict.FALLS_SHORT
    assert paint_figures(busy, late)[0].verdict is Verdict.INCONCLUSIVE
    assert paint_figures(busy, quick)[0].verdict is Verdict.HOLDS
    assert paint_figures(quick, [*late[1:], 0.08])[0].verdict is Verdict.HOLDS


@pytest.mark.sockets
def test_browser_measures_when_the_page_is_painted() -> None:
    path = find_browser()
    if path is None:
        absent("no browser (Debian: apt-get install chromium)")

    async def main() -> float:
        async with asyncio.timeout(60), serving() as running, open_browser(path) as browser:
            return await browser.first_paint_s(f"http://127.0.0.1:{running.port}/ui")

    assert 0 < uvloop.run(main()) < 20
