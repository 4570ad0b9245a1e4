"""/admin/prompts and `stayfast prompts`: versions of system prompts, without their text unless the settings say so."""

import json
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stayfast.cli import main
from stayfast.cli.prompts import format_difference, format_version, format_versions
from stayfast.core.prompt_versions import (
    OfferedTool,
    PromptChange,
    PromptComparison,
    PromptHunk,
    PromptPlace,
    PromptReport,
    PromptVersionRow,
    RepeatedPart,
)
from tests.server.asking import SETTINGS
from tests.services.running import gateway

SECRET = "Xylophone"
RULES = f"{SECRET}: answer in the language of the customer, and name the order by its number. " * 30
PLACE = PromptPlace("messages[0].content", 812, "a date", 0.2, 1600.0)
ROW = PromptVersionRow(
    "chat", "a" * 64, n=400, n_samples=200, n_moved=190, n_tokens=2000.0, n_a_day=10_000.0, cached_ratio=0.1,
    usd_a_day=12.5, ttft_p50_s=0.4, change=PromptChange("b" * 64, PLACE, 3, 9), moving=PLACE, n_examples=2,
    tools=(OfferedTool("search", 50.0, 3), OfferedTool("re\x1bfund", 70.0)),
    repeats=(RepeatedPart("instructions", 9, "instructions", 1, 40.0),))


def send(port: int, system: str) -> None:
    body = {"model": "quick", "messages": [{"role": "system", "content": system}, {"role": "user", "content": "hi"}]}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/chat/completions", json.dumps(body).encode(), {
        "content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=20) as answer:
        answer.read()


@pytest.mark.sockets
@pytest.mark.parametrize(("n_workers", "shows_text"), [(1, False), (2, True)])
def test_prompts_two_versions_are_listed_shown_and_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str], *,
                                                            n_workers: int, shows_text: bool) -> None:
    settings = f"{SETTINGS}\nworkers: {n_workers}\nprompts: {{content: {str(shows_text).lower()}}}\n"
    with gateway(tmp_path, settings) as port:
        run = runner(port, capsys)
        assert run("list")[0] == 1
        send_until(port, RULES, lambda: run("list")[0] == 0)
        changed = f"{RULES[:100]}Be kind. {RULES[100:]}"
        send_until(port, changed, lambda: any("change" in row for row in listed(run)))
        before, after = listed(run)
        assert after["change"]["before"] == before["id"]
        status, out = run("show", after["id"][:12])
        assert (status, SECRET in out) == (0, shows_text)
        status, out = run("diff", after["id"][:12])
        assert (status, SECRET in out) == (0, shows_text)
        assert "first changed byte: 101 of messages[0].content" in out
        status, out = run("diff", before["id"], "--against", after["id"], "--json")
        assert json.loads(out)["comparison"]["n_hunks"] == 1
        assert run("show", "f" * 12)[0] == 1
        assert run("show", "nothex")[0] == 1
        assert run("diff", after["id"], "--against", "")[0] == 1


def send_until(port: int, system: str, is_so: Callable[[], bool]) -> None:
    """Requests are sampled: one alone may not be."""
    ends_at = time.monotonic() + 30.0
    send(port, system)
    while not is_so():
        assert time.monotonic() < ends_at
        time.sleep(0.05)
        send(port, system)


def runner(port: int, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    def run(action: str, *words: str) -> tuple[int, str]:
        status = main(["prompts", action, *words, "--url", f"http://127.0.0.1:{port}"])
        return status, capsys.readouterr().out

    return run


def listed(run: Callable[..., tuple[int, str]]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(run("list", "--json")[1])["data"]
    return rows


def test_lines_of_a_version_name_what_costs() -> None:
    text = "\n".join(format_version(PromptReport(ROW)))
    for words in ("2000 tokens", "10.0 % cached", "a date at byte 812 of messages[0].content, in 190 of 200", "tool search",
                  "byte 9 of instructions the paragraph at byte 1", "12.50 USD a day", "set prompts.content"):
        assert words in text


def test_lines_of_a_difference_name_the_byte_and_the_cost() -> None:
    before = msgspec.structs.replace(ROW, id="b" * 64, cached_ratio=0.9)
    comparison = PromptComparison(before.id, (PromptHunk("text", 1, 2, 1, 3),), 4)
    text = "\n".join(format_difference(PromptReport(ROW, before, comparison, 1.5, 43.2)))
    for words in ("first changed byte: 812 of messages[0].content (a date)", "1600 tokens, left the prompt cache",
                  "+44.70 USD a day: +1.50 for its length, +43.20", "@@ -1,2 +1,3 @@ text", "and 3 more"):
        assert words in text
    assert "no longer in memory" in "\n".join(format_difference(PromptReport(ROW, before)))
    assert "first of its kind" in "\n".join(format_difference(PromptReport(ROW)))


def test_table_has_one_printable_line_for_each_version() -> None:
    lines = format_versions([ROW, msgspec.structs.replace(ROW, route="a\x07", usd_a_day=None, moving=None, repeats=())])
    assert len(lines.splitlines()) == 3
    assert "moves at byte 812, 1 repeats, 1 of 2 tools not called" in lines
    assert all(line.isprintable() for line in lines.splitlines())
