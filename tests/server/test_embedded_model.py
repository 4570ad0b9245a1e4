"""The gateway without settings: the embedded model, and its crash in the middle of an answer."""

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.sockets
BODY = {"model": "stayfast-tiny", "messages": [{"role": "user", "content": "What is TTFT?"}]}


class Running:
    """A gateway in a process of its own, without a settings file unless one is given."""

    def __init__(self, folder: Path, settings: str | None = None) -> None:
        self.settings = folder / "stayfast.yaml"  # where the gateway looks by itself
        if settings is not None:
            self.settings.write_text(settings)
        self._lines: list[http.client.HTTPConnection] = []
        self._answers: list[http.client.HTTPResponse] = []
        self.log = folder / "log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen([sys.executable, "-m", "stayfast", "serve", "--port", "0"], cwd=folder,
                                            stdout=log, stderr=subprocess.PIPE, env={**os.environ, "STAYFAST_CONFIG": ""})
        assert self.process.stderr is not None
        self.said = ""
        while "curl" not in self.said:
            line = self.process.stderr.readline().decode()
            assert line, f"it ended: {self.said}"
            self.said += line
        found = re.search(r"http://127\.0\.0\.1:(\d+)/v1", self.said)
        assert found is not None
        self.port = int(found[1])

    def send(self, **fields: object) -> http.client.HTTPConnection:
        """One chat request, not yet answered."""
        line = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        self._lines.append(line)
        line.request("POST", "/v1/chat/completions", json.dumps({**BODY, **fields}), {"content-type": "application/json"})
        return line

    def ask(self, **fields: object) -> http.client.HTTPResponse:
        """One chat request; the answer's head is in."""
        answer = self.send(**fields).getresponse()
        self._answers.append(answer)
        return answer

    def get(self, path: str) -> str:
        """The text at a path."""
        line = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        self._lines.append(line)
        line.request("GET", path)
        return line.getresponse().read().decode()

    def events(self) -> list[dict[str, object]]:
        """The log's lines so far."""
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    def reload(self, settings: str) -> None:
        """SIGHUP with new settings; returns when they are in force."""
        n_before = sum(event["event"] == "reloaded" for event in self.events())
        self.settings.write_text(settings)
        self.process.send_signal(signal.SIGHUP)
        deadline_at = time.monotonic() + 10
        while sum(event["event"] == "reloaded" for event in self.events()) == n_before:
            assert time.monotonic() < deadline_at, self.events()
            time.sleep(0.01)

    def engine_pid(self, other_than: int = 0) -> int:
        """The newest engine that became ready; the log is some 50 ms behind."""
        deadline_at = time.monotonic() + 30
        while time.monotonic() < deadline_at:
            ready = [event["pid"] for event in self.events() if event["event"] == "engine" and event["state"] == "ready"]
            if ready and ready[-1] != other_than:
                assert isinstance(ready[-1], int)
                return ready[-1]
            time.sleep(0.05)
        raise AssertionError(f"no engine became ready: {self.events()}")

    def stop(self) -> int:
        """Drain; the exit status."""
        for answer in self._answers:
            answer.close()
        for line in self._lines:
            line.close()
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(20)
        assert self.process.stderr is not None
        self.process.stderr.close()
        return status


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    """A gateway, ended after the test whatever comes."""
    gateway = Running(tmp_path)
    try:
        yield gateway
    finally:
        if gateway.process.poll() is None:
            gateway.stop()


def test_embedded_model_answers(running: Running) -> None:
    """The printed curl line's request streams an answer with its Server-Timing, and the gateway drains cleanly."""
    answer = running.ask(stream=True)
    assert answer.status == 200
    assert re.match(r'admit;dur=[\d.]+;desc="of 300000", .*call;dur=[\d.]+', answer.headers["server-timing"])
    body = answer.read().decode()
    events = [json.loads(line[6:]) for line in body.splitlines() if line.startswith("data: {")]
    said = "".join(event["choices"][0]["delta"].get("content") or "" for event in events if event["choices"])
    assert "time to first token" in said.lower()
    assert "data: [DONE]" in body
    assert re.search(r"^: server-timing .*relay;dur=[\d.]+", body, re.MULTILINE)
    assert running.stop() == 0
    (line,) = [event for event in running.events() if event["event"] == "request" and event.get("route") == "stayfast-tiny"]
    assert (line["status"], line["upstream"]) == (200, "tiny")
    assert "TTFT" not in running.log.read_text()


def test_embedded_model_rejects_several_choices(running: Running) -> None:
    """What llama.cpp's stream cannot say is refused by name, not failed after three attempts."""
    answer = running.ask(n=2)
    assert answer.status == 400
    assert json.loads(answer.read())["error"]["param"] == "n"


