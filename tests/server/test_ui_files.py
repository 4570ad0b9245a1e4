"""The files of the page: what is served, with which headers, and that they are in the wheel."""

import gzip
import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import uvloop

from stayfast.server.config import ServerConfig
from stayfast.server.ui.assets import FOLDER, Assets
from tests.server.fakes import Client, FakeBackend, Running, get, serving

pytestmark = pytest.mark.sockets

ROOT = Path(__file__).parents[2]
MODULE_PATH = re.compile(r'(?:from|import)\s*\(?"(\.[^"]+)"')


async def fetch(running: Running, path: str, *lines: str, method: str = "GET") -> tuple[int, dict[str, str], bytes]:
    client: Client = await running.connect()
    client.send(get(path, *lines, method=method))
    return await client.answer()


def imported_by(name: str) -> set[str]:
    """The files that a module imports as it loads or later, by their names below the folder."""
    path = FOLDER / name
    return {path.parent.joinpath(one).resolve().relative_to(FOLDER).as_posix()
            for one in MODULE_PATH.findall(path.read_text(encoding="utf-8"))}


def test_page_has_its_policy_and_is_validated_by_its_tag() -> None:
    """A policy without exceptions; no answer to a matching tag has a body; compressed and plain bytes have two tags."""

    async def main() -> None:
        async with serving() as running:
            status, headers, body = await fetch(running, "/ui")
            assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
            assert headers["cache-control"] == "no-cache"
            assert headers["content-security-policy"] == (
                "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
                "base-uri 'none'; form-action 'self'; frame-ancestors 'none'")
            assert (headers["x-content-type-options"], headers["referrer-policy"]) == ("nosniff", "no-referrer")
            packed_status, packed, packed_body = await fetch(running, "/ui", "accept-encoding: br, gzip;q=0.5")
            assert (packed_status, packed["content-encoding"], gzip.decompress(packed_body)) == (200, "gzip", body)
            assert packed["etag"] != headers["etag"]
            assert packed["vary"] == "accept-encoding"
            for tag, lines in ((headers["etag"], ()), (packed["etag"], ("accept-encoding: gzip",)),
                               (f'W/{headers["etag"]}, "x"', ())):
                client = await running.connect()
                client.send(get("/ui", f"if-none-match: {tag}", *lines))
                head = await client.until(b"\r\n\r\n")
                assert head.startswith(b"HTTP/1.1 304 ")
            refused = await fetch(running, "/ui", "accept-encoding: gzip;q=0")
            assert "content-encoding" not in refused[1]

    uvloop.run(main())


def test_libraries_are_cached_for_ever_and_own_files_never_without_a_question() -> None:
    async def main() -> None:
        async with serving() as running:
            for name in sorted(Assets().names - {"index.html"}):
                status, headers, body = await fetch(running, f"/ui/{name}")
                assert (status, body) == (200, (FOLDER / name).read_bytes())
                assert ("immutable" in headers["cache-control"]) == name.startswith("vendor/"), name
                assert headers["content-type"].split(";")[0] in (
                    "text/javascript", "text/css", "image/svg+xml", "text/plain"), name

    uvloop.run(main())


@pytest.mark.parametrize("path", [
    "/ui/none.mjs", "/ui/index.html", "/ui/../server/auth.py", "/ui/%2e%2e/%2e%2e/auth.py", "/ui//etc/passwd", "/ui/vendor",
    "/ui/views/", "/uix"])
def test_unknown_paths_of_the_page_are_not_found(path: str) -> None:
    """No path reaches a file outside of the folder."""

    async def main() -> None:
        async with serving() as running:
            status, _, body = await fetch(running, path)
            assert (status, json.loads(body)["error"]["code"]) == (404, "not_found")

    uvloop.run(main())


def test_page_takes_reads_only_and_redirects_its_slash() -> None:
    """405 as everywhere else; HEAD has no body; relative paths of the page are those of `/ui`, without a slash."""

    async def main() -> None:
        async with serving() as running:
            for path, method in (("/ui", "POST"), ("/ui/app.mjs", "DELETE"), ("/ui/login", "GET"), ("/ui/session", "POST")):
                status, headers, body = await fetch(running, path, method=method)
                assert (status, json.loads(body)["error"]["code"]) == (405, "method_not_allowed")
                assert headers["allow"] == ("POST" if path == "/ui/login" else "GET, HEAD")
            client = await running.connect()
            client.send(get("/ui", method="HEAD"))
            assert b"content-length: " in await client.until(b"\r\n\r\n")
            status, headers, _ = await fetch(running, "/ui/")
            assert (status, headers["location"]) == (308, "../ui")

    uvloop.run(main())


