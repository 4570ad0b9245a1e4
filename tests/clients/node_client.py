"""OpenAI's SDK for Node in its own process. Lines of JSON name the case to run."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.absent import absent
from tests.clients.gateway import Gateway

FOLDER = Path(__file__).parent / "node"
STOP_S = 5.0


class NodeError(Exception):
    """What the SDK threw."""

    def __init__(self, fields: dict[str, Any]) -> None:
        super().__init__(f"{fields['name']}: {fields['message']}")
        self.name: str = fields["name"]
        self.status: int | None = fields.get("status")
        self.code: str | None = fields.get("code")
        self.message: str = fields["message"]


class NodeClient:
    """One case at a time. Lines that Node writes to standard error go to the test's own."""

    def __init__(self, process: "subprocess.Popen[str]", gateway: Gateway) -> None:
        self._process = process
        self._gateway = gateway
        self.pieces: list[str] = []  # of content, of the case that runs or ran last

    def run(self, case: str, **given: object) -> Any:
        """Run a case to its end and return its value. Raises NodeError for what the SDK threw."""
        self.start(case, **given)
        return self.finish()

    def start(self, case: str, **given: object) -> None:
        """Begin a case."""
        self.pieces = []
        self._say({"run": case, "baseURL": self._gateway.openai_url, "given": given})

    def wait_piece(self) -> None:
        """Until the running case has seen one piece of content."""
        self.pieces.append(self._hear()["saw"])

    def abort(self) -> None:
        """Fire the AbortSignal of the running case."""
        self._say({"abort": True})

    def finish(self) -> Any:
        """The value of the running case, at its end."""
        while "saw" in (heard := self._hear()):
            self.pieces.append(heard["saw"])
        if "error" in heard:
            raise NodeError(heard["error"])
        return heard["value"]

    def _say(self, line: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(line) + "\n")
        self._process.stdin.flush()

    def _hear(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise AssertionError(f"node ended with {self._process.wait(STOP_S)}; its standard error says why")
        heard: dict[str, Any] = json.loads(line)
        return heard


@contextmanager
def running_node(gateway: Gateway) -> Iterator[NodeClient]:
    """Node with the SDK. Skips where either is not installed, but fails so on CI."""
    missing = _missing()
    if missing is not None:
        absent(missing)
    process = subprocess.Popen(["node", "run.mjs"], cwd=FOLDER, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                               encoding="utf-8")
    with process:
        try:
            yield NodeClient(process, gateway)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()


def _missing() -> str | None:
    if shutil.which("node") is None:
        return "there is no node: install Node 20 or newer"
    if not (FOLDER / "node_modules" / "openai").is_dir():
        return "OpenAI's SDK for Node is not installed: run `npm ci` in tests/clients/node"
    return None
