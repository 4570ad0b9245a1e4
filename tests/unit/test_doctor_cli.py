"""`stayfast doctor` on files, and on a gateway with stored snapshots."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest

from stayfast.cli import main
from stayfast.cli.doctor import StateUnknown, parse_since
from stayfast.core.snapshot import Snapshot, Spread, TrafficRow
from stayfast.observe.snapshot.ring import RingSummary

TAIL = Spread(1000, 0.2, 2.3, 8.0, 9.0)
OFF = {"routes": {"chat": {"hedge": {"mode": "off"}}}}


def snapshot(*, is_slow: bool, at: float = 1e9) -> Snapshot:
    spread = TAIL if is_slow else Spread(1000, 0.2, 0.3, 0.4, 0.5)
    return Snapshot(at, "lab", "1.0", traffic=tuple(
        TrafficRow("chat", "", window_s, 1000, 1000, ttft_s=spread) for window_s in (300.0, 3600.0)), settings=OFF)


def save(folder: Path, found: Snapshot) -> str:
    path = folder / "snapshot.json"
    path.write_bytes(msgspec.json.encode(found))
    return str(path)


@contextmanager
def gateway(*stored: Snapshot) -> Iterator[str]:
    """Answers as a gateway with stored snapshots; the last one is the current."""
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            query = parse_qs(urlsplit(self.path).query)
            if "list" in query:
                body = msgspec.json.encode(RingSummary(0, len(stored), [(one.at, one.at) for one in stored]))
            else:
                at = float(query["at"][0]) if "at" in query else stored[-1].at
                body = msgspec.json.encode(next(one for one in stored if one.at == at))
            self.send_response(200 if urlsplit(self.path).path == "/admin/snapshot" else 404)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """No lines."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_doctor_of_a_tail_prints_one_finding_in_80_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str],
                                                           monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["doctor", save(tmp_path, snapshot(is_slow=True))]) == 1
    printed = capsys.readouterr().out
    assert printed.startswith("WARN  hedging.off  route chat\n")
    assert "        routes:\n          chat:\n            hedge:\n              mode: auto\n" in printed
    assert "hides 1 consequence, --all shows it" in printed
    assert max(map(len, printed.splitlines())) <= 80
    assert main(["doctor", save(tmp_path, snapshot(is_slow=True)), "--all"]) == 1
    assert "latency.tail  route chat (explained by hedging.off)" in capsys.readouterr().out


def test_doctor_of_a_healthy_gateway_prints_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", save(tmp_path, snapshot(is_slow=False))]) == 0
    assert capsys.readouterr().out.endswith(" checks, 5 min, 1,000 requests: nothing to change\n")


def test_doctor_prints_json_with_hidden_consequences(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json", save(tmp_path, snapshot(is_slow=True))]) == 1
    report = json.loads(capsys.readouterr().out)
    assert [(found["id"], found.get("hidden_by", "")) for found in report["findings"]] == [
        ("hedging.off", ""), ("latency.tail", "hedging.off")]
    assert report["n_requests"] == 1000


@pytest.mark.parametrize(("text", "reason"), [
    ("{}", "is no snapshot"), ('{"at": 1.0}', "no data"), ('{"at": 1.0, "version": 2}', "update the doctor"),
    ('{"at": 1.0, "version": 0}', "update the gateway"), ("", "is no snapshot")])
def test_doctor_without_usable_data_has_status_2(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str,
                                                 reason: str) -> None:
    (tmp_path / "file").write_text(text)
    assert main(["doctor", str(tmp_path / "file")]) == 2
    assert reason in capsys.readouterr().err


def test_doctor_of_an_unreachable_gateway_has_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    for address in (["http://127.0.0.1:9"], ["--url", "http://127.0.0.1:9"]):
        assert main(["doctor", *address]) == 2
        assert "cannot reach http://127.0.0.1:9: nothing listens there" in capsys.readouterr().err
    assert main(["doctor", "missing.json"]) == 2
    assert "cannot read missing.json" in capsys.readouterr().err


def test_doctor_since_shows_begins_and_ended_findings(capsys: pytest.CaptureFixture[str]) -> None:
    now = datetime.now(UTC).timestamp()
    begun = [snapshot(is_slow=is_slow, at=now - age_s) for age_s, is_slow in ((600, False), (300, True), (5, True))]
    with gateway(*begun) as url:
        assert main(["doctor", url, "--since", "30m", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["findings"][0]["since"] == pytest.approx(now - 300)
    ended = [snapshot(is_slow=is_slow, at=now - age_s) for age_s, is_slow in ((600, True), (300, True), (5, False))]
    with gateway(*ended) as url:
        assert main(["doctor", url, "--since", "30m"]) == 0
    assert "hedging.off  route chat, since" in capsys.readouterr().out


def test_since_is_a_clock_time_or_a_span() -> None:
    now = datetime(2026, 11, 23, 2, 30, tzinfo=UTC)
    assert now.timestamp() - parse_since("02:10", now) == 20 * 60
    assert now.timestamp() - parse_since("02:40", now) == 24 * 3600 - 10 * 60
    assert now.timestamp() - parse_since("30m", now) == 1800
    with pytest.raises(StateUnknown, match="02:10"):
        parse_since("yesterday", now)
