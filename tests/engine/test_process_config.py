"""The engine's arithmetic and checks: no process, no socket."""

import json
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.engine.config import TINY_PATH, EngineConfig
from stayfast.engine.fit import EngineFit, check_runnable
from stayfast.engine.machine import n_cores
from stayfast.engine.process import StderrTail, child_command
from stayfast.policy.engines.sizing import EngineSize, ModelShape
from tests.engine.random_gguf import write_random_gguf

CRASH = "/src/ggml.c:123: GGML_ASSERT(n_tokens <= n_batch) failed"


@pytest.mark.parametrize(("field", "value", "says"), [
    ("model", "", "model must be"), ("n_threads", -1, "n_threads must be from 0 to 512"),
    ("n_slots", 0, "n_slots must be auto or a whole number from 1"),
    ("ctx_per_slot", 10, "ctx_per_slot must be auto or a whole number from 64"),
    ("port", 80, "port must be 0"), ("port", 70_000, "port must be from 0"),
    ("prompt_cache_mib", -1, "prompt_cache_mib must be from 0"), ("ready_timeout_s", 0.0, "ready_timeout_s must be more"),
    ("restart_base_s", 31.0, "restart_base_s must be at most restart_cap_s"),
    ("healthy_after_s", -1.0, "healthy_after_s must be at least 0"),
])
def test_engine_config_out_of_bounds_is_rejected(field: str, value: Any, says: str) -> None:
    """Every range is checked, and the message names the field."""
    with pytest.raises(ValueError, match=says):
        EngineConfig(**{field: value})


def test_engine_config_tiny_is_packaged_model() -> None:
    """The default needs no path."""
    assert EngineConfig().model_path == TINY_PATH
    assert TINY_PATH.parent.is_dir()


@pytest.mark.parametrize(("content", "says"), [
    (None, "model.gguf' cannot be read: No such file or directory"), (b"", "is not a GGUF file"),
    (b"PK\3\4 a zip", "is not a GGUF file"),
])
def test_check_runnable_other_file_is_rejected(tmp_path: Path, content: bytes | None, says: str) -> None:
    """The first bytes decide, before any process is made."""
    path = tmp_path / "model.gguf"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=says):
        check_runnable(EngineConfig(model=str(path)))


def test_check_runnable_folder_is_rejected(tmp_path: Path) -> None:
    """A folder or a pipe is refused without being opened."""
    with pytest.raises(ValueError, match="is not a file"):
        check_runnable(EngineConfig(model=str(tmp_path)))


def test_check_runnable_accepts_whole_gguf_file_only(tmp_path: Path) -> None:
    """A file that was copied in part is found before llama.cpp reads it."""
    path = write_random_gguf(tmp_path / "model.gguf")
    check_runnable(EngineConfig(model=str(path)))
    data = path.read_bytes()
    for size, says in ((len(data) - 4096, "is truncated: it has"), (40_000, "is truncated"), (200, "is damaged")):
        path.write_bytes(data[:size])
        with pytest.raises(ValueError, match=says):
            check_runnable(EngineConfig(model=str(path)))


def test_check_runnable_too_large_context_is_refused_with_what_to_change(tmp_path: Path) -> None:
    path = write_random_gguf(tmp_path / "model.gguf")
    with pytest.raises(ValueError, match=r"needs .* GiB .* are usable: take one of n_slots: \d+; ctx_per_slot: \d+"):
        check_runnable(EngineConfig(model=str(path), n_slots=256, ctx_per_slot=1_048_576))


def test_check_runnable_quantised_cache_of_odd_heads_is_refused(tmp_path: Path) -> None:
    """ggml's blocks hold 32 values."""
    path = write_random_gguf(tmp_path / "model.gguf", n_embd=64)
    with pytest.raises(ValueError, match="cache_type_v must be f16 for this model: its heads have 16 values"):
        check_runnable(EngineConfig(model=str(path), cache_type_v="q8_0"))


def test_check_runnable_missing_runtime_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the extra, the message says what to install."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install '\.\[embedded\]'"):
        check_runnable(EngineConfig())


def test_engine_command_leaves_one_core() -> None:
    """The child is told everything on its command line, with threads counted out."""
    *start, launch = child_command(EngineConfig(model="/m.gguf"), 23_456, EngineFit(
        ModelShape("m", 1, 1, 1, 32), EngineConfig().wanted_size, EngineSize(3, 2048, 1.0, 1.0, 1.0, 1.0, None)))
    assert start == [sys.executable, "-P", "-m", "stayfast.engine.child"]
    assert json.loads(launch) == {"model": "/m.gguf", "host": "127.0.0.1", "port": 23_456, "n_slots": 3,
                                  "n_threads": max(1, n_cores() - 1), "ctx_per_slot": 2048, "prompt_cache_mib": 256,
                                  "temperature": None, "alias": "m", "task": "generate", "pooling": "last",
                                  "cache_type_k": "f16", "cache_type_v": "f16", "slots_folder": None,
                                  "speculation": None}


def test_engine_tiny_model_has_low_temperature() -> None:
    """Only the shipped model gets a temperature of its own; any other has llama.cpp's."""
    *_, launch = child_command(EngineConfig(), 23_456)
    assert json.loads(launch)["temperature"] == 0.1


def test_last_words_cause_is_first_error() -> None:
    """llama.cpp follows an error with its echoes; a Python traceback ends with its cause."""
    words = StderrTail()
    words.feed(b"0.00.004.021 E gguf_init: version 9 is not supported\n0.00.004.035 E failed to load\n")
    assert words.likely_cause() == "gguf_init: version 9 is not supported"
    words = StderrTail()
    words.feed(b"Traceback:\nImportError: libgomp.so.1\n")
    assert words.likely_cause() == "ImportError: libgomp.so.1"
    assert StderrTail().likely_cause() is None


def test_last_words_while_serving_keeps_crash_messages_only() -> None:
    """What was said before is forgotten, what quotes a request is never taken."""
    words = StderrTail()
    words.feed(b"loading\nhalf a li")
    words.begin_serving()
    words.feed(f"ne\nroot ::= my secret\n{CRASH}\nparse: {CRASH}\n".encode())
    assert words.lines() == (CRASH,)


@given(st.lists(st.binary(max_size=60), max_size=8), st.lists(st.integers(0, 500), max_size=6))
def test_last_words_do_not_depend_on_splits(lines: list[bytes], cuts: list[int]) -> None:
    """The same lines come out of the same bytes, however a pipe delivers them."""
    data = b"".join(line + b"\n" for line in lines)
    whole, cut = StderrTail(), StderrTail()
    whole.feed(data)
    edges = [0, *sorted(min(at, len(data)) for at in cuts), len(data)]
    for start, end in pairwise(edges):
        cut.feed(data[start:end])
    assert cut.lines() == whole.lines()


def test_last_words_long_lines_are_truncated() -> None:
    """A line without end costs no memory."""
    words = StderrTail()
    for _ in range(100):
        words.feed(b"x" * 1000)
    words.feed(b"\n")
    assert [len(line) for line in words.lines()] == [400]