def test_page_that_is_off_is_unknown() -> None:
    """With `server.ui: off` no path of it exists, and no cookie is accepted."""

    async def main() -> None:
        async with serving(FakeBackend(ServerConfig(port=0, ui="off"))) as running:
            for path in ("/ui", "/ui/app.mjs", "/ui/session"):
                assert (await fetch(running, path))[0] == 404

    uvloop.run(main())


def test_page_without_keys_serves_names_of_this_machine_only() -> None:
    """As all endpoints without keys: a foreign host name is refused, against DNS rebinding."""

    async def main() -> None:
        async with serving() as running:
            client = await running.connect()
            client.send(b"GET /ui HTTP/1.1\r\nhost: evil.example\r\n\r\n")
            status, _, body = await client.answer()
            assert (status, json.loads(body)["error"]["code"]) == (403, "foreign_host")

    uvloop.run(main())


def test_page_has_nothing_inline_and_names_files_that_exist() -> None:
    """The policy forbids inline scripts and styles, so one would not run; a module that is needed at once is preloaded."""
    page = (FOLDER / "index.html").read_text(encoding="utf-8")
    assert re.findall(r"<style|\sstyle=|\son[a-z]+=|<script(?![^>]*\ssrc=)|//[a-z]", page) == []
    named = set(re.findall(r'(?:src|href)="ui/([^"]+)"', page))
    assert named <= Assets().names
    needed, queue = set[str](), ["boot.mjs", "app.mjs"]  # the first imports the second when the page is painted
    while queue:
        name = queue.pop()
        needed.add(name)
        eager = {one for one in imported_by(name) if f'import("./{one}")' not in (FOLDER / name).read_text(encoding="utf-8")}
        queue += eager - needed
    assert needed == {name for name in named if name.endswith(".mjs")}


def test_modules_import_files_that_exist() -> None:
    """Relative paths only: there is no import map and no other origin."""
    for path in sorted(FOLDER.rglob("*.mjs")):
        name = path.relative_to(FOLDER).as_posix()
        assert imported_by(name) <= Assets().names, name
        bare = re.findall(r'(?:\bfrom|\bimport)\s*"[^."][^"]*"', path.read_text(encoding="utf-8"))
        assert bare == [], name


def test_each_library_has_its_licence() -> None:
    names = {path.name for path in (FOLDER / "vendor").iterdir()}
    lock = json.loads((ROOT / "scripts/vendor/package-lock.json").read_text(encoding="utf-8"))["packages"]
    for path, package in lock.items():
        if path:
            name = path.removeprefix("node_modules/")
            assert f"{name}-LICENSE-{package['version']}.txt" in names
            assert package["integrity"].startswith("sha512-")
            assert any(one.startswith(name) and package["version"] in one and one.endswith(".mjs") for one in names)


def test_wheel_has_every_file_of_the_page(tmp_path: Path) -> None:
    """A gateway from the package index serves the page too."""
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)], cwd=ROOT, check=True,
                   capture_output=True, timeout=120)
    [wheel] = tmp_path.glob("*.whl")
    prefix = "stayfast/server/ui/static/"
    with zipfile.ZipFile(wheel) as archive:
        packed = {name.removeprefix(prefix): archive.read(name) for name in archive.namelist() if name.startswith(prefix)}
    assert packed == {path.relative_to(FOLDER).as_posix(): path.read_bytes() for path in FOLDER.rglob("*") if path.is_file()}


def test_first_load_is_small() -> None:
    """What a browser loads before the first figures: at most 40 kB compressed, libraries included."""
    page = (FOLDER / "index.html").read_text(encoding="utf-8")
    assets = Assets()
    loaded = [assets.get(name) for name in ("index.html", "views/now.mjs", "heat.mjs",
                                            *re.findall(r'(?:src|href)="ui/([^"]+)"', page))]
    assert sum(len(asset.body_gzip) for asset in loaded if asset is not None) <= 40_000