def test_embedded_crash_during_whole_answer(running: Running) -> None:
    """kill -9 of the engine while it answers: the client is told clearly, and the next request works after the restart."""
    pid = running.engine_pid()
    os.kill(pid, signal.SIGSTOP)  # it has been asked, and will never go on
    line = running.send(stream=True)
    os.kill(pid, signal.SIGKILL)
    with line.getresponse() as first:
        body = first.read().decode()
    if first.status == 200:  # the restart was quick enough for a second attempt, before any token had been sent
        assert "[DONE]" in body
    else:
        assert json.loads(body)["error"]["code"] == "upstream_crashed"
    answer = running.ask()
    assert answer.status == 200
    assert "first token" in json.loads(answer.read())["choices"][0]["message"]["content"]
    assert running.engine_pid(other_than=pid) != pid


def test_embedded_crash_during_stream(running: Running) -> None:
    """Content has been sent: the stream ends with an error event and without [DONE], and the connection breaks off."""
    pid = 0
    for _ in range(20):  # the little model is quick: some answers are whole before the signal arrives
        pid = running.engine_pid(other_than=pid)
        answer = running.ask(stream=True, messages=[{"role": "user", "content": "What is TTFT?"}], max_tokens=2000,
                             ignore_eos=True)
        got = answer.read(400)
        assert b"content" in got
        os.kill(pid, signal.SIGKILL)
        try:
            rest = answer.read()
        except http.client.IncompleteRead as cut:
            rest = cut.partial
            break
        assert b"[DONE]" in got + rest
    else:
        raise AssertionError("no answer was cut")
    assert b"[DONE]" not in rest
    events = [line for line in rest.decode().splitlines() if line.startswith("data: ")]
    error = json.loads(events[-1][6:])["error"]
    assert error["code"] == "upstream_crashed"
    assert "being restarted" in error["message"]
    again = running.ask()
    assert again.status == 200
    assert json.loads(again.read())["choices"][0]["message"]["content"]


def test_embedded_stream_survives_two_reloads(tmp_path: Path) -> None:
    """An unrelated reload, then one that removes the embedded model: the answer under way still gets to its end."""
    simulated = "upstreams: {{played: {{kind: simulated}}{more}}}\nroutes: {{simulated: [played]{route}}}\n"
    both = simulated.format(more=", tiny: {kind: embedded}", route=", stayfast-tiny: [tiny]")
    gateway = Running(tmp_path, both)
    try:
        pid = gateway.engine_pid()
        os.kill(pid, signal.SIGSTOP)  # so that the answer is under way for as long as the test likes
        line = gateway.send(stream=True)
        gateway.reload(both + "log: {level: info}\n")
        gateway.reload(simulated.format(more="", route=""))
        os.kill(pid, signal.SIGCONT)
        with line.getresponse() as answer:
            assert b"[DONE]" in answer.read()
        assert gateway.ask().status == 404
    finally:
        gateway.stop()


def test_embedded_speculation_auto_survives_the_end_of_an_arm_and_shows_its_choice(tmp_path: Path) -> None:
    """Three processes answer one route; while one of them is gone, the plain one answers. No request is lost."""
    gateway = Running(tmp_path, "upstreams: {tiny: {kind: embedded, speculation: {mode: auto, explore_share: 0.2}}}\n"
                                "routes: {stayfast-tiny: [tiny]}\n")
    try:
        deadline_at = time.monotonic() + 30
        while len(pids := {event["pid"] for event in gateway.events() if event["event"] == "engine"
                           and event["state"] == "ready"}) < 3:
            assert time.monotonic() < deadline_at, gateway.events()
            time.sleep(0.05)
        for number in range(80):
            if number == 40:
                os.kill(max(pid for pid in pids if isinstance(pid, int)), signal.SIGKILL)
            answer = gateway.ask(stream=number % 2 == 0, temperature=0)
            assert answer.status == 200
            assert b"first token" in answer.read().replace(b'"}', b"") or number % 2 == 0
        page = gateway.get("/metrics")
        labels = r'\{upstream="tiny",route="stayfast-tiny",arm="(\w+)",why="\w+"\} (\d+)'
        chosen = [(arm, int(n)) for arm, n in re.findall("stayfast_speculation_answers_total" + labels, page)]
        assert sum(n for _, n in chosen) == 80
        assert {arm for arm, _ in chosen} > {"off"}
        assert 'stayfast_speculation_tokens_total{upstream="tiny",route="stayfast-tiny",arm="off"}' in page
        waterfall = json.loads(gateway.get(f"/admin/requests/{answer.getheader('x-request-id')}"))
        assert any(line.startswith("speculation: ") for line in waterfall["verdict"])
    finally:
        gateway.stop()
