"""Every provider of the table has its line, whose settings `stayfast check` accepts with the provider's variable set."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from stayfast.settings import HttpUpstream, SettingsText, load_settings
from stayfast.settings.providers import all_providers
from stayfast.wire.quirks import Quirk
from tests.docs.pages import ROOT

PAGE = (ROOT / "docs/providers.md").read_text(encoding="utf-8")
LINES = dict(re.findall(r"^\| `([\w-]+)` \| `(\{[^`]+\})` \|.*\| [dus] \|$", PAGE, re.MULTILINE))
QUIRK_LINE = re.compile(r"^\| `(\w+)` \| [^|]+\| [^|]+\| ?([^|]*) ?\|$", re.MULTILINE)
QUIRKS = {name: providers for name, providers in QUIRK_LINE.findall(PAGE) if name in list(Quirk)}
VARIABLES = {row.key_variable: "k" for row in all_providers().values() if row.key_variable}


def test_page_has_a_line_for_each_provider() -> None:
    assert list(LINES) == list(all_providers())


@pytest.mark.parametrize("name", LINES)
def test_line_of_provider_loads(name: str) -> None:
    """With its own variable only."""
    row = all_providers()[name]
    settings = load_settings(SettingsText("f.yaml", f"upstreams: {{a: {LINES[name]}}}\nroutes: {{m: [a]}}"),
                             {row.key_variable: "k"} if row.key_variable else {})
    upstream = settings.upstreams["a"]
    assert isinstance(upstream, HttpUpstream)
    assert upstream.provider == name


def test_lines_of_providers_pass_check(tmp_path: Path) -> None:
    file = tmp_path / "stayfast.yaml"
    upstreams = "".join(f"  {name}: {text}\n" for name, text in LINES.items())
    file.write_text(f"upstreams:\n{upstreams}routes: {{m: [{', '.join(LINES)}]}}\n")
    done = subprocess.run([sys.executable, "-m", "stayfast", "check", str(file)], env=VARIABLES,
                          capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_page_lists_the_quirks_of_the_table() -> None:
    found = {quirk.value: [name for name, row in all_providers().items() if quirk in row.quirks] for quirk in Quirk}
    listed = {name: providers.strip().split(", ") if providers.strip() else [] for name, providers in QUIRKS.items()}
    assert {name: sorted(names) for name, names in listed.items()} == {name: sorted(names) for name, names in found.items()}


def test_page_names_the_variables() -> None:
    """Those that are not NAME_API_KEY."""
    unusual = {row.key_variable for name, row in all_providers().items()
               if row.key_variable and not row.key_variable.startswith(name.split("-")[0].upper())}
    assert {variable for variable in unusual if f"${{{variable}}}" not in PAGE} == set()
