"""How many files of the package one warm streamed request runs through, from first byte to last, and how many calls."""

import asyncio
import importlib.util
from collections import Counter
from pathlib import Path
from types import CodeType, ModuleType

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts/request_path.py"  # a gateway and an upstream over loopback, in this process
# A change may lower a figure, never raise one. Routing by cost has three more nouns: rate, cost and belief (decision 0034).
MAX_PLAIN, MAX_WITH_POLICIES = 45, 65
MAX_CALLS_PLAIN, MAX_CALLS_WITH_POLICIES = 318, 600  # 301 and 571 (decision 0042); the rest is room
MAX_STORY = 13  # of the pipeline, in a plain request; times to the first token are looked up by model, in hedge_plans


def request_path() -> ModuleType:
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("request_path", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def files_of(calls: Counter[CodeType]) -> set[str]:
    """The files whose functions ran."""
    return {code.co_filename for code in calls}


@pytest.mark.sockets
def test_plain_request_runs_through_few_files() -> None:
    """No policy on: each file is one that a reader of the path has to open."""
    calls = asyncio.run(request_path().count("", "a", ""))
    files = files_of(calls)
    assert len(files) <= MAX_PLAIN, sorted(files)
    assert len([name for name in files if "/pipeline/" in name]) <= MAX_STORY, sorted(files)
    assert calls.total() <= MAX_CALLS_PLAIN


@pytest.mark.sockets
def test_request_with_policies_runs_through_few_files() -> None:
    """Cache (a miss), admission, affinity and ejection on."""
    path = request_path()
    calls = asyncio.run(path.count(path.ADMISSION, "a, b", path.FULL))
    files = files_of(calls)
    assert len(files) <= MAX_WITH_POLICIES, sorted(files)
    assert calls.total() <= MAX_CALLS_WITH_POLICIES
