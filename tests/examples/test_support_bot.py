"""The support bot: its answers in virtual time, and the commands in a terminal and with a real browser."""

import asyncio
import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from examples.support_bot.__main__ import parse_arguments
from examples.support_bot.desk import ROOT, Unavailable, load_meaning
from examples.support_bot.passages import Passage, load_changes, load_passages
from examples.support_bot.terminal import TerminalOutput
from examples.support_bot.turn import TOTAL_S, Desk, Writer, fuse_rankings, support
from examples.support_bot.web import BotPage
from examples.support_bot.words import Words
from stayfast.testing import SimLoop, VirtualThreads, run
from stayfast.turns import Answer, budget
from stayfast.turns.events import AnswerEvent, CitationEvent, DegradedEvent
from stayfast.turns.model import Json, ModelReply, OnPiece
from tests.browser import shown
from tests.docs.pages import anchors

BOT = (sys.executable, "-m", "examples.support_bot")
HEDGING = Passage("docs/hedging.md#off", "Hedging > Off",
                  "Hedging costs a little. Turn it off with `mode: off`. More is not needed.")
CACHE = Passage("docs/cache.md", "Cache", "A cache keeps answers.")
NEWS = Passage("CHANGELOG.md", "Changelog", "Hedging is on by default.")
QUESTION = "How do I turn hedging off?"


class Speaks:
    """A model that says two words, and notes what it was asked."""

    def __init__(self) -> None:
        self.asked: list[Json] = []

    async def generate(self, messages: Sequence[Json], tools: Sequence[Json], on_piece: OnPiece, *, may_call: bool,
                  max_tokens: int) -> ModelReply:
        """See `Model`."""
        self.asked += messages
        for word in ("Set ", "it."):
            await asyncio.sleep(0.1)
            on_piece(word)
        return ModelReply("Set it.")


class Near:
    """A search by meaning that knows one passage."""

    async def find(self, question: str) -> list[Passage]:
        """It takes 50 ms."""
        await asyncio.sleep(0.05)
        return [HEDGING]

    def close(self) -> None:
        """Nothing to close."""


def desk(slow_s: Mapping[str, float], model: Speaks | None = None, *, reads: bool = True) -> Desk:
    """Two pages and a change."""
    return Desk(Words([HEDGING, CACHE]), Words([NEWS]), Near(), Writer(model or Speaks(), "speaks", reads), {}, slow_s)


def told(slow_s: Mapping[str, float], model: Speaks | None = None, *,
         reads: bool = True, total_s: float = TOTAL_S) -> tuple[list[AnswerEvent], dict[str, float], Answer]:
    """The events of a turn in virtual time, when each kind last came, and the answer."""
    a, came_at, events = Answer(), dict[str, float](), list[AnswerEvent]()

    async def main(loop: SimLoop) -> None:
        async def read() -> None:
            async for event in a.read(late=True):
                events.append(event)
                came_at[event.payload.name] = loop.now()

        async with asyncio.TaskGroup() as running:
            running.create_task(read())
            async with budget(15, threads=VirtualThreads()) as late:
                async with a:
                    await support(QUESTION, a, desk(slow_s, model, reads=reads), late, total_s)
                await a.wait_settled()

    run(main)
    return events, came_at, a


def test_bot_answers_before_the_slow_system() -> None:
    model = Speaks()
    events, came_at, a = told({"changes": 3.0}, model)
    names = [event.payload.name for event in events]
    assert names[0] == "prefix"
    assert names[-1] == "patch"
    assert a.text == ("I am looking through 2 pages of the docs.\n\nTurn it off with `mode: off`. More is not needed."
                      "\n\nspeaks: Set it.")
    (cited,) = [event.payload for event in events if isinstance(event.payload, CitationEvent)]
    assert cited.source == HEDGING.source
    assert a.text[cited.start:cited.end] == "Turn it off with `mode: off`. More is not needed."
    assert came_at["final"] < 0.3
    assert 3.0 <= came_at["patch"] < 3.1
    assert a.state["changes"]["value"] == {"source": "CHANGELOG.md", "text": "Hedging is on by default."}
    assert {name: stage["outcome"] for name, stage in a.state["turn"]["stages"].items()} == {
        "changes": "running", "words": "ok", "meaning": "ok", "answer": "ok"}
    assert "[1] Hedging > Off\nHedging costs a little." in model.asked[0]["content"]
    assert "degraded" not in names


@pytest.mark.parametrize(("says", "shown"), [("Breakers open. Hedging is off.", True), ("Breakers open.", False)])
def test_bot_model_without_passages_is_shown_from_its_first_relevant_sentence(says: str, shown: bool) -> None:
    class FromMemory(Speaks):
        async def generate(self, messages: Sequence[Json], tools: Sequence[Json], on_piece: OnPiece, *, may_call: bool,
                      max_tokens: int) -> ModelReply:
            self.asked += messages
            on_piece(says)
            return ModelReply(says)

    model = FromMemory()
    events, _, a = told({}, model, reads=False)
    assert [message["role"] for message in model.asked] == ["user"]
    assert (f"speaks, from memory: {says}" in a.text) is shown
    assert ("answer" in [event.payload.part for event in events if isinstance(event.payload, DegradedEvent)]) is not shown


