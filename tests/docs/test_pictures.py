"""Each policy's page has the picture of what the policy does, and the script that drew it still does."""

import runpy
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tests.docs.pages import ROOT

IMAGES, CONCEPTS = ROOT / "docs" / "images", ROOT / "docs" / "concepts"
SCRIPT = ROOT / "scripts" / "pictures" / "run.py"
LONG = {"admission", "limits", "routing"}  # however few are asked: a peak and a warm-up have their time
SVG = "{http://www.w3.org/2000/svg}"


def drawn(folder: Path) -> dict[str, str]:
    """Titles of the pictures in a folder, by policy."""
    titles = {}
    for path in folder.glob("policy-*.svg"):
        root = ET.parse(path).getroot()
        assert root.tag == f"{SVG}svg"
        assert len(root.findall(f"{SVG}path[@class]")) == 2
        titles[path.stem.removeprefix("policy-")] = root.findtext(f"{SVG}title") or ""
    return titles


def test_policy_pages_have_picture_and_when_to_turn_off() -> None:
    """No picture without its page, and no page without what it needs beside it."""
    pages = {page.stem: page.read_text(encoding="utf-8") for page in CONCEPTS.glob("*.md")}
    shown = {name for name, text in pages.items() if "](../images/policy-" in text}
    assert shown == set(drawn(IMAGES))
    for name in shown:
        assert pages[name].count(f"](../images/policy-{name}.svg)\n") == 1
        assert "\n## When to turn it off\n" in pages[name]


def test_picture_script_draws_every_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pictures in docs are all of the script's, by name and title, and it draws them anew, from few requests."""
    monkeypatch.syspath_prepend(SCRIPT.parent)
    script = runpy.run_path(str(SCRIPT))
    titles = {name: scene.title for name, scene in script["SCENES"].items()}
    assert titles == drawn(IMAGES)
    for name in titles.keys() - LONG:
        script["write"](name, 150, 1, tmp_path)
    assert drawn(tmp_path) == {name: title for name, title in titles.items() if name not in LONG}
