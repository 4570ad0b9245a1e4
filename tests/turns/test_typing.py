"""The public API from outside: mypy infers what steps return and refuses wrong use; importing it needs no server."""

import subprocess
import sys
from pathlib import Path

TYPED = Path(__file__).with_name("typed.py")
ROOT = TYPED.parents[2]
WRONG = """
from stayfast.turns import budget, step
async def find(question: str) -> list[str]: return [question]
async def turn() -> None:
    async with budget(total="2.5") as b:
        await b.run(find, "Why?", cap="0.4")
        await b.run(find, "Why?", hedge=0.2)
        await b.run("find", name="kb")
        text: str = await b.run(find, "Why?")
        await b.gather(kb=step(find, "Why?"), need="kb")
"""
SERVERS = ("uvloop", "httptools", "h2", "yaml", "starlette", "numpy", "redis", "mcp", "openai", "pydantic")


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A fresh interpreter."""
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False, cwd=ROOT)


def test_public_types_by_mypy(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.py"
    wrong.write_text(WRONG)
    done = python("-m", "mypy", "--strict", "--no-error-summary", str(TYPED), str(wrong))
    lines = [line for line in done.stdout.splitlines() if "error:" in line]
    assert [line for line in lines if "wrong.py" not in line] == []
    assert sorted({int(line.split(":")[1]) for line in lines}) == [5, 6, 7, 8, 9, 10]


def test_turns_import_needs_no_server_library() -> None:
    done = python("-W", "error", "-c", "import sys, stayfast.turns; from stayfast.turns import agui, chat, http; "
                  f"print([name for name in {SERVERS!r} if name in sys.modules])")
    assert (done.stdout, done.stderr) == ("[]\n", "")
