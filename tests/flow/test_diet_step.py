"""Repeated paragraphs and white space are left out of what an upstream gets, where the settings say so."""

from time import thread_time

import msgspec
import pytest

from stayfast.compose.context import make_diet_steps
from stayfast.core.events import RequestDone
from stayfast.policy.context.diet import DietConfig
from stayfast.testing import ScriptedUpstream, SendText, SimLoop, run
from stayfast.upstreams.base import AnswerStream, Call
from tests.flow.rig import Rig, chat, read

RULE = "Never promise a date that the warehouse has not confirmed in writing to the customer before noon."
PRETTY = '{\n  "a": 1\n}'


class SentBodies(ScriptedUpstream):
    """Remembers the bodies that it is sent."""

    bodies: tuple[bytes, ...] = ()

    async def open(self, call: Call) -> AnswerStream:
        self.bodies = (*self.bodies, call.request.body)
        return await super().open(call)


@pytest.mark.parametrize(("config", "n_rules", "result"), [
    (DietConfig(), 2, PRETTY), (DietConfig(drop_repeats=True), 1, PRETTY), (DietConfig(minify_json=True), 2, '{"a":1}'),
    (DietConfig(drop_repeats=True, minify_json=True), 1, '{"a":1}')])
def test_diet_sends_what_the_settings_leave(config: DietConfig, n_rules: int, result: str) -> None:
    async def main(loop: SimLoop) -> None:
        upstream = SentBodies("up", [[SendText("fine")]] * 3, loop)
        rig = Rig(loop, upstreams=[upstream])
        rig.change_policy(context=make_diet_steps(config))
        call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        for n in range(3):
            await read(await rig.serve(chat(messages=[
                {"role": "system", "content": f"{RULE}\n\nBe kind.\n\n{RULE}"}, {"role": "user", "content": f"question {n}"},
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "c", "content": PRETTY}])))
        assert [body.count(RULE.encode()) for body in upstream.bodies] == [n_rules] * 3
        assert [msgspec.json.decode(body)["messages"][3]["content"] for body in upstream.bodies] == [result] * 3
        notes = [note for done in rig.sink.facts_of(RequestDone) for note in done.notes if "left out" in note]
        assert len(notes) == (3 if config != DietConfig() else 0)
        assert not any("promise" in note for note in notes)

    run(main)


def test_diet_other_endpoints_are_unchanged() -> None:
    assert make_diet_steps(DietConfig()) == ()


def test_diet_of_thousands_of_instructions_takes_milliseconds() -> None:
    """Each is read once: 3,000 of them took 5 s, in which the loop served nobody else."""
    async def main(loop: SimLoop) -> None:
        upstream = SentBodies("up", [[SendText("fine")]], loop)
        rig = Rig(loop, upstreams=[upstream])
        rig.change_policy(context=make_diet_steps(DietConfig(drop_repeats=True)))
        rules = [{"role": "system", "content": f"rule {n}"} for n in range(3000)]
        last = [{"role": "system", "content": RULE}, {"role": "developer", "content": f"{RULE}\n\nBe kind."}]
        began_at = thread_time()
        await read(await rig.serve(chat(messages=[*rules, *last, {"role": "user", "content": "hello"}])))
        assert thread_time() - began_at < 2.0
        assert upstream.bodies[0].count(RULE.encode()) == 1

    run(main)
