"""Versions of system prompts: which requests belong to which, what moves, what changed."""

from collections.abc import Sequence
from random import Random
from typing import Any

import msgspec
import pytest

from stayfast.core.events import RequestDone
from stayfast.core.prompt_versions import PromptVersionRow
from stayfast.core.stage_times import StageTimes
from stayfast.core.types import Api, Request, Usage
from stayfast.observe.snapshot.prompt_versions import merge_versions
from stayfast.pipeline.prompt_versions import MAX_TEXT_BYTES, SAMPLE_EVERY_S, PromptVersions
from stayfast.testing import SendText, SimLoop, run
from stayfast.wire.request_body import decode
from tests.flow.rig import Rig, chat, read

RULES = "Answer in the language of the customer and name the order by its number. " * 60
SECRET = "Xylophone"


def ask(system: str, *, n: int = 0, tools: Sequence[str] = (), calls: Sequence[str] = ()) -> Request:
    messages: list[dict[str, Any]] = [{"role": "system", "content": system}, {"role": "user", "content": f"question {n}"}]
    for name in calls:
        call = {"id": "1", "type": "function", "function": {"name": name, "arguments": "{}"}}
        messages += [{"role": "assistant", "content": None, "tool_calls": [call]},
                     {"role": "tool", "tool_call_id": "1", "content": "done"}]
    made = [{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in tools]
    return decode(Api.CHAT, msgspec.json.encode({"messages": messages, "model": "m", **({"tools": made} if made else {})}))


class Worker:
    """One worker's registry, on a clock that is set."""

    def __init__(self) -> None:
        self.at = 1000.0
        self.versions = PromptVersions(self)

    def now(self) -> float:
        return self.at

    def wall(self) -> float:
        return self.at + 1e9

    def cpu(self) -> float:
        return 0.0

    def end(self, request: Request, *, after_s: float = SAMPLE_EVERY_S, cached: int = 0, finish: str = "stop",
            route: str = "chat") -> None:
        self.at += after_s
        n_input = len(request.body) // 4
        done = RequestDone("r", Api.CHAT, route, "m", True, 200, self.at - 1, self.at, self.wall(), StageTimes(0.0, (), 0.0),
                           usage=Usage(n_input, 5, cached), ttft_s=0.4, finish_reason=finish)
        seen = self.versions.by_route.get(route)
        if seen is not None and self.at < seen.due_at:
            seen.count(request.body, done)
        else:
            self.versions.note_sample(request, done, ())

    def rows(self) -> tuple[PromptVersionRow, ...]:
        return merge_versions([self.versions.collect()], self.wall())


def test_versions_every_request_between_two_samples_is_counted() -> None:
    worker = Worker()
    for n in range(100):
        worker.end(ask(RULES, n=n), after_s=0.01, cached=900)
    (row,) = worker.rows()
    assert (row.n, row.route, row.system_id != "", row.tools_id) == (100, "chat", True, "")
    assert 1 <= row.n_samples <= 4
    assert row.n_tokens == pytest.approx(len(RULES) / 4, rel=0.05)
    assert row.cached_ratio == pytest.approx(900 / row.n_tokens, rel=0.01)
    assert row.share_of_prompt is not None
    assert 0.9 < row.share_of_prompt <= 1
    assert row.ttft_p50_s == pytest.approx(0.4, rel=0.02)
    assert (row.moving, row.change, row.n_a_day) == (None, None, None)


def test_versions_requests_without_instructions_have_none() -> None:
    worker = Worker()
    worker.end(decode(Api.CHAT, b'{"model":"m","messages":[{"role":"user","content":"x"}]}'))
    assert worker.rows() == ()


def test_versions_new_version_names_the_first_changed_byte_and_the_version_before() -> None:
    worker = Worker()
    for n in range(10):
        worker.end(ask(RULES, n=n))
    for n in range(10):
        worker.end(ask(f"{RULES[:700]}Be kind. {RULES[700:]}", n=n))
    before, after = worker.rows()
    assert (before.n, after.n, before.change) == (10, 10, None)
    assert after.change is not None
    assert (after.change.before, after.change.place.path, after.change.place.at) == (before.id, "messages[0].content", 701)
    assert (after.change.n_removed, after.change.n_added) == (0, 9)
    assert after.change.place.ratio == pytest.approx(700 / len(RULES), rel=0.02)


def test_versions_another_application_is_no_change() -> None:
    worker = Worker()
    worker.end(ask(RULES))
    worker.end(ask("You sort tickets by subject. " * 50))
    assert [row.change for row in worker.rows()] == [None, None]


@pytest.mark.parametrize("made", ["2026-11-24 02:{:02}:{:02}", "id {:02}{:02}abcdef00abcdef00"])
def test_versions_masked_item_that_moves_is_one_version_with_its_byte(made: str) -> None:
    worker = Worker()
    for n in range(60):
        worker.end(ask(f"{RULES[:300]}Now {made.format(n % 60, n * 7 % 60)}. {RULES}", n=n))
    (row,) = worker.rows()
    assert (row.n, row.n_samples, row.n_moved) == (60, 60, 59)
    assert row.moving is not None
    assert (row.moving.path, row.moving.at) == ("messages[0].content", 1 + 300 + 4 + (3 if made[0] == "i" else 0))
    assert row.moving.n_tokens_after == pytest.approx(row.n_tokens * (1 - row.moving.ratio), rel=0.01)


def test_versions_words_that_never_recur_become_one_version() -> None:
    worker = Worker()
    for n in range(200):
        worker.end(ask(f"{RULES[:300]}The customer is {Random(n).choice('ABCDEFG') * 3}-{n}. {RULES}", n=n))
    (row,) = worker.rows()
    assert row.moving is not None
    assert row.moving.at in range(1 + 300 + 16, 1 + 300 + 22)
    assert row.n > 150


def test_versions_twenty_similar_applications_stay_apart() -> None:
    worker = Worker()
    rng = Random(1)
    for n in range(600):
        worker.end(ask(f"You are assistant {rng.randrange(20)}. {RULES}", n=n))
    rows = worker.rows()
    assert len(rows) == 20
    assert [row.moving for row in rows] == [None] * 20
    assert sum(row.n for row in rows) == 600


def test_versions_same_instructions_with_other_tools_are_not_mixed_up() -> None:
    worker = Worker()
    for n in range(40):
        worker.end(ask(RULES, n=n, tools=("f", "g") if n % 2 else ("f",)))
    for n in range(100):
        worker.end(ask(RULES, n=n, tools=("f", "g")), after_s=0.001)
    rows = {len(row.tools): row for row in worker.rows()}
    assert rows[1].system_id == rows[2].system_id
    assert rows[1].n == 20  # those that no sample could tell apart belong to none


def test_versions_called_tools_are_counted_by_name() -> None:
    worker = Worker()
    for n in range(20):
        worker.end(ask(RULES, n=n, tools=("f", "g"), calls=("f",)), finish="tool_calls")
    (row,) = worker.rows()
    assert [(tool.name, tool.n_calls > 0) for tool in row.tools] == [("f", True), ("g", False)]
    assert row.n_tool_ends == 20
    assert row.tools_id


def test_versions_repeats_and_examples_have_positions_and_tokens() -> None:
    rule = "Never promise a date that the warehouse has not confirmed in writing to the customer before noon."
    worker = Worker()
    worker.end(ask(f"{rule}\n\nÄ {RULES}\n\n{rule}\n\nExample 1:\nInput: a\nOutput: b\n\nExample 2:\nInput: c\nOutput: d"))
    (row,) = worker.rows()
    (repeat,) = row.repeats
    assert (repeat.at, repeat.first_at, repeat.overlap) == (len(f"{rule}\n\nÄ {RULES}\n\n".encode()), 0, 1.0)
    assert repeat.n_tokens == pytest.approx(len(rule) / 4, rel=0.1)
    assert row.n_examples == 2


def test_versions_of_two_workers_are_added() -> None:
    workers = [Worker(), Worker()]
    for worker in workers:
        for n in range(400):
            worker.end(ask(RULES, n=n, tools=("f",), calls=("f",)))
    (row,) = merge_versions([worker.versions.collect() for worker in workers], workers[0].wall())
    assert row.n == 800
    assert row.tools[0].n_calls == 800


def test_versions_texts_are_bounded_and_leave_by_name_only() -> None:
    worker = Worker()
    for n in range(12):
        worker.end(ask(f"{n} {SECRET} " + chr(97 + n) * 450_000))
    rows = worker.rows()
    assert SECRET.encode() not in msgspec.json.encode(rows)
    heads = [worker.versions.find_head(row.id) for row in rows]
    assert sum(len(head.data) for head in heads if head is not None) <= MAX_TEXT_BYTES
    assert heads[-1] is not None
    assert worker.versions.find_head("unknown") is None


def test_gateway_ended_request_is_counted_a_failed_one_is_not() -> None:
    async def main(loop: SimLoop) -> tuple[PromptVersionRow, ...]:
        rig = Rig(loop, [[SendText("a")]])
        versions = PromptVersions(loop)
        rig.track(versions)
        await read(await rig.serve(chat(messages=[{"role": "system", "content": RULES}, {"role": "user", "content": "x"}])))
        return merge_versions([versions.collect()], loop.wall())

    (row,) = run(main)
    assert (row.route, row.n, row.usd_a_day) == ("m", 1, None)
