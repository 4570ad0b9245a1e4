"""`stayfast requests` and `stayfast explain --last|--slowest` against a running gateway, and the listing's lines."""

import json
from pathlib import Path

import pytest

from stayfast.cli import main
from stayfast.cli.requests import format_requests
from stayfast.lab.report.table import TerminalStyle
from stayfast.observe.waterfall import RequestSummary
from tests.server.asking import SETTINGS, ask
from tests.services.running import gateway


@pytest.mark.sockets
def test_requests_command_lists_and_explain_finds_the_slowest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with gateway(tmp_path, SETTINGS) as port:
        url = ["--url", f"http://127.0.0.1:{port}"]
        assert main(["explain", "--last", *url]) == 1
        assert "no request yet" in capsys.readouterr().err
        assert main(["requests", *url]) == 1
        assert "No request matches" in capsys.readouterr().err
        for model, request_id in (("quick", "one"), ("slow", "two"), ("quick", "three")):
            ask(port, model, request_id)
        assert main(["requests", *url]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert [line.split()[1] for line in lines[1:4]] == ["three", "two", "one"]
        assert main(["requests", "--slowest", "-n", "1", *url]) == 0
        assert capsys.readouterr().out.splitlines()[1].split()[1] == "two"
        assert main(["requests", "--route", "quick", "--since", "5m", "--json", *url]) == 0
        assert {one["route"] for one in json.loads(capsys.readouterr().out)["data"]} == {"quick"}
        assert main(["explain", "--last", *url]) == 0
        assert capsys.readouterr().out.startswith("three ")
        assert main(["explain", "--slowest", *url]) == 0
        assert capsys.readouterr().out.startswith("two ")
        assert main(["requests", "--status", "6xx", *url]) == 2
        assert "status must be" in capsys.readouterr().err
        assert main(["requests", "--since", "5 minutes", *url]) == 2
        assert "--since" in capsys.readouterr().err


def test_requests_listing_fits_80_columns_and_has_no_control_characters() -> None:
    found = [RequestSummary("req_0123456789abcdef01234567", 1.8e9, 503, "failed", 61_234.5, "", "a-long-route-name", "up",
                            None, n_attempts=3, is_hedged=True),
             RequestSummary("a\x1b[31mb", 1.8e9, 200, "ok", 12.0, "", None, None, 3.0, model="m\x07")]
    lines = format_requests(found, TerminalStyle(is_on=False)).splitlines()
    assert max(map(len, lines)) <= 80
    assert all(line.isprintable() for line in lines)
    assert "failed 503" in lines[1]
    assert " 3h" in lines[1]
