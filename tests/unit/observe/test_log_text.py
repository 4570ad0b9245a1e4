"""observe.log_text: log lines for a person, each one line of the terminal, with nothing in them that it would act on."""

import fcntl
import os
import pty
import re
import struct
import termios
from collections.abc import Iterator
from typing import Any, Literal

import msgspec
import pytest

from stayfast.cli import main
from stayfast.compose.system import log_config
from stayfast.core.clock import SystemClock
from stayfast.core.events import BreakerChanged, Fact, RequestDone, RequestRefused
from stayfast.observe.fact_batch import handle_facts
from stayfast.observe.log import LineWriter, LogConfig, LogSink
from stayfast.settings import LogSettings, Settings
from tests.unit.observe.fact_rig import attempt, done


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    """Both ends of a terminal of 80 columns: what is read, and what a log writes to."""
    here, there = pty.openpty()
    fcntl.ioctl(there, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    yield here, there
    os.close(here)
    os.close(there)


def written(terminal: tuple[int, int], *facts: Fact, has_colour: bool = False,
            form: Literal["json", "text"] = "text") -> list[str]:
    """The lines that come of facts, at the terminal's other end."""
    here, there = terminal
    config = LogConfig(fd=there, form=form, has_colour=has_colour)
    writer = LineWriter(config)
    writer.start()
    handle_facts(LogSink(config, writer, SystemClock()), facts)
    writer.close()
    text = b""
    while text.count(b"\n") < len(facts):
        text += os.read(here, 65536)
    return text.decode().replace("\r\n", "\n").splitlines()


def test_text_line_of_request_fits_terminal(terminal: tuple[int, int]) -> None:
    """What one looks at first: when, how it ended, how long it took, which route and upstream, the first token."""
    [line] = written(terminal, done(route="gpt-4o-mini", upstream="openai"))
    assert re.fullmatch(r"\d\d:\d\d:\d\d info    200 500ms gpt-4o-mini by openai ttft 200ms tokens 10\+20 r", line)


def test_text_line_is_cut_at_whole_fields(terminal: tuple[int, int]) -> None:
    """What matters least goes; a request that failed by an upstream's fault keeps everything."""
    its: dict[str, Any] = {"route": "a-route-of-a-long-name", "upstream": "an-upstream-of-a-long-name", "tenant": "someone",
                           "request_id": "req_0123456789abcdef"}
    good, bad = written(terminal, done(**its), done(**its, status=502, error="upstream_error", over_stage="call",
                                                    attempts=(attempt(), attempt()), n_attempts=2))
    assert len(good) <= 80
    assert good.endswith(" by an-upstream-of-a-long-name")
    assert " warning 502 500ms upstream_error in call a-route-of-a-long-name by an-upstream-of-a-long-name 2 att" in bad
    assert bad.endswith("req_0123456789abcdef")


def test_text_colour_follows_level(terminal: tuple[int, int]) -> None:
    """Yellow for warnings; without colour the same text."""
    fact = done(status=503, error="overloaded")
    [plain], [coloured] = written(terminal, fact), written(terminal, fact, has_colour=True)
    assert "\x1b" not in plain
    assert "\x1b[33m warning \x1b[0m" in coloured
    assert re.sub(r"\x1b\[\d+m", "", coloured) == plain


def test_text_line_of_event_has_fields_and_detail(terminal: tuple[int, int]) -> None:
    """Whole, however long."""
    fact = BreakerChanged("openai", "open", "5 failures in a row " * 5)
    [line] = written(terminal, fact)
    assert re.match(r"\d\d:\d\d:\d\d warning breaker upstream=openai state=open - 5 failures in a row", line)
    assert line.count("in a row") == 5


def test_text_line_has_no_control_characters(terminal: tuple[int, int]) -> None:
    """A model's name and a path are the client's: no escape, no line end, no carriage return of them gets out."""
    evil = "x\x1b[31mred\r\nfake line\x9b2J"
    lines = written(terminal, done(route=None, model=evil, status=404, error="model_not_found"),
                    RequestRefused("r", evil, 404, "not_found", 0.0, 0.001))
    assert len(lines) == 2
    assert not any(char in line for line in lines for char in "\x1b\r\x9b")
    assert "model_not_found" in lines[0]


def test_text_line_has_no_more_than_json(terminal: tuple[int, int]) -> None:
    """Every word of a request's text is a value of its JSON, or one of the few that name them."""
    fact: RequestDone = done(status=500, error="upstream_error", cache="miss", tenant="web", degraded="template")
    [text], [json] = written(terminal, fact), written(terminal, fact, form="json")
    fields = msgspec.json.decode(json)
    named = {"warning", "by", "ttft", "cache", "degraded", "tenant", "tokens", "10+20", "500ms", "200ms"}
    assert set(text.split()[1:]) - named <= {str(value) for value in fields.values()}


@pytest.mark.parametrize(("format_", "is_terminal", "no_color", "expected"), [
    ("auto", True, "", ("text", True)), ("auto", False, "", ("json", False)), ("json", True, "", ("json", True)),
    ("text", False, "", ("text", False)), ("auto", True, "1", ("text", False))])
def test_log_format_auto_is_text_on_terminal(format_: Literal["auto", "text", "json"], is_terminal: bool, no_color: str,
                                    expected: tuple[str, bool], monkeypatch: pytest.MonkeyPatch) -> None:
    """The form, and whether in colour: that is for terminals without NO_COLOR."""
    monkeypatch.setattr(os, "isatty", lambda fd: is_terminal and fd == 1)
    monkeypatch.setenv("NO_COLOR", no_color)
    config = log_config(Settings(log=LogSettings(format=format_)))
    assert ((config.form, config.has_colour), config.fd) == (expected, 1)


def test_log_format_flag_and_variable_override_file(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
                                                   tmp_path: Any) -> None:
    """`--log-format` wins over STAYFAST_LOG_FORMAT; a word that is none of the three is refused."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STAYFAST_LOG_FORMAT", "xml")
    assert main(["serve", "--check"]) == 78
    assert capsys.readouterr().err == 'STAYFAST_LOG_FORMAT: log.format: must be one of auto, text, json, not "xml"\n'
    assert main(["serve", "--check", "--log-format", "text"]) == 0
