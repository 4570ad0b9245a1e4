"""An agent that ends: a model that may call tools, in as many rounds as fit, and then an answer within the deadline.

    agent = Agent(ChatModel(client, "large"), [weather, orders], plan=ChatModel(client, "small"))      # made once

    async with budget(total=4.0), Answer() as a:
        outcome = await agent.run([{"role": "user", "content": question}], a)

The story of a turn: while steps are left, `plan` is asked what to call; the calls run side by side, each with its own hard
time-out; what they brought goes back to it, in the order of the calls. Then `answer` is asked, with no more calls allowed,
in the time that is reserved for it. A step is taken only if there are fewer than `max_steps`, and the 95th percentile of
these days' steps still fits in front of that reserve. What the model is told of a call that hung is
`{"status": "timeout", "elapsed_ms": 800}`; nothing it or a tool does is raised, and nothing of it is waited for longer.

Where the answer cannot be had in time, what was written of it stands (`how`: cut), or the apology does.
When wrong: `step_s` is a guess until five steps are known. A planning step that hangs may take all that is in front of the
reserve; it does not count as a long one, but after five failures in a row the planning is left alone by its breaker. And a
single model that both plans and answers is read by the user as it plans.
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
_ANSWER = "answer"  # the stage that has a reserve


@dataclass(frozen=True, slots=True)
class AgentResult:
    """What came of a turn. `how`: ok; cut, an answer that has no end; apology. `stopped_by`: what ended the planning:
    answer (nothing more to call), steps, time, failed or none (no tools). `missing`: calls that brought nothing of their
    own, by tool, and why. `messages`: the conversation, this turn included.
    """

    text: str
    outcome: str
    stopped_by: str
    n_steps: int = 0
    n_calls: int = 0
    n_wasted: int = 0  # calls that were begun early and then not made
    missing: Mapping[str, str] = field(default_factory=dict)
    messages: Sequence[Json] = ()


class Agent:
    """See the module. Share it among turns: it learns how long steps take. Raises ValueError for what cannot be."""

    def __init__(self, answer: Model, tools: Sequence[AnyTool] = (), *, plan: Model | None = None, answer_s: float = 1.5,
                 step_s: float = 1.0, max_steps: int = 2, max_calls: int = 8, max_tokens: int = 800,
                 speed: ModelSpeed | None = None, apology: str = APOLOGY) -> None:
        """`answer_s`: reserved for the answer. `step_s`: of a planning step, before it is known. `max_calls`: of a turn.
        `pace`: how fast `answer` is, to fit `max_tokens` into the time that is left.
        """
        for name, seconds in (("answer_s", answer_s), ("step_s", step_s)):
            if not is_seconds(seconds):
                raise argument_error(f"{name}={seconds!r:.80}: seconds, more than 0, as in Agent(model, tools, {name}=1.5)",
                                     seconds)
        for name, n, least in (("max_steps", max_steps, 0), ("max_calls", max_calls, 0), ("max_tokens", max_tokens, 1)):
            if not is_count(n, least):
                raise argument_error(f"{name}={n!r:.80}: a whole number, {least} or more", n)
        if not apology or type(apology) is not str:
            raise ValueError(f"apology={apology!r:.80}: some words, for where there is no answer in time")
        if speed is not None and not isinstance(speed, ModelSpeed):
            raise TypeError(f"speed={speed!r:.80}: how fast the model answers, as in speed=ModelSpeed(\"large\", "
                            f"tokens_per_s=40)")
        _check_tools(tools)
        for model in (answer, *(() if plan is None else (plan,))):
            if not callable(getattr(model, "generate", None)):
                raise TypeError(f"{model!r:.80} is no model: it has no generate(...); for OpenAI's client that is "
                                'ChatModel(client, "large")')
        self.tools = {tool.name: tool for tool in tools}
        if len(self.tools) != len(tools):
            raise ValueError("two tools have the same name; a model could not tell one from the other")
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
        """One turn, inside the budget around it; `a` is told of text, tools and what is missing. Raises RuntimeError
        where there is no budget, and TypeError for what are no messages.
        """
        if not all(isinstance(one, dict) for one in messages):  # text would be one letter after the other
            raise TypeError('messages are those of the chat API, as in agent.run([{"role": "user", "content": question}])')
        if a is not None and not isinstance(a, Answer):
            raise TypeError(f"{a!r:.80} is no answer: write `async with Answer() as a:`, and agent.run(messages, a)")
        turn = _Turn(self, messages, a)
        async with budget(reserve={_ANSWER: self.answer_s}) as b:
            stopped_by = await turn.run_planning(b)
            how = "ok" if turn.has_answered else await turn.run_answer(b)
        return turn.build_result(how, stopped_by)

    def step_s(self, now: float) -> float:
        """How long a planning step takes, 19 times of 20."""
        return recent_p95(self._steps, now) or self._step_s

    def record_step(self, seconds: float, now: float) -> None:
        """A planning step took so long."""
        self._steps.add(seconds, now)


class _Turn:
    def __init__(self, of: Agent, messages: Sequence[Json], a: Answer | None) -> None:
        self._of = of
        self._messages = list(messages)
        self._a = a
        self._pieces: list[str] = []
        self._active_call = 0  # the number of the step that may still be heard
        self._early: dict[ToolCallRequest, StepRun] = {}
        self._n_steps = self._n_calls = self._n_wasted = self._n_model_calls = 0
        self._missing: dict[str, str] = {}
        self.has_answered = False

    def build_result(self, how: str, stopped_by: str) -> AgentResult:
        text = "".join(self._pieces)
        messages = (*self._messages, {"role": "assistant", "content": text})
        return AgentResult(text, how, stopped_by, self._n_steps, self._n_calls, self._n_wasted, self._missing, messages)

    async def run_planning(self, b: Budget) -> str:
        """Rounds of calls, as many as may be; what ended them."""
        of = self._of
        if not of.tools:
            return "none"
        while self._n_steps < of.max_steps:
            if b.remaining() < of.step_s(b.now()):
                return "time"
            if of.planning.skip_reason(b.now()):
                self._mark_missing("plan", "unavailable")
                return "failed"
            running = await self._run_plan_step(b)
            model_answer: ModelReply = running.result() if running.outcome == "ok" else ModelReply()
            if model_answer.calls:
                await self._call_tools(b, model_answer)
            for call, early in self._early.items():
                self._n_wasted += 1
                early.finish("cancelled", StepCancelled(call.name, "the model did not ask for it"))
            self._early.clear()
            if running.outcome != "ok":
                self._mark_missing("plan", running.outcome)
                return "failed"
            if not model_answer.calls:
                self.has_answered = of.plan is of.answer and bool(model_answer.text)
                return "answer"
        return "steps"

    async def _run_plan_step(self, b: Budget) -> StepRun:
        of, is_good = self._of, None
        self._n_steps += 1
        mark = of.planning.start_call()
        try:
            running = await self._call_model(b, of.plan, f"plan {self._n_steps}", of.max_tokens, may_call=True)
            is_good = running.outcome == "ok"
        finally:
            of.planning.record_outcome(mark, b.now(), is_good=is_good)
        if is_good:
            of.record_step(running.spent_s, b.now())
        return running

    async def run_answer(self, b: Budget) -> str:
        """The answer, or as much of it as there is; how it ended."""
        of, n_pieces, began_at, n_tokens = self._of, len(self._pieces), b.now(), self._of.max_tokens
        if of.speed is not None:
            n_tokens = of.speed.max_tokens(b.deadline_at - began_at, n_tokens, began_at)
        running = await self._call_model(b, of.answer, _ANSWER, n_tokens, may_call=False)
        has_text = len(self._pieces) > n_pieces
        if running.outcome == "ok" and has_text:
            return "ok"
        self._mark_missing("answer", running.outcome if running.outcome != "ok" else "empty")
        if has_text:
            return "cut"
        self._write_text(of.apology)
        return "apology"

    async def _call_model(self, b: Budget, model: Model, name: str, n_tokens: int, *, may_call: bool) -> StepRun:
        """One step of a model, over; its text was said."""
        of = self._of
        is_shown = model is of.answer
        self._n_model_calls += 1
        number, began_at, n_pieces = self._n_model_calls, b.now(), len(self._pieces)
        first_s: list[float] = []

        def hear(piece: str | ToolCallRequest) -> None:
            if number != self._active_call:
                return  # a step that goes on although it was cancelled
            if isinstance(piece, ToolCallRequest):
                if may_call:
                    self._begin_early(b, piece)
            elif is_shown and piece:
                first_s.append(b.now() - began_at)
                self._write_text(piece)

        self._active_call = number
        ask = partial(model.generate, tuple(self._messages), of.functions, hear, may_call=may_call, max_tokens=n_tokens)
        running = await _wait_done(b.start_step(Step(ask, ()), name))
        self._active_call = 0
        if running.outcome == "ok":
            model_answer = running.result()
            if not isinstance(model_answer, ModelReply):
                raise TypeError(f"{type(model).__name__}.generate returned a {type(model_answer).__name__}: return "
                                f"ModelReply(text, "
                                f"calls)")
            if is_shown and model_answer.text and len(self._pieces) == n_pieces:
                self._write_text(model_answer.text)
            if not may_call and of.speed is not None and first_s and model_answer.n_tokens:
                of.speed.record_answer(first_s[0], running.spent_s, model_answer.n_tokens, b.now())
        return running

    def _begin_early(self, b: Budget, call: ToolCallRequest) -> None:
        tool = self._of.tools.get(call.name)
        if tool is not None and tool.is_speculative and call not in self._early:
            started = self._start_call(b, call)
            if isinstance(started, StepRun):
                self._early[call] = started

    async def _call_tools(self, b: Budget, model_answer: ModelReply) -> None:
        """Run the calls side by side and add what they brought to the conversation, in their order."""
        started = [self._early.pop(call) if call in self._early else self._start_call(b, call)
                   for call in model_answer.calls]
        functions = [{"id": replace_surrogates(call.id), "type": "function",
                      "function": {"name": replace_surrogates(call.name),
                                                                             "arguments": replace_surrogates(call.arguments)}}
                     for call in model_answer.calls]
        self._messages.append({"role": "assistant", "content": replace_surrogates(model_answer.text or "") or None,
                               "tool_calls": functions})
        for call, running in zip(model_answer.calls, started, strict=True):
            result = running
            if isinstance(running, StepRun):
                result = self._of.tools[call.name].describe_result(call.arguments, await _wait_done(running))
            assert isinstance(result, dict)
            if result["status"] != "ok":
                self._mark_missing(replace_surrogates(call.name), result["status"])
            if "error" in result:
                result["error"] = replace_surrogates(result["error"])
            self._messages.append({"role": "tool", "tool_call_id": replace_surrogates(call.id),
                                   "content": msgspec.json.encode(result).decode()})

    def _start_call(self, b: Budget, call: ToolCallRequest) -> StepRun | Json:
        """A call that runs, or what the model is told instead."""
        tool = self._of.tools.get(call.name)
        if tool is None:
            return {"status": "error", "error": f"there is no such tool; there are {', '.join(self._of.tools)}"}
        if self._n_calls >= self._of.max_calls:
            return {"status": "cancelled", "error": "no more calls fit into this turn: answer with what there is"}
        try:
            step = tool.build_step(call.arguments)
        except ToolError as error:
            return {"status": "error", "error": str(error)}
        self._n_calls += 1
        # the reserve is not a tool's
        running = b.start_step(step, tool.name if tool.name != _ANSWER else f"{_ANSWER} (tool)")
        if self._a is not None:
            self._a.report_progress(tool.name, "begun")
            if not running.is_done:
                running.done_future().add_done_callback(lambda _: self._report_tool(tool.name, running))
        return running

    def _report_tool(self, name: str, running: StepRun) -> None:
        if self._a is not None and self._a.is_open:
            self._a.report_progress(name, running.outcome)

    def _write_text(self, text: str) -> None:
        text = replace_surrogates(text)
        self._pieces.append(text)
        if self._a is not None:
            self._a.write(text)

    def _mark_missing(self, part: str, why: str) -> None:
        self._missing[part] = why
        if self._a is not None:
            self._a.mark_degraded(part, why)


def _check_tools(tools: Sequence[AnyTool]) -> None:
    if not isinstance(tools, Sequence):
        raise TypeError(f"tools={tools!r:.80}: a list of them, as in Agent(model, [weather, orders])")
    for one in tools:
        if not isinstance(one, AgentTool):
            raise TypeError(f"{one!r:.80} is no tool: write @tool(timeout=0.8) above the function")


async def _wait_done(running: StepRun) -> StepRun:
    if not running.is_done:
        await running.done_future()
    return running