@pytest.mark.parametrize(("slow", "without", "says"), [
    (["meaning"], ["meaning"], "`mode: off`"), (["words"], ["words"], "`mode: off`"),
    (["answer"], ["answer"], "`mode: off`"),
    (["words", "meaning", "answer"], ["words", "meaning", "answer"], "search was not done in time")])
def test_bot_hanging_stage_is_cut_and_named(slow: list[str], without: list[str], says: str) -> None:
    events, came_at, a = told(dict.fromkeys([*slow, "changes"], 60.0))
    assert [event.payload.part for event in events if isinstance(event.payload, DegradedEvent)] == without
    assert says in a.text
    assert came_at["final"] <= 2.51
    assert a.state["changes"]["status"] == "timeout"
    assert 8.0 <= came_at["patch"] < 8.1


@pytest.mark.parametrize("total_s", [0.1, 0.5, 5.0])
def test_bot_with_other_budgets(total_s: float) -> None:
    _, came_at, a = told({"answer": 0.3}, total_s=total_s)
    assert came_at["final"] <= total_s + 0.01
    assert a.text.endswith("speaks: Set it.") is (total_s == 5.0)


def test_terminal_slower_than_the_events() -> None:
    async def main(loop: SimLoop) -> str:
        a, seen = Answer(max_events=2), TerminalOutput()
        shown = ""
        async with a:
            reader = a.read(late=True)
            a.write("One. ")
            shown += seen.render(await anext(reader))
            a.cite("docs/one.md", 0, 5)
            shown += seen.render(await anext(reader))
            for word in ("Two. ", "Three. ", "Four."):
                a.write(word)
            a.mark_degraded("meaning", "timeout")
            a.put("changes", {"status": "pending"})
            a.put("changes", {"status": "ok"})
        names = []
        async for event in reader:
            names.append(event.payload.name)
            shown += seen.render(event)
        assert names == ["snapshot", "patch", "patch", "final"]
        return shown

    assert run(main) == ("One. Two. Three. Four.\n\n  source: docs/one.md, characters 0 to 5\n  without meaning: timeout\n"
                         "  final: ok\n")


def test_bot_missing_parts_are_named() -> None:
    async def main(loop: SimLoop) -> Answer:
        a = Answer()
        bare = Desk(Words([HEDGING]), Words([]), without={"meaning": "pip install it", "answer": "no model"}, slow_s={})
        async with budget(15, threads=VirtualThreads()) as late, a:
            await support(QUESTION, a, bare, late)
        return a

    a = run(main)
    assert "`mode: off`" in a.text
    reasons = {event.payload.part: event.payload.reason for event in _events(a) if isinstance(event.payload, DegradedEvent)}
    assert reasons == {"meaning": "pip install it", "answer": "no model"}
    assert a.state["changes"] == {"status": "ok", "value": {"text": "Nothing has changed."}}


def _events(a: Answer) -> list[AnswerEvent]:
    async def main(loop: SimLoop) -> list[AnswerEvent]:
        return [event async for event in a.read(late=True)]

    return run(main)


def test_bot_without_an_embedder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "examples.support_bot.meaning", None)
    with pytest.raises(Unavailable, match=r"is not installed: pip install '\.\[semantic\]'"):
        asyncio.run(load_meaning(Words([HEDGING])))


