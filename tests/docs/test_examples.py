"""What the pages tell people to type, write and follow is there and works."""

import re
import shlex
from pathlib import Path

import pytest

from stayfast.cli import _parser
from stayfast.lab.simulated.settings import KINDS
from stayfast.settings import BUILT_IN, SettingsText, load_settings
from tests.docs.pages import ROOT, anchors, blocks, pages, prose, spans, variables_for

PAGES = [pytest.param(page, id=str(page.relative_to(ROOT))) for page in pages()]
LINK = re.compile(r"\]\(([^)\s]+)\)")
COMMAND = re.compile(r"(?:^|[;&(] *)(?:\S*/)?stayfast ([a-z-][^&|;#`]*)")
TARGET = re.compile(r"(?:^|[;&] *)make ([a-z]+)")


def typed(page: Path) -> list[str]:
    """Lines of shell blocks and code in sentences."""
    return [line for block in blocks(page, "sh", "console") for line in block.replace("\\\n", "").splitlines()] + spans(page)


@pytest.mark.parametrize("page", PAGES)
def test_settings_load(page: Path) -> None:
    """Every YAML example is a settings file without a mistake, or a part of one."""
    for text in blocks(page, "yaml"):
        load_settings(SettingsText(BUILT_IN, text), variables_for(text), check_engine=lambda _: None,
                      check_turn=lambda _: None, check_hook=lambda _: None,
             kinds=KINDS)


@pytest.mark.parametrize("page", PAGES)
def test_commands_exist(page: Path) -> None:
    """Every `stayfast ...` has a command, flags and arguments that its parser takes, every `make ...` a target."""
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    for line in typed(page):
        for command in COMMAND.findall(re.sub(r" > \S+", "", line)):
            _parser().parse_args(shlex.split(command.replace("...", "")))
        assert [target for target in TARGET.findall(line) if target not in targets] == []


def test_make_lists_its_commands_in_80_columns() -> None:
    """As the recipe of `help` prints them."""
    listed = re.findall(r"^([a-z]+):.*## (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert listed
    assert [target for target, told in listed if len(f"  make {target:8} {told}") > 80] == []


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: Path) -> None:
    """Every relative link leads to a file, every #anchor to a heading of it."""
    for link in LINK.findall(prose(page)):
        if link.startswith(("http://", "https://", "mailto:")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{link} leads nowhere"
        assert not anchor or anchor in anchors(target), f"{link}: there is no such heading"


def test_a_wrong_page_is_found(tmp_path: Path) -> None:
    """The tests above see a setting, a command and a link that do not exist."""
    page = tmp_path / "page.md"
    page.write_text("# A\n[b](c.md) `stayfast nonsense`\n```yaml\nrouts: {}\n```\n")
    with pytest.raises(ValueError, match="routs"):
        test_settings_load(page)
    with pytest.raises(SystemExit):
        test_commands_exist(page)
    with pytest.raises(AssertionError, match="leads nowhere"):
        test_links_lead_somewhere(page)
