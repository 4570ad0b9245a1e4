"""The claims about the budget layer hold in short runs, and fall short with broken parts."""

import asyncio
import time
from math import inf

import pytest

from stayfast.lab.claims import agent, deadline, partial, tools
from stayfast.lab.claims.budget_overhead import BudgetOverhead
from stayfast.lab.harness.claim import Extent, Verdict
from stayfast.lab.harness.virtual import run_virtual
from stayfast.turns import patch
from stayfast.turns.budget import Budget
from tests.prove.running import figure_of, run, short_of


def test_deadline_claim_holds() -> None:
    finding = run_virtual(deadline.measure, 500, 1)
    assert short_of(finding) == []
    assert finding.holds


def test_deadline_claim_waiting_for_cleanup_falls_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """A budget that waits for an uncancellable step ends late."""
    async def patient(of: Budget, calls: "set[asyncio.Task[object]]") -> None:
        await asyncio.wait(list(calls), timeout=0.05)

    monkeypatch.setattr(Budget, "_wait_for", patient)
    assert "latest end of a budget, past its deadline" in short_of(run_virtual(deadline.measure, 300, 1))


def test_deadline_claim_forgotten_steps_fall_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps are left behind, or never end."""
    async def forgetful(of: Budget) -> None:
        pass

    monkeypatch.setattr(Budget, "_end_all", forgetful)
    finding = run_virtual(deadline.measure, 300, 1)
    assert finding.verdict is Verdict.FALLS_SHORT
    assert figure_of(finding, "steps that went on and were not named as abandoned").value > 0


def test_partial_claim_holds_and_waiting_for_all_falls_short(monkeypatch: pytest.MonkeyPatch) -> None:
    finding = run_virtual(partial.measure, 1000, 1)
    assert short_of(finding) == []
    assert finding.holds
    monkeypatch.setattr(partial, "BY_S", 25.0)
    monkeypatch.setattr(partial, "TOTAL_S", 28.0)
    assert figure_of(run_virtual(partial.measure, 100, 1), "longest time to an answer, of a budget of 2.5 s").value > 2.5


def test_partial_claim_wrong_patch_falls_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patch, "diff", lambda old, new: [{"op": "add", "path": "/other", "value": 1}])
    finding = run_virtual(partial.measure, 50, 1)
    assert figure_of(finding, "readers whose state is not the turn's after the patch").value == 50


def test_agent_claim_holds_and_broken_layer_falls_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a reserve answers are cut off; a layer that waits for uncancellable steps is late."""
    assert short_of(run_virtual(agent.measure, 1000, 1)) == []
    with monkeypatch.context() as without:
        without.setattr(agent, "ANSWER_S", 0.001)
        assert "answers that were whole" in short_of(run_virtual(agent.measure, 200, 1))

    async def patient(of: Budget, calls: "set[asyncio.Task[object]]") -> None:
        await asyncio.wait(list(calls), timeout=0.05)

    monkeypatch.setattr(Budget, "_wait_for", patient)
    assert run_virtual(agent.measure, 200, 1).verdict is Verdict.FALLS_SHORT


def test_tools_claim_needs_hedges() -> None:
    finding = run_virtual(tools.measure, 3000, 1, hedges=True)
    assert figure_of(finding, "with the layer: p95 of a turn").value < 2.4
    assert figure_of(finding, "more spend").value < 15
    without = run_virtual(tools.measure, 3000, 1, hedges=False)
    assert "with the layer: p95 of a turn" in short_of(without)
    assert figure_of(without, "more spend").value <= 0.5


@pytest.mark.serial
def test_layer_claim_takes_every_figure() -> None:
    """The goals are for an idle machine; here a step must cost at most 25 empty tasks."""
    finding = run(BudgetOverhead(quick=Extent(12)))
    assert len(finding.figures) == 6
    task_us = asyncio.run(least_us_of_a_task())
    assert all(0 < figure.value < 25 * task_us for figure in finding.figures), (task_us, finding.figures)


async def least_us_of_a_task() -> float:
    """Microseconds to create and await an empty task."""
    async def nothing() -> None:
        pass

    least_s, loop = inf, asyncio.get_running_loop()
    for _ in range(40):
        began_s = time.thread_time()
        for _ in range(100):
            await loop.create_task(nothing())
        least_s = min(least_s, time.thread_time() - began_s)
    return least_s * 1e4
