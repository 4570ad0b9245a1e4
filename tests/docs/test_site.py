"""The docs as a site: `make site` builds without a warning, each page has one place, nothing comes from elsewhere."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

SECTIONS = ["Start", "Connect", "Make it fast", "Run it", "Reference"]
FROM_ELSEWHERE = re.compile(r"<(?:script|img|iframe|source)\b[^>]*\bsrc=[\"']?(?:https?:)?//[^\s>]*"
                            r"|<link\b(?=[^>]*stylesheet)[^>]*href=[\"']?(?:https?:)?//[^\s>]*|@import[^;]*//[^;]*")
LINK = re.compile(r"href=[\"']?([^\s\"'>#]+\.(?:html|yaml|py))")


def site_command() -> list[str]:
    """The recipe of `make site`."""
    recipe = re.findall(r"^site:.*\n\t(.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert len(recipe) == 1
    return shlex.split(recipe[0].replace("$(BIN)", str(Path(sys.executable).parent)))


def build(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run that recipe into another folder."""
    command = ["env", *site_command(), "--site-dir", str(folder)]
    assert "--strict" in command
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False, env=dict(os.environ))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    built = build(folder)
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


def places() -> list[str]:
    """The pages in the site's order."""
    return re.findall(r"(\S+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8").split("\nnav:")[1], re.MULTILINE)


def test_nav_every_page_has_one_place() -> None:
    """A new page gets a line in mkdocs.yml, and in README's table."""
    pages = [str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")]
    in_nav = [place for place in places() if place not in ("index.md", *(page.name for page in ROOT.glob("*.md")))]
    assert sorted(in_nav) == sorted(pages)


def test_nav_and_readme_have_the_same_sections() -> None:
    """In one order: README's table of pages has a row for each, and every link of a row is in that section."""
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").split("\nnav:")[1]
    sections = re.split(r"^  - ([A-Z].*):$", nav, flags=re.MULTILINE)
    of_section = dict(zip(sections[1::2], sections[2::2], strict=True))
    rows = re.findall(r"^\| ([^|]+) \| (.*) \|$", (ROOT / "README.md").read_text(encoding="utf-8").split(
        "## Documentation")[1], re.MULTILINE)[1:]
    assert list(of_section) == SECTIONS == [name for name, _ in rows]
    for name, links in rows:
        for link in re.findall(r"\]\((?:docs/)?([^)#]+\.md)", links):
            assert f" {link}\n" in of_section[name] + "\n", f"{link} is not in {name}"


def test_site_built_is_searchable_and_whole(site: Path) -> None:
    """README is the first page; the search index has every page; a link out of docs leads to a page or a copy."""
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    found = {entry["location"].partition("#")[0] for entry in index["docs"]}
    assert {place.replace(".md", ".html") for place in places()} <= {location or "index.html" for location in found}
    first = (site / "index.html").read_text(encoding="utf-8")
    assert "id=documentation" in first.replace('"', "")
    for page in site.rglob("*.html"):
        for link in LINK.findall(page.read_text(encoding="utf-8")) if page.name != "404.html" else []:
            assert "://" in link or (page.parent / link).exists(), f"{page.relative_to(site)}: {link}"


def test_site_built_fetches_nothing_from_elsewhere(site: Path) -> None:
    """No script, style, font or picture of another host."""
    for path in [*site.rglob("*.html"), *site.rglob("*.css")]:
        assert FROM_ELSEWHERE.findall(path.read_text(encoding="utf-8")) == [], path


def test_site_broken_link_fails_the_build(tmp_path: Path) -> None:
    """Strict: a page with a link to a page or a heading that does not exist."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("# A\n\n[b](#nothing)\n")
    settings = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").split("\nnav:")[0].replace("hooks:", "#")
    (tmp_path / "mkdocs.yml").write_text(f"{settings}\nnav: [index.md]\n")
    broken = subprocess.run(["env", *site_command()], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert broken.returncode != 0
    assert "nothing" in broken.stdout + broken.stderr
