"""Hooks of mkdocs (mkdocs.yml): the pages are written for the repository, where a link may leave docs.

README becomes the first page, the other pages of the root are added by name. A link to any other file of the repository
leads to a copy of it under `files/`; one to a folder becomes plain text.
"""

import os
import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
PAGES = {"README.md": "index.md", **{page.name: page.name for page in ROOT.glob("*.md") if page.name != "README.md"}}
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
_FENCED = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
_EXTERNAL = ("http://", "https://", "mailto:", "#")


def site_path(target: str) -> str | None:
    """Where the site has a file of the repository; None for a folder."""
    if target in PAGES:
        return PAGES[target]
    if (ROOT / target).is_dir():
        return None
    return target.removeprefix("docs/") if target.startswith("docs/") else f"files/{target}"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the root, and the files to which pages link."""
    for name, path in PAGES.items():
        files.append(File.generated(config, path, content=(ROOT / name).read_text(encoding="utf-8")))
    for page in list(files.documentation_pages()):
        for target in sorted(linked_files(page)):
            path = f"files/{target}"
            if files.get_file_from_path(path) is None and (ROOT / target).is_file():
                files.append(File.generated(config, path, abs_src_path=str(ROOT / target)))
    return files


def linked_files(page: File) -> set[str]:
    """The files outside docs to which a page links, as paths in the repository."""
    places = (resolve(source_of(page.src_uri), link) for _, _, link in _LINK.findall(page.content_string)
              if not link.startswith(_EXTERNAL))
    return {path for path in places if path not in PAGES and not path.startswith(("docs/", ".."))}


def source_of(src_uri: str) -> str:
    """The path in the repository of a page of the site."""
    sources = {path: name for name, path in PAGES.items()}
    return sources.get(src_uri, f"docs/{src_uri}")


def resolve(source: str, link: str) -> str:
    """A relative link's target as a path in the repository."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(source), link.partition("#")[0]))


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite the links of a page."""
    source = source_of(page.file.src_uri)

    def rewrite(found: re.Match[str]) -> str:
        mark, text, link = found.groups()
        if link.startswith(_EXTERNAL):
            return found[0]
        path = site_path(resolve(source, link))
        if path is None:
            return text
        anchor = f"#{link.partition('#')[2]}" if "#" in link else ""
        return f"{mark}[{text}]({os.path.relpath(path, posixpath.dirname(page.file.src_uri) or '.')}{anchor})"

    return "".join(part if part.startswith("```") else _LINK.sub(rewrite, part) for part in _FENCED.split(markdown))