@pytest.mark.parametrize("typed", [[], ["--slow", "x=1", "Why?"], ["--slow", "words=-1", "Why?"], ["--total", "0", "Why?"]])
def test_bot_wrong_arguments(typed: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_arguments(typed)
    assert "usage: python -m examples.support_bot" in capsys.readouterr().err


def test_passages_of_the_docs() -> None:
    """Each has a heading that its page has; none is very long; code is no quote; links are their text."""
    found = load_passages(ROOT)
    assert len(found) > 300
    for passage in found:
        name, _, anchor = passage.source.partition("#")
        assert not anchor or anchor in anchors(ROOT / name), passage.source
        assert "](" not in passage.quote("deadline")
    (best, *_) = Words(found).find(QUESTION)
    assert best.source == "docs/concepts/hedging.md#when-to-turn-it-off"
    assert "`hedge: {mode: off}`" in best.quote(QUESTION)
    assert Passage("a.md", "A", "    code = 1\n\nProse about code. More.").quote("code") == "Prose about code. More."
    table = Passage("a.md", "A", "| a | b |\n|---|---|\n| `hedge.mode` | off or auto |")
    assert table.quote("hedge") == "`hedge.mode`: off or auto"
    assert len(load_changes(ROOT)) > 10


@pytest.mark.parametrize("question", ["Who won the football match yesterday?", "How do I bake bread?",
                                      "Which bus goes to the airport on Sunday morning?", "xyzzy plugh"])
def test_search_of_an_unrelated_question_finds_nothing(question: str) -> None:
    assert Words(load_passages(ROOT)).find(question) == []


def test_search_of_a_partly_related_question_finds_passages() -> None:
    index = Words(load_passages(ROOT))
    for question in ("hedging", "How do I rotate the keys of clients?", "What if an upstream stalls in its middle?"):
        assert index.find(question)


def test_fuse_rankings() -> None:
    assert fuse_rankings([[CACHE, HEDGING], [HEDGING]]) == [HEDGING, CACHE]
    assert Words([HEDGING]).find("how do I \"'*()") == []


def test_page_events() -> None:
    async def main() -> None:
        site = httpx.ASGITransport(BotPage(desk({"changes": 0.05}), 2.5).app())
        async with httpx.AsyncClient(transport=site, base_url="http://bot") as client:
            for query, field in (({"id": "1"}, "question"), ({"question": "Why?"}, "id"),
                                 ({"id": "1", "question": "Why?", "total_s": "x"}, "total_s"),
                                 ({"id": "1", "question": "Why?", "slow.words": "-1"}, "slow.words")):
                refused = await client.get("/turn", params=query)
                assert (refused.status_code, refused.json()["error"].partition(":")[0]) == (400, field)
            whole = (await client.get("/turn", params={"id": "1", "question": QUESTION})).text
            rest = (await client.get("/turn", params={"id": "1"}, headers={"last-event-id": "3"})).text
            assert whole.startswith("id: 1\nevent: prefix\n")
            assert whole.endswith(f"{rest.rpartition('id: ')[2]}")
            assert rest.startswith("id: 4\n")
            assert (await client.get("/turn", params={"id": "1"}, headers={"last-event-id": "x"})).status_code == 400
            assert "'none'" in (await client.get("/")).headers["content-security-policy"]

    asyncio.run(main())


@pytest.mark.sockets
def test_bot_in_a_terminal() -> None:
    done = subprocess.run([*BOT, *QUESTION.split()], cwd=ROOT, capture_output=True, text=True, check=True, timeout=120)
    said = done.stdout
    assert "`hedge: {mode: off}`" in said
    assert "source: docs/concepts/hedging.md#when-to-turn-it-off" in said
    assert "stayfast-tiny, from memory: " in said or "without answer: " in said
    assert re.search(r"final: ok.*pending: changes\n  patch: (replace|add|remove) /changes", said)
    assert re.search(r"words +\|.*ok\n", said)


@contextmanager
def page(folder: Path) -> Iterator[str]:
    """The bot's page, its address; ended as by Ctrl-C."""
    with (folder / "stderr.txt").open("w") as errors:
        process = subprocess.Popen([*BOT, "--page", "--port", "0"], cwd=ROOT, stdout=subprocess.PIPE, stderr=errors,
                                   text=True)
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.communicate(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
    assert "Traceback" not in (folder / "stderr.txt").read_text()


@pytest.mark.sockets
def test_page_in_a_browser(tmp_path: Path) -> None:
    with page(tmp_path) as url:
        document, console = shown(f"{url}?q=How+do+I+turn+hedging+off%3F&slow.answer=60", tmp_path,
                                  "document.querySelector('#when')?.textContent")
    assert console == []
    assert '<span class="cited"><code>hedge: {mode: off}</code>' in document
    assert "<li>docs/concepts/hedging.md#when-to-turn-it-off</li>" in document
    assert re.search(r"without the model: \w+", document)
    assert re.search(r'<span id="when">[^<]+ after the answer</span>', document)
    assert re.search(r"<div id=\"state\"[^>]*><p>[^<]", document)
    assert '<i class="bar ok"' in document
    assert 'class="is-content' in document
    assert times_ms(document) == sorted(times_ms(document))
    assert json.loads(re.findall(r'<span class="what">("I am looking[^<]*")</span>', document)[0]).startswith("I am looking")


DELAYED = """(() => {
  if (typeof turn === "undefined" || !turn?.isOver) return false;
  if (!turn.isReplayed) {
    let clock = 1000;
    performance.now = () => clock;
    turn = {...turn, state: {}, log: [], final: null, begun: {}, ended: {}, isReplayed: true, isOver: true};
    take("progress", {stage: "words", status: "searching"}, 1);
    clock = 1500;
    take("delta", {text: "Hedging"}, 2);
    clock = 1600;
    take("patch", {patch: [{op: "add", path: "/turn", value: {at_ms: 100, total_ms: 2500, stages: {}}}]}, 3);
    drawLog();
  }
  return true;
})()"""


@pytest.mark.sockets
def test_page_event_times_never_decrease(tmp_path: Path) -> None:
    with page(tmp_path) as url:
        document, _ = shown(f"{url}?q=hedging&slow.changes=0", tmp_path, DELAYED)
    assert times_ms(document) == [0.0, 500.0, 600.0]


def times_ms(document: str) -> list[float]:
    """Those of the log of events, from above."""
    return [float(value) * (1000 if unit == "s" else 1)
            for value, unit in re.findall(r'<span class="at">([\d.-]+) (ms|s)</span>', document)]
