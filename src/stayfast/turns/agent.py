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
from stayfast.turns.amounts import is_count, is_seconds, wrong
from stayfast.turns.answer import Answer, whole
from stayfast.turns.budget import Budget, budget
from stayfast.turns.model import Json, Model, Said
from stayfast.turns.pace import Pace, slow_s
from stayfast.turns.step import Breaker, Step, StepCancelled
from stayfast.turns.step_run import StepRun
from stayfast.turns.tools import Call, Tool, ToolError

AnyTool = Tool[..., Any]
APOLOGY = "I could not finish this in time."
_ANSWER = "answer"  # the stage that has a reserve


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a turn. `how`: ok; cut, an answer that has no end; apology. `stopped_by`: what ended the planning:
    answer (nothing more to call), steps, time, failed or none (no tools). `missing`: calls that brought nothing of their
    own, by tool, and why. `messages`: the conversation, this turn included.
    """

    text: str
    how: str
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
                 pace: Pace | None = None, apology: str = APOLOGY) -> None:
        """`answer_s`: reserved for the answer. `step_s`: of a planning step, before it is known. `max_calls`: of a turn.
        `pace`: how fast `answer` is, to fit `max_tokens` into the time that is left.
        """
        for name, seconds in (("answer_s", answer_s), ("step_s", step_s)):
            if not is_seconds(seconds):
                raise wrong(f"{name}={seconds!r:.80}: seconds, more than 0, as in Agent(model, tools, {name}=1.5)", seconds)
        for name, n, least in (("max_steps", max_steps, 0), ("max_calls", max_calls, 0), ("max_tokens", max_tokens, 1)):
            if not is_count(n, least):
                raise wrong(f"{name}={n!r:.80}: a whole number, {least} or more", n)
        if not apology or type(apology) is not str:
            raise ValueError(f"apology={apology!r:.80}: some words, for where there is no answer in time")
        if pace is not None and not isinstance(pace, Pace):
            raise TypeError(f"pace={pace!r:.80}: how fast the model answers, as in pace=Pace(\"large\", tokens_per_s=40)")
        _check_tools(tools)
        for model in (answer, *(() if plan is None else (plan,))):
            if not callable(getattr(model, "ask", None)):
                raise TypeError(f"{model!r:.80} is no model: it has no ask(...); for OpenAI's client that is "
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
        self.pace = pace
        self.apology = apology
        self.planning = Breaker()  # of the planning steps
        self._step_s = step_s
        self._steps = Window()

    async def run(self, messages: Sequence[Json], a: Answer | None = None) -> Outcome:
        """One turn, inside the budget around it; `a` is told of text, tools and what is missing. Raises RuntimeError
        where there is no budget, and TypeError for what are no messages.
        """
        if not all(isinstance(one, dict) for one in messages):  # text would be one letter after the other
            raise TypeError('messages are those of the chat API, as in agent.run([{"role": "user", "content": question}])')
        if a is not None and not isinstance(a, Answer):
            raise TypeError(f"{a!r:.80} is no answer: write `async with Answer() as a:`, and agent.run(messages, a)")
        turn = _Turn(self, messages, a)
        async with budget(reserve={_ANSWER: self.answer_s}) as b:
            stopped_by = await turn.plan(b)
            how = "ok" if turn.has_answered else await turn.answer(b)
        return turn.outcome(how, stopped_by)

    def step_s(self, now: float) -> float:
        """How long a planning step takes, 19 times of 20."""
        return slow_s(self._steps, now) or self._step_s

    def stepped(self, seconds: float, now: float) -> None:
        """A planning step took so long."""
        self._steps.add(seconds, now)


class _Turn:
    def __init__(self, of: Agent, messages: Sequence[Json], a: Answer | None) -> None:
        self._of = of
        self._messages = list(messages)
        self._a = a
        self._pieces: list[str] = []
        self._listens_to = 0  # the number of the step that may still be heard
        self._early: dict[Call, StepRun] = {}
        self._n_steps = self._n_calls = self._n_wasted = self._n_model_calls = 0
        self._missing: dict[str, str] = {}
        self.has_answered = False

    def outcome(self, how: str, stopped_by: str) -> Outcome:
        text = "".join(self._pieces)
        messages = (*self._messages, {"role": "assistant", "content": text})
        return Outcome(text, how, stopped_by, self._n_steps, self._n_calls, self._n_wasted, self._missing, messages)

    async def plan(self, b: Budget) -> str:
        """Rounds of calls, as many as may be; what ended them."""
        of = self._of
        if not of.tools:
            return "none"
        while self._n_steps < of.max_steps:
            if b.remaining() < of.step_s(b.now()):
                return "time"
            if of.planning.why_not(b.now()):
                self._lacks("plan", "unavailable")
                return "failed"
            running = await self._planned(b)
            model_answer: Said = running.result() if running.how == "ok" else Said()
            if model_answer.calls:
                await self._call(b, model_answer)
            for call, early in self._early.items():
                self._n_wasted += 1
                early.end("cancelled", StepCancelled(call.name, "the model did not ask for it"))
            self._early.clear()
            if running.how != "ok":
                self._lacks("plan", running.how)
                return "failed"
            if not model_answer.calls:
                self.has_answered = of.plan is of.answer and bool(model_answer.text)
                return "answer"
        return "steps"

    async def _planned(self, b: Budget) -> StepRun:
        of, is_good = self._of, None
        self._n_steps += 1
        mark = of.planning.began()
        try:
            running = await self._call_model(b, of.plan, f"plan {self._n_steps}", of.max_tokens, may_call=True)
            is_good = running.how == "ok"
        finally:
            of.planning.ended(mark, b.now(), is_good=is_good)
        if is_good:
            of.stepped(running.spent_s, b.now())
        return running

    async def answer(self, b: Budget) -> str:
        """The answer, or as much of it as there is; how it ended."""
        of, n_pieces, began_at, n_tokens = self._of, len(self._pieces), b.now(), self._of.max_tokens
        if of.pace is not None:
            n_tokens = of.pace.max_tokens(b.deadline_at - began_at, n_tokens, began_at)
        running = await self._call_model(b, of.answer, _ANSWER, n_tokens, may_call=False)
        has_text = len(self._pieces) > n_pieces
        if running.how == "ok" and has_text:
            return "ok"
        self._lacks("answer", running.how if running.how != "ok" else "empty")
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

        def hear(piece: str | Call) -> None:
            if number != self._listens_to:
                return  # a step that goes on although it was cancelled
            if isinstance(piece, Call):
                if may_call:
                    self._begin_early(b, piece)
            elif is_shown and piece:
                first_s.append(b.now() - began_at)
                self._write_text(piece)

        self._listens_to = number
        ask = partial(model.ask, tuple(self._messages), of.functions, hear, may_call=may_call, max_tokens=n_tokens)
        running = await _over(b.begun(Step(ask, ()), name))
        self._listens_to = 0
        if running.how == "ok":
            model_answer = running.result()
            if not isinstance(model_answer, Said):
                raise TypeError(f"{type(model).__name__}.ask returned a {type(model_answer).__name__}: return Said(text, "
                                f"calls)")
            if is_shown and model_answer.text and len(self._pieces) == n_pieces:
                self._write_text(model_answer.text)
            if not may_call and of.pace is not None and first_s and model_answer.n_tokens:
                of.pace.answered(first_s[0], running.spent_s, model_answer.n_tokens, b.now())
        return running

    def _begin_early(self, b: Budget, call: Call) -> None:
        tool = self._of.tools.get(call.name)
        if tool is not None and tool.is_speculative and call not in self._early:
            started = self._start_call(b, call)
            if isinstance(started, StepRun):
                self._early[call] = started

    async def _call(self, b: Budget, model_answer: Said) -> None:
        """Run the calls side by side and add what they brought to the conversation, in their order."""
        started = [self._early.pop(call) if call in self._early else self._start_call(b, call)
                   for call in model_answer.calls]
        functions = [{"id": whole(call.id), "type": "function", "function": {"name": whole(call.name),
                                                                             "arguments": whole(call.arguments)}}
                     for call in model_answer.calls]
        self._messages.append({"role": "assistant", "content": whole(model_answer.text or "") or None,
                               "tool_calls": functions})
        for call, running in zip(model_answer.calls, started, strict=True):
            result = running
            if isinstance(running, StepRun):
                result = self._of.tools[call.name].result(call.arguments, await _over(running))
            assert isinstance(result, dict)
            if result["status"] != "ok":
                self._lacks(whole(call.name), result["status"])
            if "error" in result:
                result["error"] = whole(result["error"])
            self._messages.append({"role": "tool", "tool_call_id": whole(call.id),
                                   "content": msgspec.json.encode(result).decode()})

    def _start_call(self, b: Budget, call: Call) -> StepRun | Json:
        """A call that runs, or what the model is told instead."""
        tool = self._of.tools.get(call.name)
        if tool is None:
            return {"status": "error", "error": f"there is no such tool; there are {', '.join(self._of.tools)}"}
        if self._n_calls >= self._of.max_calls:
            return {"status": "cancelled", "error": "no more calls fit into this turn: answer with what there is"}
        try:
            step = tool.step(call.arguments)
        except ToolError as error:
            return {"status": "error", "error": str(error)}
        self._n_calls += 1
        running = b.begun(step, tool.name if tool.name != _ANSWER else f"{_ANSWER} (tool)")  # the reserve is not a tool's
        if self._a is not None:
            self._a.progress(tool.name, "begun")
            if not running.is_over:
                running.over().add_done_callback(lambda _: self._progress(tool.name, running))
        return running

    def _progress(self, name: str, running: StepRun) -> None:
        if self._a is not None and self._a.is_open:
            self._a.progress(name, running.how)

    def _write_text(self, text: str) -> None:
        text = whole(text)
        self._pieces.append(text)
        if self._a is not None:
            self._a.delta(text)

    def _lacks(self, part: str, why: str) -> None:
        self._missing[part] = why
        if self._a is not None:
            self._a.degraded(part, why)


def _check_tools(tools: Sequence[AnyTool]) -> None:
    if not isinstance(tools, Sequence):
        raise TypeError(f"tools={tools!r:.80}: a list of them, as in Agent(model, [weather, orders])")
    for one in tools:
        if not isinstance(one, Tool):
            raise TypeError(f"{one!r:.80} is no tool: write @tool(timeout=0.8) above the function")


async def _over(running: StepRun) -> StepRun:
    if not running.is_over:
        await running.over()
    return running
