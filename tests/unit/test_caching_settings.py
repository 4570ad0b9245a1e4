"""Settings of caches that contradict each other, have no effect, or name missing files."""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from stayfast.cli import main
from stayfast.core.clock import SystemClock
from stayfast.lab.simulated.settings import KINDS
from stayfast.settings import Settings, SettingsError, SettingsText, find_unusable_files, load_settings
from stayfast.stores.base import Get
from stayfast.stores.sqlite import SqliteBackend

TEXT = "upstreams: {u: {kind: simulated}}\nroutes: {m: {upstreams: [u], cache: {CACHE}}}\n"


def read(cache: str, more: str = "", variables: dict[str, str] | None = None) -> Settings:
    """The settings of a route with this cache."""
    return load_settings(SettingsText("f.yaml", TEXT.replace("CACHE", cache) + more), variables or {}, kinds=KINDS)


@pytest.mark.parametrize(("cache", "where", "message"), [
    ("mode: semantic, threshold: 0.9, max_error: 1%", "f.yaml:2:81: routes.m.cache.max_error", "together with threshold"),
    ("mode: semantic, threshold: 0.9, min_labels: 100", "routes.m.cache.min_labels", "together with threshold"),
    ("ttl_s: 60", "routes.m.cache.ttl_s", "without a mode: add mode: exact or mode: semantic"),
    ("max_error: 1%", "routes.m.cache.max_error", "without a mode"),
    ("mode: exact, max_bytes: 5000", "routes.m.cache.max_answer_bytes", "at most max_bytes (5000), not 1048576"),
])
def test_cache_setting_without_effect_is_refused(cache: str, where: str, message: str) -> None:
    """By its name, where it stands, with what to write instead."""
    with pytest.raises(SettingsError) as refused:
        read(cache)
    (problem,) = refused.value.problems
    assert where in str(problem)
    assert message in str(problem)


@pytest.mark.parametrize("cache", [
    "mode: semantic, threshold: null, max_error: 1%", "mode: semantic, threshold: 0.9, audit_share: 0.1",
    "mode: off, ttl_s: 60",
    ""])
def test_cache_setting_with_effect_is_accepted(cache: str) -> None:
    """null is none; and with the mode off the rest is kept for later."""
    assert read(cache).routes["m"].cache.mode in ("off", "semantic")


def _other_database(path: Path) -> None:
    with closing(sqlite3.connect(path)) as file:
        file.execute("CREATE TABLE orders (n INTEGER)")


async def _create_store(path: Path) -> None:
    backend = SqliteBackend(path, 1 << 20, SystemClock())
    await backend.execute([Get(bytes(32))])
    await backend.close()


def _folder_of_a_model(path: Path) -> None:
    path.mkdir()
    (path / "model.onnx").touch()


@pytest.mark.parametrize(("make", "why"), [
    (lambda path: path.write_text("my notes, of more than a page " * 100), "file is not a database"),
    (_other_database, "not a store of Stayfast"), (Path.mkdir, "is a folder")])
def test_sqlite_invalid_file_is_reported(make: object, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`check` says so, exit status 1, and changes nothing in it; a gateway starts all the same."""
    path = tmp_path / "a.db"
    assert callable(make)
    make(path)
    text = f"stores: {{s: {{kind: sqlite, path: {path}}}}}\n"
    before = path.read_bytes() if path.is_file() else b""
    (wrong,) = find_unusable_files(read("mode: exact, store: s", text))
    assert wrong == f'stores.s.path: "{path}": {wrong.rpartition(": ")[2]}'
    assert why in wrong
    file = tmp_path / "f.yaml"
    file.write_text(TEXT.replace("CACHE", "mode: exact, store: s") + text)
    assert main(["check", str(file)]) == 1
    assert capsys.readouterr().err == f"{file}: {wrong}\n"
    assert main(["serve", "--check", "--config", str(file)]) == 78
    assert (path.read_bytes() if path.is_file() else b"") == before


def test_sqlite_store_valid_or_missing_file_is_accepted(tmp_path: Path) -> None:
    """None at all, an empty one, and one that is in use."""
    path = tmp_path / "a.db"
    its = read("mode: exact, store: s", f"stores: {{s: {{kind: sqlite, path: {path}}}}}\n")
    assert find_unusable_files(its) == []
    assert not path.exists()
    path.touch()
    assert find_unusable_files(its) == []
    asyncio.run(_create_store(path))
    with closing(sqlite3.connect(path, isolation_level=None)) as file:
        file.execute("BEGIN EXCLUSIVE")
        assert find_unusable_files(its) == []
    assert find_unusable_files(its) == []


@pytest.mark.parametrize(("make", "why"), [
    (lambda path: None, "no such file or folder"), (Path.mkdir, "no model.onnx or model.safetensors in this folder"),
    (Path.touch, "no tokenizer.json in the folder of this file"), (_folder_of_a_model, "no tokenizer.json in this folder")])
def test_embedder_missing_files_are_reported(make: object, why: str, tmp_path: Path) -> None:
    """As it would be looked for when the gateway starts."""
    path = tmp_path / "models" / "mine"
    path.parent.mkdir()
    assert callable(make)
    make(path)
    its = read("mode: semantic, max_error: 1%", f"embedder: {{model: {path}}}\n")
    (wrong,) = find_unusable_files(its)
    assert wrong.startswith(f'embedder.model: "{path}": ')
    assert why in wrong
    folder = path if path.is_dir() else path.parent
    for name in ("mine", "model.onnx", "tokenizer.json"):
        (folder / name).touch()
    assert find_unusable_files(its) == []
