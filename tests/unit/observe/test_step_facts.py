"""What metrics, the log, traces and `explain` make of the steps of a turn that is served as a model."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from stayfast.cli.explain import draw_waterfall
from stayfast.core.events import RequestDone, Trace, TurnFailed
from stayfast.core.steps import StepDone
from stayfast.observe.fact_batch import handle_facts
from stayfast.observe.log import LineWriter, LogConfig, LogSink
from stayfast.observe.metrics import definitions as known
from stayfast.observe.recent_requests import RecentConfig, RecentRequests
from stayfast.observe.waterfall import build_waterfall
from stayfast.pipeline.exchange import steps_timing
from stayfast.policy.histogram import LogHistogram
from tests.unit.observe.fact_rig import FrozenClock, attempt, counted, counting, done
from tests.unit.observe.span_rig import attributes, exported

STEPS = (StepDone("agent", 1.1, 1.4, 0.4, "ok", cost_usd=0.002), StepDone("kb", 1.1, 1.2, 0.3, "ok", parent=0),
         StepDone("web", 1.1, 1.4, 0.3, "timeout", "not done within the 0.3 s that the turn had for it", parent=0),
         StepDone("crm", 1.4, 1.45, 0.05, "timeout", "not done within its cap of 0.05 s", is_capped=True),
         StepDone("notes", 1.45, 1.5, 0.05, "failed", "KeyError"))


def turn(**changes: Any) -> RequestDone:
    """A request that a turn answered."""
    return done(attempts=(attempt(upstream="desk", kind="turn", steps=STEPS, cost_usd=0.002),), upstream="desk", **changes)


def test_steps_are_counted_by_name_and_end() -> None:
    """And their times, by name."""
    metrics = counting(*turn().attempts)
    assert counted(metrics, known.TURN_STEPS) == {
        ("desk", "agent", "ok"): 1, ("desk", "kb", "ok"): 1, ("desk", "web", "timeout"): 1, ("desk", "crm", "timeout"): 1,
        ("desk", "notes", "failed"): 1}
    assert counted(metrics, known.STEP_SECONDS)["desk", "kb"] == 1


def test_step_names_beyond_limit_are_other() -> None:
    """A step that is named after what was asked cannot fill the memory."""
    metrics = counting(*[attempt(upstream="desk", steps=(StepDone(f"kb {n}", 1.0, 1.1, 1.0, "ok"),)) for n in range(99)])
    series = counted(metrics, known.TURN_STEPS)
    assert len(series) == known.MAX_STEP_NAMES + 1
    assert series["desk", "other", "ok"] == 99 - known.MAX_STEP_NAMES


def test_steps_are_stored_with_their_request() -> None:
    """For `explain`, as they were."""
    recent = RecentRequests(RecentConfig())
    handle_facts(recent, [turn()])
    assert next(recent.find_by_id("r")).attempts[0].steps == STEPS


def test_spans_of_steps() -> None:
    """Below the call, or the step that they ran in; what failed says so."""
    spans = exported(turn(trace=Trace("a" * 32, "b" * 16), wall_at=1_700_000_000.0))
    call, agent, kb, web, crm, notes = spans[-6:]
    assert [span.name for span in (agent, kb, web, crm, notes)] == [step.name for step in STEPS]
    assert {agent.parent_span_id, crm.parent_span_id, notes.parent_span_id} == {call.span_id}
    assert {kb.parent_span_id, web.parent_span_id} == {agent.span_id}
    assert attributes(agent) == {"stayfast.step.result": "ok", "stayfast.allowance_ms": pytest.approx(400),
                                 "stayfast.cost_usd": 0.002}
    assert attributes(web) == {"stayfast.step.result": "timeout", "stayfast.allowance_ms": pytest.approx(300),
                               "stayfast.over": True, "error.type": "timeout"}
    assert "stayfast.over" not in attributes(crm)
    assert notes.status.message == "KeyError"


def test_a_turn_is_an_agent_and_its_steps_are_tools() -> None:
    """By OpenTelemetry's GenAI names, where a step says that it is one of theirs."""
    steps = (StepDone("find_order", 1.1, 1.2, 0.3, "ok", kind="tool"), StepDone("kb", 1.2, 1.3, 0.3, "ok", kind="retrieval"),
             StepDone("sum up", 1.3, 1.4, 0.3, "ok"))
    answered = attempt(upstream="desk", kind="turn", steps=steps)
    spans = exported(done(attempts=(answered,), trace=Trace("a" * 32, "b" * 16), wall_at=1_700_000_000.0))
    call, tool, kb, other = spans[-4:]
    assert [(span.kind, span.name) for span in (call, tool, kb, other)] == [
        (1, "invoke_agent desk"), (1, "execute_tool find_order"), (1, "retrieval kb"), (1, "sum up")]
    assert (attributes(call)["gen_ai.operation.name"], attributes(call)["gen_ai.agent.name"]) == ("invoke_agent", "desk")
    said = attributes(tool)
    assert (said["gen_ai.operation.name"], said["gen_ai.tool.name"]) == ("execute_tool", "find_order")
    assert attributes(kb)["gen_ai.operation.name"] == "retrieval"
    assert "gen_ai.operation.name" not in attributes(other)


def test_waterfall_draws_steps_of_turn() -> None:
    """Each step below its call, deeper where it ran in another; which broke the budget, what was cut, what it cost."""
    drawn = draw_waterfall(build_waterfall(turn(), LogHistogram()), 100)
    rows = [line.split()[0] for line in drawn.splitlines() if line.startswith("    ") and "of" in line]
    assert rows == ["agent", "kb", "web", "crm", "notes"]
    assert "\n      kb " in drawn
    assert "300 ms of 400 ms, 0.002000 USD" in drawn
    assert "300 ms of 300 ms, timeout  broke its budget\n" in drawn
    assert "Step web used its whole allowance: 300 ms of 300 ms." in drawn
    assert ("Steps without a result: web (timeout, not done within the 0.3 s that the turn had for it), crm (timeout, not "
            "done within its cap of 0.05 s), notes (failed, KeyError).") in drawn


def test_server_timing_of_steps() -> None:
    """Names become tokens; of many steps the first are told."""
    odd = StepDone("ask the CRM;", 1.0, 1.25, 0.5, "ok")
    assert steps_timing((odd,)) == ', turn.ask_the_CRM_;dur=250.00;desc="ok, limit 500 ms"'
    assert steps_timing([STEPS[0]] * 99).count("turn.agent") == 32


def test_turn_failed_writes_log_line(tmp_path: Path) -> None:
    """An error, with the places and without the words."""
    path = tmp_path / "log"
    with path.open("wb") as file:
        config = LogConfig(fd=file.fileno())
        writer = LineWriter(config)
        writer.start()
        LogSink(config, writer, FrozenClock(100.0, 100.0)).emit(TurnFailed("desk", "r", "KeyError", "desk.py:7 answer"))
        writer.close()
    assert msgspec.json.decode(path.read_bytes()) == {
        "ts": 100.0, "event": "turn_failed", "level": "error", "upstream": "desk", "request_id": "r", "error": "KeyError",
        "detail": "desk.py:7 answer"}
