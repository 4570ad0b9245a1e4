"""`stayfast warm`: its input, its requests, and the cached answers of the first users."""

import asyncio
import sys
from pathlib import Path
from uuid import uuid4

import msgspec
import pytest

from stayfast.cli import main
from stayfast.cli.warm import read_arguments, read_questions
from stayfast.turns.cached import CachedFunction
from stayfast.turns.shared_store import open_shared_store
from tests.server.cached_gateway import SETTINGS, ask
from tests.server.gateway_process import running


def test_warm_reads_requests() -> None:
    """Questions, requests of three kinds, comments; requests are never streamed."""
    found = read_questions('# hot\nWhat is it?\n\n{"model":"m","messages":[],"stream":true}\n{"model":"e","input":["a"]}\n'
                 '{"model":"c","prompt":"p"}\n', "faq")
    assert [question.path for question in found] == ["/v1/chat/completions"] * 2 + ["/v1/embeddings", "/v1/completions"]
    bodies = [msgspec.json.decode(question.body) for question in found]
    assert bodies[0] == {"model": "faq", "messages": [{"role": "user", "content": "What is it?"}]}
    assert bodies[1]["stream"] is False
    assert "stream" not in bodies[2]


def test_warm_reads_texts_to_embed() -> None:
    """Each line as clients ask for it, by itself; requests stay what they are."""
    found = read_questions('A document.\n{"model":"m","messages":[]}\n', "vectors", embeds=True)
    assert [question.path for question in found] == ["/v1/embeddings", "/v1/chat/completions"]
    assert msgspec.json.decode(found[0].body) == {"model": "vectors", "input": "A document."}


@pytest.mark.parametrize(("text", "why"), [
    ("Hello?", "line 1 is a question: --model must name a route"), ('\n{"model": 1', "line 2 is not a JSON object"),
    ('{"model":"m"}', "line 1 needs"), ('{"input":"m"}', "line 1 needs"), ("# nothing\n", "no question")])
def test_warm_unreadable_line_is_reported(text: str, why: str) -> None:
    """The error names the line."""
    with pytest.raises(ValueError, match=why):
        read_questions(text, None)


@pytest.mark.parametrize("wrong", [["--every", "soon"], ["--every", "0s"], ["--cron", "0 6"], ["--per-second", "0"],
                                   ["--at-once", "0"], ["--fresh-for", "1"]])
