"""docs/simulator.md lists everything that exists."""

import re
from pathlib import Path

import pytest

from stayfast.cli.sim import format_presets, load_providers
from stayfast.lab.simulated import FaultKind, ProviderConfig
from tests.docs.pages import ROOT, blocks
from tests.sim.running import Sim

PAGE = ROOT / "docs" / "simulator.md"


def test_simulator_page_files_load(tmp_path: Path) -> None:
    files = list(blocks(PAGE, "yml"))
    assert files
    for text in files:
        path = tmp_path / "providers.yaml"
        path.write_text(text)
        assert load_providers(path, ProviderConfig())


def test_simulator_page_has_every_preset_with_its_figures() -> None:
    rows = [line.replace("`", "").replace("|", " ").split() for line in PAGE.read_text().splitlines()
            if line.startswith("| `")]
    listed = [line.split() for line in format_presets().splitlines()[1:-1]]
    assert [row for row in rows if row[0] in {line[0] for line in listed}] == listed


def test_simulator_page_has_every_fault() -> None:
    table = PAGE.read_text().partition("## Faults")[2].partition("## While it runs")[0]
    found = [kind for line in table.splitlines() if line.startswith("| `")
             for kind in re.findall(r"`(\w+)`", line.split("|")[1])]
    assert sorted(found) == sorted(FaultKind)


@pytest.mark.sockets
def test_simulator_page_has_every_control_endpoint(sim: Sim) -> None:
    told = set(re.findall(r"\| `(?:GET|POST|DELETE) (/_sim/\w+)", PAGE.read_text()))
    known = set(re.findall(r"/_sim/\w+", sim.control("GET", "nothing")[1]["error"]["message"]))
    assert told == known
