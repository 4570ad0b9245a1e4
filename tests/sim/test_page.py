"""docs/simulator.md says what there is."""

import re
from pathlib import Path

import pytest

from stayfast.cli.sim import format_presets, load_providers
from stayfast.lab.simulated import FaultKind, ProviderConfig
from tests.docs.pages import ROOT, blocks
from tests.sim.running import Sim

PAGE = ROOT / "docs" / "simulator.md"


def test_its_files_load(tmp_path: Path) -> None:
    """Every file of providers on the page."""
    files = list(blocks(PAGE, "yml"))
    assert files
    for text in files:
        path = tmp_path / "providers.yaml"
        path.write_text(text)
        assert load_providers(path, ProviderConfig())


def test_every_preset_stands_there_with_its_figures() -> None:
    """The table is what `--list-presets` prints."""
    rows = [line.replace("`", "").replace("|", " ").split() for line in PAGE.read_text().splitlines()
            if line.startswith("| `")]
    listed = [line.split() for line in format_presets().splitlines()[1:-1]]
    assert [row for row in rows if row[0] in {line[0] for line in listed}] == listed


def test_every_fault_stands_there() -> None:
    """Each kind, once, in the table of faults."""
    table = PAGE.read_text().partition("## Faults")[2].partition("## While it runs")[0]
    found = [kind for line in table.splitlines() if line.startswith("| `")
             for kind in re.findall(r"`(\w+)`", line.split("|")[1])]
    assert sorted(found) == sorted(FaultKind)


@pytest.mark.sockets
def test_every_control_endpoint_stands_there(sim: Sim) -> None:
    """Those on the page are there, and the simulator knows no others."""
    told = set(re.findall(r"\| `(?:GET|POST|DELETE) (/_sim/\w+)", PAGE.read_text()))
    known = set(re.findall(r"/_sim/\w+", sim.control("GET", "nothing")[1]["error"]["message"]))
    assert told == known
