"""An agent that ends within its deadline: rounds of tool calls while they fit, then an answer.

    agent = Agent(ChatModel(client, "large"), [weather, orders], plan=ChatModel(client, "small"))      # created once

    async with budget(total=4.0), Answer() as a:
        result = await agent.run([{"role": "user", "content": question}], a)

A turn: `plan` requests tool calls; the calls run concurrently, each with its own timeout; their results are added to the
conversation in the order of the calls; repeat. Then `answer` writes the answer, without tools, in the time reserved for it.
A planning step starts only below `max_steps`, and if the 95th percentile of recent planning steps fits before the reserve.
The result of a call that hangs is `{"status": "timeout", "elapsed_ms": 800}`. Failures of models and tools are not raised.

If the answer is not complete in time, the text written so far stays (outcome `cut`); if there is none, the apology.
When wrong: `step_s` is a guess until five steps are known. A planning step that hangs may use all the time before the
reserve; it is no sample of the percentile, but after five failures in a row a breaker skips the planning. If one model plans
and answers, the user sees the text of its planning.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec

from stayfast.policy.histogram import Window
from stayfast.turns.answer import Answer, replace_surrogates
from stayfast.turns.budget import Budget, budget
from stayfast.turns.model import Json, Model, ModelReply
from stayfast.turns.model_speed import ModelSpeed, recent_p95
from stayfast.turns.step import BreakerPolicy, Step, StepCancelled
from stayfast.turns.step_run import StepRun
from stayfast.turns.tools import AgentTool, ToolCallRequest, ToolError
from stayfast.turns.validation import argument_error, is_count, is_seconds

AnyTool = AgentTool[..., Any]
APOLOGY = "I could not finish this in time."
_ANSWER = "answer"  # the name of the stage with the reserve


@dataclass(frozen=True, slots=True)
class AgentResult:
    """`outcome`: ok, cut (an incomplete answer) or apology. `stopped_by`, why the planning ended: answer (no more calls),
    steps, time, failed or none (no tools). `missing`: the reason for each tool without a result. `messages`: the
    conversation, this turn included.
    """

    text: str
    outcome: str
    stopped_by: str
    n_steps: int = 0
    n_calls: int = 0
    n_wasted: int = 0  # speculative calls that the model did not request in the end
    missing: Mapping[str, str] = field(default_factory=dict)
    messages: Sequence[Json] = ()


class Agent:
    """Share it among turns: it learns the duration of steps. Raises ValueError and TypeError for wrong arguments."""

    def __init__(self, answer: Model, tools: Sequence[AnyTool] = (), *, plan: Model | None = None, answer_s: float = 1.5,
                 step_s: float = 1.0, max_steps: int = 2, max_calls: int = 8, max_tokens: int = 800,
                 speed: ModelSpeed | None = None, apology: str = APOLOGY) -> None:
        """`answer_s`: reserved for the answer. `step_s`: assumed duration of a planning step. `max_calls`: per turn.
        `speed`: of `answer`; with it, the answer's token limit is what fits into the time left, up to `max_tokens`.
        """
        for name, seconds in (("answer_s", answer_s), ("step_s", step_s)):
            if not is_seconds(seconds):
                raise argument_error(f"{name}={seconds!r:.80}: seconds, above 0, as in Agent(model, tools, {name}=1.5)",
                                     seconds)
        for name, n, minimum in (("max_steps", max_steps, 0), ("max_calls", max_calls, 0), ("max_tokens", max_tokens, 1)):
            if not is_count(n, minimum):
                raise argument_error(f"{name}={n!r:.80}: an integer, {minimum} or more", n)
        if not apology or type(apology) is not str:
            raise ValueError(f"apology={apology!r:.80}: a text for turns without an answer in time")
        if speed is not None and not isinstance(speed, ModelSpeed):
            raise TypeError(f"speed={speed!r:.80}: as in speed=ModelSpeed(\"large\", tokens_per_s=40)")
        _check_tools(tools)
        for model in (answer, *(() if plan is None else (plan,))):
            if not callable(getattr(model, "generate", None)):
                raise TypeError(f"{model!r:.80} is not a model: it has no generate(...); for OpenAI's client use "
                                'ChatModel(client, "large")')
        self.tools = {tool.name: tool for tool in tools}
        if len(self.tools) != len(tools):
            raise ValueError("two tools have the same name; a model could not distinguish them")
        self.functions = [tool.as_function() for tool in tools]
        self.answer = answer
        self.plan = answer if plan is None else plan
        self.answer_s = answer_s
        self.max_steps = max_steps
        self.max_calls = max_calls
        self.max_tokens = max_tokens
        self.speed = speed
        self.apology = apology
        self.planning = BreakerPolicy()  # of the planning steps
        self._step_s = step_s
        self._steps = Window()

    async def run(self, messages: Sequence[Json], a: Answer | None = None) -> AgentResult:
        """One turn, inside a budget; text, tool progress and missing parts also go to `a`. Raises RuntimeError without a
        budget, and TypeError for wrong messages.
        """
        if not all(isinstance(message, dict) for message in messages):  # a str would be a sequence of letters
            raise TypeError('messages are those of the chat API, as in agent.run([{"role": "user", "content": question}])')
        if a is not None and not isinstance(a, Answer):
            raise TypeError(f"{a!r:.80} is not an answer: write `async with Answer() as a:`, and agent.run(messages, a)")
        turn = _AgentTurn(self, messages, a)
        async with budget(reserve={_ANSWER: self.answer_s}) as b:
            stopped_by = await turn.run_planning(b)
            outcome = "ok" if turn.has_answered else await turn.run_answer(b)
        return turn.build_result(outcome, stopped_by)

    def step_s(self, now: float) -> float:
        """The 95th percentile of recent planning steps, in seconds."""
        return recent_p95(self._steps, now) or self._step_s

    def record_step(self, seconds: float, now: float) -> None:
        self._steps.add(seconds, now)


class _AgentTurn:
    def __init__(self, agent: Agent, messages: Sequence[Json], a: Answer | None) -> None:
        self._agent = agent
        self._messages = list(messages)
        self._a = a
        self._pieces: list[str] = []
        self._active_call = 0  # the number of the model call whose pieces count
        self._early: dict[ToolCallRequest, StepRun] = {}
        self._n_steps = self._n_calls = self._n_wasted = self._n_model_calls = 0
        self._missing: dict[str, str] = {}
        self.has_answered = False

    def build_result(self, outcome: str, stopped_by: str) -> AgentResult:
        text = "".join(self._pieces)
        messages = (*self._messages, {"role": "assistant", "content": text})
        return AgentResult(text, outcome, stopped_by, self._n_steps, self._n_calls, self._n_wasted, self._missing, messages)

    async def run_planning(self, b: Budget) -> str:
        """Rounds of tool calls. Returns why they ended (`stopped_by`)."""
        agent = self._agent
        if not agent.tools:
            return "none"
        while self._n_steps < agent.max_steps:
            if b.remaining() < agent.step_s(b.now()):
                return "time"
            if agent.planning.skip_reason(b.now()):
                self._mark_missing("plan", "unavailable")
                return "failed"
            run = await self._run_plan_step(b)
            reply: ModelReply = run.result() if run.outcome == "ok" else ModelReply()
            if reply.calls:
                await self._call_tools(b, reply)
            for call, early in self._early.items():
                self._n_wasted += 1
                early.finish("cancelled", StepCancelled(call.name, "the model did not request it"))
            self._early.clear()
            if run.outcome != "ok":
                self._mark_missing("plan", run.outcome)
                return "failed"
            if not reply.calls:
                self.has_answered = agent.plan is agent.answer and bool(reply.text)
                return "answer"
        return "steps"

    async def _run_plan_step(self, b: Budget) -> StepRun:
        agent, is_good = self._agent, None
        self._n_steps += 1
        token = agent.planning.start_call()
        try:
            run = await self._call_model(b, agent.plan, f"plan {self._n_steps}", agent.max_tokens, may_call=True)
            is_good = run.outcome == "ok"
        finally:
            agent.planning.record_outcome(token, b.now(), is_good=is_good)
        if is_good:
            agent.record_step(run.spent_s, b.now())
        return run

    async def run_answer(self, b: Budget) -> str:
        """Write the answer, or as much of it as fits. Returns the outcome."""
        agent, n_pieces, began_at, n_tokens = self._agent, len(self._pieces), b.now(), self._agent.max_tokens
        if agent.speed is not None:
            n_tokens = agent.speed.max_tokens(b.deadline_at - began_at, n_tokens, began_at)
        run = await self._call_model(b, agent.answer, _ANSWER, n_tokens, may_call=False)
        has_text = len(self._pieces) > n_pieces
        if run.outcome == "ok" and has_text:
            return "ok"
        self._mark_missing("answer", run.outcome if run.outcome != "ok" else "empty")
        if has_text:
            return "cut"
        self._write_text(agent.apology)
        return "apology"

    async def _call_model(self, b: Budget, model: Model, name: str, n_tokens: int, *, may_call: bool) -> StepRun:
        """Run one model call to its end; its text is written as it arrives."""
        agent = self._agent
        is_shown = model is agent.answer
        self._n_model_calls += 1
        number, began_at, n_pieces = self._n_model_calls, b.now(), len(self._pieces)
        first_s: list[float] = []

        def on_piece(piece: str | ToolCallRequest) -> None:
            if number != self._active_call:
                return  # a cancelled call that still runs
            if isinstance(piece, ToolCallRequest):
                if may_call:
                    self._start_early(b, piece)
            elif is_shown and piece:
                first_s.append(b.now() - began_at)
                self._write_text(piece)

        self._active_call = number
        generate = partial(model.generate, tuple(self._messages), agent.functions, on_piece, may_call=may_call,
                           max_tokens=n_tokens)
        run = await _wait_done(b.start_step(Step(generate, ()), name))
        self._active_call = 0
        if run.outcome == "ok":
            reply = run.result()
            if not isinstance(reply, ModelReply):
                raise TypeError(f"{type(model).__name__}.generate returned a {type(reply).__name__}: return "
                                "ModelReply(text, calls)")
            if is_shown and reply.text and len(self._pieces) == n_pieces:
                self._write_text(reply.text)
            if not may_call and agent.speed is not None and first_s and reply.n_tokens:
                agent.speed.record_answer(first_s[0], run.spent_s, reply.n_tokens, b.now())
        return run

    def _start_early(self, b: Budget, call: ToolCallRequest) -> None:
        tool = self._agent.tools.get(call.name)
        if tool is not None and tool.is_speculative and call not in self._early:
            started = self._start_call(b, call)
            if isinstance(started, StepRun):
                self._early[call] = started

    async def _call_tools(self, b: Budget, reply: ModelReply) -> None:
        """Run the calls concurrently and add their results to the conversation, in the order of the calls."""
        started = [self._early.pop(call) if call in self._early else self._start_call(b, call) for call in reply.calls]
        self._messages.append({"role": "assistant", "content": replace_surrogates(reply.text or "") or None,
                               "tool_calls": [_to_message_call(call) for call in reply.calls]})
        for call, run in zip(reply.calls, started, strict=True):
            result = run
            if isinstance(run, StepRun):
                result = self._agent.tools[call.name].describe_result(call.arguments, await _wait_done(run))
            assert isinstance(result, dict)
            if result["status"] != "ok":
                self._mark_missing(replace_surrogates(call.name), result["status"])
            if "error" in result:
                result["error"] = replace_surrogates(result["error"])
            self._messages.append({"role": "tool", "tool_call_id": replace_surrogates(call.id),
                                   "content": msgspec.json.encode(result).decode()})

    def _start_call(self, b: Budget, call: ToolCallRequest) -> StepRun | Json:
        """Start a tool call, or return the error for the model."""
        tool = self._agent.tools.get(call.name)
        if tool is None:
            return {"status": "error", "error": f"there is no such tool; there are {', '.join(self._agent.tools)}"}
        if self._n_calls >= self._agent.max_calls:
            return {"status": "cancelled", "error": "no more calls fit into this turn: answer with what there is"}
        try:
            step = tool.build_step(call.arguments)
        except ToolError as error:
            return {"status": "error", "error": str(error)}
        self._n_calls += 1
        run = b.start_step(step, f"{_ANSWER} (tool)" if tool.name == _ANSWER else tool.name)  # keeps the reserve's name free
        if self._a is not None:
            self._a.report_progress(tool.name, "begun")
            if not run.is_done:
                run.done_future().add_done_callback(lambda _: self._report_tool(tool.name, run))
        return run

    def _report_tool(self, name: str, run: StepRun) -> None:
        if self._a is not None and self._a.is_open:
            self._a.report_progress(name, run.outcome)

    def _write_text(self, text: str) -> None:
        text = replace_surrogates(text)
        self._pieces.append(text)
        if self._a is not None:
            self._a.write(text)

    def _mark_missing(self, part: str, reason: str) -> None:
        self._missing[part] = reason
        if self._a is not None:
            self._a.mark_degraded(part, reason)


def _check_tools(tools: Sequence[AnyTool]) -> None:
    if not isinstance(tools, Sequence):
        raise TypeError(f"tools={tools!r:.80}: a list of tools, as in Agent(model, [weather, orders])")
    for tool in tools:
        if not isinstance(tool, AgentTool):
            raise TypeError(f"{tool!r:.80} is not a tool: write @tool(timeout=0.8) above the function")


def _to_message_call(call: ToolCallRequest) -> Json:
    function = {"name": replace_surrogates(call.name), "arguments": replace_surrogates(call.arguments)}
    return {"id": replace_surrogates(call.id), "type": "function", "function": function}


async def _wait_done(run: StepRun) -> StepRun:
    if not run.is_done:
        await run.done_future()
    return run