def test_warm_wrong_usage_is_status_2(wrong: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit status 2 before anything is asked."""
    file = tmp_path / "hot"
    file.write_text("Hello?\n")
    assert main(["warm", str(file), "--model", "m", *wrong]) == 2
    assert main(["warm", str(tmp_path / "none"), "--model", "m"]) == 2
    told = capsys.readouterr().err
    assert told.count("stayfast warm: ") == 2
    assert f"{tmp_path / 'none'} cannot be read: No such file or directory" in told
    file.write_bytes(b"a\xff")
    assert main(["warm", str(file), "--model", "m"]) == 2
    assert "is not UTF-8 (byte 1)" in capsys.readouterr().err


COLD = """\
upstreams: {sim: {kind: simulated, script: steady}}
routes:
  m: {upstreams: [sim], cache: {mode: exact}}
  none: [sim]
server: {drain_grace_s: 0}
"""
MODULE = """
from stayfast.turns.cached import CachedFunction
from stayfast.turns.shared_store import open_shared_store

async def find(question: str, k: int = 3) -> list[str]:
    with open("calls", "a") as calls:
        calls.write(f"{question} {k}\\n")
    if question == "broken":
        raise ConnectionError("a secret")
    return [f"{question} {n}" for n in range(k)]

search = CachedFunction(find, ttl_s=60, store=open_shared_store("found.db", timeout_s=10), name="kb")
alone = CachedFunction(find, ttl_s=60)
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A name of its own for an application's module, in the folder where the command runs."""
    name = f"kb_{uuid4().hex}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return name


def test_warm_fills_cached_functions_of_turns(module: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each line is looked up once, by any form of arguments; another process finds it, until it is too old."""
    file, calls = tmp_path / "hot", tmp_path / "calls"
    file.write_text('# hot\nrefunds\n["prices", 2]\n{"question": "hours", "k": 1}\n')
    warm = ["warm", str(file), "--call", f"{module}:search", "--per-second", "1000"]
    assert main(warm) == 0
    assert capsys.readouterr().out == "0 cached, 3 new, 0 failed\n"
    assert sorted(calls.read_text().splitlines()) == ["hours 1", "prices 2", "refunds 3"]

    async def look_up() -> list[list[str]]:
        async def never(question: str, k: int = 3) -> list[str]:
            raise AssertionError

        search = CachedFunction(never, ttl_s=60, store=open_shared_store("found.db", timeout_s=10), name="kb")
        try:
            return [await search("refunds"), await search("prices", 2), await search(question="hours", k=1)]
        finally:
            await search.aclose()

    assert asyncio.run(look_up()) == [["refunds 0", "refunds 1", "refunds 2"], ["prices 0", "prices 1"], ["hours 0"]]
    del sys.modules[module]
    assert main(warm) == 0
    assert capsys.readouterr().out == "3 cached, 0 new, 0 failed\n"
    del sys.modules[module]
    assert main([*warm, "--fresh-for", "0s"]) == 0
    assert capsys.readouterr().out == "0 cached, 3 new, 0 failed\n"
    file.write_text("broken\nrefunds\n")
    del sys.modules[module]
    assert main(warm) == 1
    told = capsys.readouterr()
    assert told.out == "1 cached, 0 new, 1 failed\n"
    assert told.err == "stayfast warm: kb failed: ConnectionError\n"


@pytest.mark.parametrize(("words", "why"), [
    (["search", "--model", "m"], "--call uses no gateway"), (["search", "--embed"], "--call uses no gateway"),
    (["search", "--budget", "1"], "--call uses no gateway"), (["alone"], "has no shared store"),
    (["find"], "must be a stayfast.turns.CachedFunction"), (["nothing"], "has no nothing")])
def test_warm_unknown_function_is_reported(words: list[str], why: str, module: str, tmp_path: Path,
                               capsys: pytest.CaptureFixture[str]) -> None:
    """Exit status 2, and nothing was called."""
    (tmp_path / "hot").write_text("refunds\n")
    assert main(["warm", "hot", "--call", f"{module}:{words[0]}", *words[1:]]) == 2
    assert why in capsys.readouterr().err
    assert not (tmp_path / "calls").exists()


def test_warm_malformed_arguments_line_is_reported() -> None:
    """The error names the line."""
    assert read_arguments('a\n[1, "b"]\n{"k": 2}') == [(("a",), {}), ((1, "b"), {}), ((), {"k": 2})]
    with pytest.raises(ValueError, match="line 2 is not JSON"):
        read_arguments("a\n[1")
    with pytest.raises(ValueError, match="no arguments in this file"):
        read_arguments("# a\n")


@pytest.mark.sockets
def test_warm_uncacheable_requests_are_status_5(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It says why, once for each reason, and that it was for nothing, exit status 5; one that is kept is something."""
    file, none = tmp_path / "hot", '{"model":"none","messages":[{"role":"user","content":"three"}]}\n'
    with running(tmp_path, 1, COLD) as gateway:
        warm = ["warm", str(file), "--url", gateway.url, "--per-second", "100", "--model", "m"]
        file.write_text("one\ntwo\n" + none)
        assert main(warm) == 5
        told = capsys.readouterr()
        assert ", 3 not cacheable, 0 failed\n" in told.out
        drawn, without, nothing = sorted(told.err.splitlines(), key=lambda line: ("no answer is" in line, "has no" in line))
        assert "not cacheable: temperature: answers are random. Set `temperature: 0` in the line" in drawn
        assert without == "stayfast warm: not cacheable: its route has no cache: routes.NAME.cache"
        assert nothing == "stayfast warm: no answer is cacheable"
        file.write_text('{"model":"m","messages":[],"n":2}\n'.replace("[]", '[{"role":"user","content":"four"}]'))
        assert main(warm) == 5
        assert "not cacheable: n (docs/concepts/cache.md" in capsys.readouterr().err
        file.write_text('{"model":"m","temperature":0,"messages":[{"role":"user","content":"one"}]}\n' + none)
        assert main(warm) == 0
        assert "nothing is warm" not in capsys.readouterr().err


@pytest.mark.sockets
def test_warm_makes_first_request_a_hit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each question is made once, found the next time, and asked again where it is too old; a budget ends a round."""
    file = tmp_path / "hot"
    file.write_text("one\ntwo\n" + '{"model":"other","messages":[{"role":"user","content":"three"}]}\n')
    with running(tmp_path, 1, SETTINGS) as gateway:
        warm = ["warm", str(file), "--url", gateway.url, "--per-second", "100", "--model"]
        assert main([*warm, "m"]) == 0
        said = capsys.readouterr().out
        assert said.startswith("0 cached, 3 new for ")
        assert said.endswith(" tokens, 0 failed\n")
        assert main([*warm, "m"]) == 0
        assert capsys.readouterr().out == "3 cached, 0 new for 0 tokens, 0 failed\n"
        assert (ask(gateway.url, "m", "one"), ask(gateway.url, "other", "three")) == ("hit", "hit")
        assert main([*warm, "other", "--budget", "1", "--at-once", "1"]) == 1
        assert ", 2 skipped (budget spent)\n" in capsys.readouterr().out
        assert main([*warm, "nobody"]) == 1
        told = capsys.readouterr()
        assert "1 cached" in told.out
        assert "2 failed" in told.out
        assert told.err.count("does not exist here") == 1
    assert main([*warm, "m"]) == 1
    assert "cannot reach" in capsys.readouterr().err
