"""`stayfast warm`: what is read, how it is asked, and what the first users find then."""

from pathlib import Path

import msgspec
import pytest

from stayfast.cli import main
from stayfast.cli.warm import read
from tests.server.test_cache_admin import SETTINGS, ask
from tests.server.test_workers_as_one import running


def test_what_is_read() -> None:
    """Questions, requests of three kinds, comments; requests are never streamed."""
    found = read('# hot\nWhat is it?\n\n{"model":"m","messages":[],"stream":true}\n{"model":"e","input":["a"]}\n'
                 '{"model":"c","prompt":"p"}\n', "faq")
    assert [question.path for question in found] == ["/v1/chat/completions"] * 2 + ["/v1/embeddings", "/v1/completions"]
    bodies = [msgspec.json.decode(question.body) for question in found]
    assert bodies[0] == {"model": "faq", "messages": [{"role": "user", "content": "What is it?"}]}
    assert bodies[1]["stream"] is False
    assert "stream" not in bodies[2]


@pytest.mark.parametrize(("text", "why"), [
    ("Hello?", "line 1 is a question: say with --model"), ('\n{"model": 1', "line 2 is no JSON object"),
    ('{"model":"m"}', "line 1 needs"), ('{"input":"m"}', "line 1 needs"), ("# nothing\n", "no question")])
def test_what_cannot_be_read(text: str, why: str) -> None:
    """The error names the line."""
    with pytest.raises(ValueError, match=why):
        read(text, None)


@pytest.mark.parametrize("wrong", [["--every", "soon"], ["--every", "0s"], ["--cron", "0 6"], ["--per-second", "0"],
                                   ["--at-once", "0"], ["--fresh-for", "1"]])
def test_wrong_usage(wrong: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
    assert "is not in UTF-8 (byte 1)" in capsys.readouterr().err


@pytest.mark.sockets
def test_the_first_users_hit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each question is made once, found the next time, and asked again where it is too old; a budget ends a round."""
    file = tmp_path / "hot"
    file.write_text("one\ntwo\n" + '{"model":"other","messages":[{"role":"user","content":"three"}]}\n')
    with running(tmp_path, 1, SETTINGS) as gateway:
        warm = ["warm", str(file), "--url", gateway.url, "--per-second", "100", "--model"]
        assert main([*warm, "m"]) == 0
        said = capsys.readouterr().out
        assert said.startswith("0 were there, 3 made for ")
        assert said.endswith(" tokens, 0 failed\n")
        assert main([*warm, "m"]) == 0
        assert capsys.readouterr().out == "3 were there, 0 made for 0 tokens, 0 failed\n"
        assert (ask(gateway.url, "m", "one"), ask(gateway.url, "other", "three")) == ("hit", "hit")
        assert main([*warm, "other", "--budget", "1", "--at-once", "1"]) == 1
        assert ", 2 left out: the budget is spent\n" in capsys.readouterr().out
        assert main([*warm, "nobody"]) == 1
        told = capsys.readouterr()
        assert "1 were there" in told.out
        assert "2 failed" in told.out
        assert told.err.count("does not exist here") == 1
    assert main([*warm, "m"]) == 1
    assert "cannot be asked" in capsys.readouterr().err
