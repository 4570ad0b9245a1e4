"""The pictures of docs/page.md are those of the script, small, and shown with their meaning in words."""

import re

from scripts.page_pictures import IMAGES, MAX_BYTES, SHOTS
from tests.docs.pages import ROOT

PAGE = ROOT / "docs" / "page.md"


def test_page_pictures_are_small_and_shown() -> None:
    """Each picture of the script once on the page, with a description; none that the script does not make."""
    shown = re.findall(r"!\[([^]]{20,})\]\(images/(page-[a-z-]+)\.png\)", PAGE.read_text(encoding="utf-8"))
    assert sorted(name for _, name in shown) == sorted(SHOTS) == sorted(path.stem for path in IMAGES.glob("page-*.png"))
    for name in SHOTS:
        data = (IMAGES / f"{name}.png").read_bytes()
        assert data.startswith(b"\x89PNG")
        assert 5_000 < len(data) <= MAX_BYTES
        assert int.from_bytes(data[16:20]) == SHOTS[name].width


def test_readme_shows_one_picture_of_the_page() -> None:
    """And links to the page of the docs."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(re.findall(r"\(docs/images/page-[a-z-]+\.png\)", readme)) == 1
    assert "(docs/page.md)" in readme
