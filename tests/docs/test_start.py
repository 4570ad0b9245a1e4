"""docs/start.md as a newcomer follows it: its own commands, in its order, in one shell, with the addresses of this test.

Two simulated replicas of vLLM and a simulated OpenAI answer. Both replicas are killed where the page says so, while another
client asks all the time.
"""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import openai
import pytest

from tests.docs.pages import ROOT, blocks
from tests.ports import free_port

PAGE = ROOT / "docs" / "start.md"
PROGRAMS = Path(sys.executable).parent
KEY = "sk-a-key-of-24-characters"
NOT_RUN = ("python3 -m venv", "pip install")  # need a package index: the test has the same package installed
TEN_MINUTES_S = 600.0
DONE = "--- done:"
pytestmark = [pytest.mark.sockets, pytest.mark.serial]


class Shell:
    """One interactive session: commands share their variables and jobs."""

    def __init__(self, folder: Path, variables: dict[str, str]) -> None:
        self._log = folder / "shell.log"
        self._out = self._log.open("wb")
        self._bash = subprocess.Popen(["bash"], cwd=folder, stdin=subprocess.PIPE, stdout=self._out, stderr=self._out,
                                      env=variables, start_new_session=True)

    def run(self, command: str, within_s: float = 60.0) -> str:
        """Type a command; its output. It must end with status 0."""
        assert self._bash.stdin is not None
        begins_at = len(self._log.read_text())
        self._bash.stdin.write(f"{command}\necho '{DONE}' $?\n".encode())
        self._bash.stdin.flush()
        ends_at = time.monotonic() + within_s
        while (found := re.search(rf"{DONE} (\d+)\n", printed := self._log.read_text()[begins_at:])) is None:
            assert time.monotonic() < ends_at, f"{command}: {printed}"
            assert self._bash.poll() is None, printed
            time.sleep(0.02)
        assert found[1] == "0", f"{command}: {printed}"
        return printed[:found.start()]

    def close(self) -> None:
        """End the session and what it has started."""
        os.killpg(self._bash.pid, signal.SIGKILL)
        assert self._bash.stdin is not None
        self._bash.stdin.close()
        self._bash.wait()
        self._out.close()


class Asker(threading.Thread):
    """A client that asks until it is stopped. `marks`: of each answer, in order."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._client = openai.OpenAI(base_url=url, api_key=KEY, max_retries=0)
        self._end = threading.Event()
        self.marks: list[str] = []
        self.failures: list[str] = []

    def run(self) -> None:
        while not self._end.is_set():
            try:
                answer = self._client.chat.completions.with_raw_response.create(
                    model="assistant", max_tokens=5, messages=[{"role": "user", "content": "Are you there?"}])
                assert answer.parse().choices[0].message.content
                self.marks.append(answer.headers.get("x-stayfast-degraded", "no"))
            except (openai.OpenAIError, AssertionError) as error:
                self.failures.append(repr(error))
            self._end.wait(0.05)

    def stop(self) -> None:
        self._end.set()
        self.join(30)


@contextmanager
def simulated(*arguments: str) -> Iterator[str]:
    """A simulated provider, killed when the block ends; its address."""
    command = [str(PROGRAMS / "stayfast"), "sim", "--port", "0", "--json", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            found = re.search(r"http://([\d.:]+)", child.stdout.readline())
            assert found is not None
            yield found[1]
        finally:
            child.kill()


def steps() -> list[list[str]]:
    """The commands of each block; a comment or a continued line is none of the page's."""
    return [text.splitlines() for text in blocks(PAGE, "sh")]


def configuration(replicas: list[str], hosted: str) -> str:
    """The page's config.yaml at the addresses of this test."""
    text = next(blocks(PAGE, "yml"))
    for usual, address in zip(("10.0.0.7:8000", "10.0.0.8:8000"), replicas, strict=True):
        assert usual in text
        text = text.replace(usual, address)
    return text.replace("model: openai/gpt-4o-mini\n", f"model: openai/gpt-4o-mini\n      api_base: http://{hosted}/v1\n")


def test_newcomer_page_followed_serves_with_fallback(tmp_path: Path) -> None:
    """Every step has status 0; no request fails while the replicas die; the answers after it are marked."""
    began_at = time.monotonic()
    port = free_port()
    with ExitStack() as stack:
        hosted = stack.enter_context(simulated("--provider", "openai=instant", "--key", KEY))
        replicas = ExitStack()
        stack.enter_context(replicas)
        addresses = [replicas.enter_context(simulated("--provider", "vllm=instant")) for _ in "ab"]
        (tmp_path / "config.yaml").write_text(configuration(addresses, hosted))
        (tmp_path / "client.py").write_text(next(blocks(PAGE, "python")).replace("8090", str(port)))
        shell = Shell(tmp_path, {**os.environ, "PATH": f"{PROGRAMS}{os.pathsep}{os.environ['PATH']}", "PORT": str(port),
                                 "OPENAI_API_KEY": KEY, "LITELLM_MASTER_KEY": KEY, "TMPDIR": str(tmp_path)})
        stack.callback(shell.close)
        asker = Asker(f"http://127.0.0.1:{port}/v1")
        printed: list[str] = []
        for step in steps():
            if step[-1].startswith("stayfast requests"):  # "Stop both replicas, and ask again."
                asker.start()
                stack.callback(asker.stop)
                wait_for_answers(asker, 5)
                replicas.close()
            elif step[-1].startswith("kill "):
                wait_for_answers(asker, len(asker.marks) + 5)
                asker.stop()
            printed += [shell.run(adapt(command, port)) for command in step if not command.startswith(NOT_RUN)]
        took_s = time.monotonic() - began_at
    sys.stdout.write(f"the page took {took_s:.1f} s\n")
    assert [mark for text in printed for mark in re.findall(r"^degraded: (\w+)", text, re.MULTILINE)] == ["no", "fallback"]
    assert asker.failures == []
    assert asker.marks[:1] == ["no"]
    assert set(asker.marks[-5:]) == {"fallback"}
    assert any(re.search(r"\b200$", text.strip()) for text in printed)
    assert took_s < TEN_MINUTES_S / 5


def adapt(command: str, port: int) -> str:
    """A command at the gateway's port of this test."""
    given = command.replace("127.0.0.1:8090", f"127.0.0.1:{port}")
    return f"{given} --url http://127.0.0.1:{port}" if given.startswith("stayfast requests") else given


def wait_for_answers(asker: Asker, n: int) -> None:
    ends_at = time.monotonic() + 30
    while len(asker.marks) < n:
        assert time.monotonic() < ends_at, asker.failures[:3]
        time.sleep(0.02)


def test_newcomer_page_commands_are_all_run() -> None:
    """What is not run is the installation alone."""
    commands = [command for step in steps() for command in step]
    assert [command for command in commands if command.startswith(NOT_RUN)] == commands[:2]
    assert sys.version_info >= (3, 11)
