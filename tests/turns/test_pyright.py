"""The public API from outside, by pyright in strict mode. Skipped where it is not installed: make clients."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

from stayfast import turns
from tests.absent import absent

NODE = shutil.which("node")
PYRIGHT = Path(__file__).parents[1] / "clients" / "node" / "node_modules" / "pyright" / "index.js"
OUTSIDE = Path(__file__).with_name("outside.py")
WRONG = """
from stayfast.turns import Agent, Answer, BreakerPolicy, TurnRequest, budget, step, tool
async def find(question: str) -> list[str]: return [question]
@tool(timeout=0.8)
async def weather(city: str) -> str:
    return city
async def turn(request: TurnRequest, a: Answer) -> None:
    async with budget(total="2.5") as b:
        await b.run(find, "Why?", cap="0.4")
        await b.run(find, "Why?", hedge=0.2)
        await b.run("find", name="kb")
        text: str = await b.run(find, "Why?")
        await b.gather(find("Why?"))
        await b.gather(kb=step(find, "Why?"), need="kb")
        await b.run(find, "Why?", breaker=BreakerPolicy)
    a.write(1)
    a.cite(source=None)
    await weather(7)
    await weather()
    request.text = text
    Agent("large", [weather])
"""


def complaints(folder: Path) -> dict[str, list[tuple[int, str]]]:
    """What pyright says of the programs in a folder: line and rule or words, by the file's name."""
    if NODE is None or not PYRIGHT.exists():
        absent("no pyright here (make clients installs it; Debian: apt-get install nodejs npm)")
    (folder / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict", "pythonVersion": "3.11"}')
    done = subprocess.run([str(NODE), str(PYRIGHT), "--outputjson", "--pythonpath", sys.executable, "-p", str(folder)],
                          capture_output=True, text=True, check=False, timeout=300)
    said: dict[str, list[tuple[int, str]]] = {path.name: [] for path in folder.glob("*.py")}
    for one in json.loads(done.stdout)["generalDiagnostics"]:
        said[Path(one["file"]).name].append((one["range"]["start"]["line"] + 1, one.get("rule", one["message"])))
    return said


def test_public_types_by_pyright(tmp_path: Path) -> None:
    program = OUTSIDE.read_text(encoding="utf-8")
    (tmp_path / "outside.py").write_text(program)
    (tmp_path / "wrong.py").write_text(WRONG)
    assert [name for name in turns.__all__ if f" {name},\n" not in program] == []
    said = complaints(tmp_path)
    assert said["outside.py"] == []
    assert sorted({line for line, _ in said["wrong.py"]}) == list(range(8, 22))
