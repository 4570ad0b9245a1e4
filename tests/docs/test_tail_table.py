"""The script of README's picture and table runs, and sets its rivals as the table says."""

import json
import subprocess
import sys
from pathlib import Path
from random import Random
from xml.etree import ElementTree as ET

import pytest

from scripts.bench.tail_table import N_TRIES, SDK, STAYFAST, TIMEOUT_S, Contender, draw, litellm_config
from tests.docs.pages import ROOT

PICTURE = ROOT / "docs" / "images" / "tail.svg"
TITLE = "{http://www.w3.org/2000/svg}title"


def test_picture_of_readme_is_of_the_script() -> None:
    """README shows it once; the script draws one with the same title."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert readme.count("](docs/images/tail.svg)") == 1
    assert "scripts.bench.tail_table" in readme
    rng = Random(1)
    drawn = draw([Contender(name, "", "", [rng.expovariate(1) for _ in range(200)]) for name in (SDK, STAYFAST)], ["note"])
    assert ET.fromstring(drawn).findtext(TITLE) == ET.parse(PICTURE).getroot().findtext(TITLE)


def test_rival_settings_are_the_tuned_ones() -> None:
    """LiteLLM gets as many tries as the others, and never takes a deployment out."""
    settings = json.loads(litellm_config([]))
    assert settings["router_settings"]["num_retries"] == N_TRIES - 1
    assert settings["router_settings"]["disable_cooldowns"]
    assert settings["model_list"] == []
    assert TIMEOUT_S == 0.5


@pytest.mark.sockets
@pytest.mark.serial
def test_tail_table_short_run_prints_every_row(tmp_path: Path) -> None:
    """Two seconds each, without LiteLLM."""
    picture = tmp_path / "tail.svg"
    command = [sys.executable, "-m", "scripts.bench.tail_table", "--seconds", "2", "--warmup", "0.5", "--rounds", "1",
               "--instant", "1", "--out", str(picture)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr
    rows = [line.split(" | ")[0] for line in ran.stdout.splitlines() if line.startswith("| ")]
    assert {"| sdk", "| sdk tuned", "| stayfast"} <= set(rows)
    assert ET.parse(picture).getroot().findtext(TITLE)
