"""What a semantic cache has learned, across restarts of a running gateway with the real embedder."""

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.flow.real_embedder import weights
from tests.server.gateway_process import Gateway, running, until

__all__ = ["weights"]
pytestmark = pytest.mark.sockets
SETTINGS = """\
upstreams: {model: {kind: simulated, script: steady}}
embedder: {cache_dir: "GRAPHS", state_dir: learned}
routes: {faq: {upstreams: [model], cache: {mode: semantic, audit_share: 0.001, max_temperature: 1}, budget: {cache: 3}}}
server: {drain_grace_s: 0}
"""


def ask(gateway: Gateway, number: int) -> None:
    """A new question."""
    body = json.dumps({"model": "faq", "messages": [
        {"role": "user", "content": f"Where is the oldest lighthouse of island {number}?"}]}).encode()
    gateway.post("/v1/chat/completions", body)


def n_entries(gateway: Gateway) -> float:
    """Questions known to the cache."""
    return gateway.count("stayfast_semantic_entries", route="faq")


def learn(gateway: Gateway, numbers: Iterator[int]) -> None:
    """Ask until a question is known: the embedder loads in the background."""
    def is_known() -> bool:
        ask(gateway, next(numbers))
        return n_entries(gateway) > 0

    until(is_known)


def test_semantic_cache_restart_restores_questions_and_sets_damaged_file_aside(tmp_path: Path,
                                                                             weights: tuple[object, Path]) -> None:
    """After a restart the questions are known. With a damaged file the gateway starts, logs that, and learns."""
    settings, numbers = SETTINGS.replace("GRAPHS", str(weights[1])), iter(range(10_000))
    with running(tmp_path, 1, settings) as gateway:
        learn(gateway, numbers)
        n_learned = n_entries(gateway)
    (file,) = (tmp_path / "learned").glob("*.learned")
    assert file.stat().st_mode & 0o077 == 0
    with running(tmp_path, 1, settings) as gateway:
        until(lambda: n_entries(gateway) >= n_learned)
        assert gateway.log("semantic_state_unreadable") == []
    file.write_bytes(b"damaged" * 1000)
    with running(tmp_path, 1, settings) as gateway:
        learn(gateway, numbers)
        (line,) = gateway.log("semantic_state_unreadable")
        assert str(line["detail"]).endswith(f"renamed to learned/{file.name}.damaged")
    assert file.with_name(f"{file.name}.damaged").read_bytes() == b"damaged" * 1000
    with running(tmp_path, 1, settings) as gateway:
        until(lambda: n_entries(gateway) > 0)


def test_semantic_cache_restart_drops_entries_of_another_version(tmp_path: Path, weights: tuple[object, Path]) -> None:
    """They are deleted before they are read, and the file is not damaged."""
    settings, numbers = SETTINGS.replace("GRAPHS", str(weights[1])), iter(range(10_000))
    with running(tmp_path, 1, settings) as gateway:
        learn(gateway, numbers)
    (file,) = (tmp_path / "learned").glob("*.learned")
    old = sqlite3.connect(file)
    with old:
        old.execute("UPDATE embedder SET id = substr(id, instr(id, ' ') + 1)")  # as before there were versions
        old.execute("UPDATE labels SET body = ?", (b"old",))
    old.close()
    with running(tmp_path, 1, settings) as gateway:
        learn(gateway, numbers)
        assert gateway.log("semantic_state_unreadable") == []
    assert not file.with_name(f"{file.name}.damaged").exists()
