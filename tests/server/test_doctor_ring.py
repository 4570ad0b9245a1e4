"""`stayfast doctor --since` over a gateway with its own ring of snapshots."""

import time
from pathlib import Path

import pytest

from stayfast.cli import main
from stayfast.core.snapshot import Snapshot, StoreRow
from stayfast.observe.snapshot.config import SnapshotsConfig
from stayfast.observe.snapshot.ring import RingRecord, SnapshotRing
from tests.server.gateway_process import running

SETTINGS = """\
upstreams: {sim: {kind: simulated, script: steady}}
routes: {m: [sim]}
server: {drain_grace_s: 0}
snapshots: {path: ring}
"""
DOWN = StoreRow("shared", "redis", ("cache",), is_open=False, why_not="connection refused")


def test_doctor_since_lists_what_the_ring_has_and_what_has_ended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Ten minutes of records from before the start, with a store that was down."""
    now = time.time()
    ring = SnapshotRing(tmp_path / "ring", SnapshotsConfig())
    for second in range(600, 300, -5):
        state = Snapshot(now - second, "lab", stores=(DOWN,)) if second % 60 == 0 else None
        ring.append(RingRecord(now - second, state=state))
    with running(tmp_path, 1, SETTINGS) as gateway:
        gateway.ask("r1")
        assert main(["doctor", gateway.url, "--since", "30m"]) == 0
        printed = capsys.readouterr().out
        assert "and not now:" in printed
        assert "store.down  store shared" in printed


def test_doctor_since_without_a_ring_names_the_setting(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with running(tmp_path, 1, SETTINGS.replace("{path: ring}", "{hours: 0}")) as gateway:
        gateway.ask("r1")
        assert main(["doctor", gateway.url, "--since", "30m"]) == 2
        assert "Set snapshots.path" in capsys.readouterr().err
