"""The files of the page, from the package: bytes, compressed bytes, tags.

Names are listed once; a path that is not a listed name is unknown, so no path reaches outside of the folder. A file is read
and compressed at its first request and then held: about 0.3 MB in all.
"""

import gzip
import re
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).with_name("static")
INDEX = "index.html"
_MEDIA = {".html": "text/html; charset=utf-8", ".mjs": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8",
          ".svg": "image/svg+xml", ".txt": "text/plain; charset=utf-8"}
_VERSIONED = re.compile(r"vendor/[a-zA-Z-]+-\d+(?:\.\d+)+\.[a-z]+")  # a new version has a new name
_LEVEL = 6  # 9 takes twice the time for 1 % fewer bytes


class Asset(NamedTuple):
    """One file. The two tags differ: they stand for different bytes (RFC 9110, 8.8.3)."""

    media: str
    body: bytes
    body_gzip: bytes
    tag: bytes
    tag_gzip: bytes
    is_immutable: bool


class Assets:
    """All files of the page by their path below the folder, such as `views/now.mjs`."""

    __slots__ = ("_folder", "_loaded", "names")

    def __init__(self, folder: Path = FOLDER) -> None:
        self._folder = folder
        self._loaded: dict[str, Asset] = {}
        self.names = frozenset(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.suffix in _MEDIA)

    def get(self, name: str) -> Asset | None:
        """A file; None for an unknown name."""
        asset = self._loaded.get(name)
        if asset is None and name in self.names:
            asset = self._loaded[name] = load_asset(self._folder, name)
        return asset


def load_asset(folder: Path, name: str) -> Asset:
    """Read and compress a file. Raises OSError."""
    path = folder / name
    body = path.read_bytes()
    digest = sha256(body).hexdigest()[:20].encode()
    return Asset(_MEDIA[path.suffix], body, gzip.compress(body, _LEVEL, mtime=0), b'"%b"' % digest, b'"%b-gz"' % digest,
                 _VERSIONED.fullmatch(name) is not None)
