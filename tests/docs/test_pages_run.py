"""Each page runs as it is pasted: its Python as one program, its commands in order; its JSON parses."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from stayfast.cli.sim import load_providers
from stayfast.lab.simulated import ProviderConfig
from stayfast.settings.starter import STARTER
from tests.absent import absent
from tests.docs.pages import ROOT, blocks, fences, pages, variables_for
from tests.ports import free_port
from tests.server.gateway_process import Gateway, running

RECORDS = ("CHANGELOG.md", "docs/decisions/")  # they stay as they were written
PAGES = [page for page in pages() if not str(page.relative_to(ROOT)).startswith(RECORDS)]
LANGUAGES = {
    "sh",  # commands
    "console",  # commands after `$ `, and their output
    "yaml",  # settings of the gateway: test_examples.py loads them
    "yml",  # settings of the simulator or of another program
    "python", "json",
    "text",  # output, formulas, headers
}
NOT_RUN = {  # commands that are only parsed (test_examples.py), by how they begin
    "make ": "test_examples.py looks for the target; `make test` runs this test",
    "pip install ": "needs a package index",
    "stayfast bench faults ": "takes 20 minutes; tests/bench runs short faults",
    "export PATH=": "PATH has the programs",
    "stayfast prove (?!--list)": "takes minutes; tests/prove runs each proof",
    "(docker|helm|kubectl|gh) ": "needs an engine, a cluster or a network; tests/deploy checks the files",
    "(python3 -m venv|install|systemctl|/opt/stayfast/bin/pip) ": "changes the reader's machine",
    "stayfast quantise ": "needs the reader's own model; tests/engine/test_quantise_cli.py runs it",
    "(python scripts/quantise_inputs|cd DIR)": "takes minutes; its models are only for the command after it",
    "python -m scripts": "takes 15 minutes; test_tail_table.py runs a short one",
    "python -m examples": "reads all pages first; tests/examples runs it",
    "stayfast warm .* --call ": "imports the reader's own module; tests/server/test_warm.py has one",
}
PAGES_NOT_RUN = {"docs/benchmarks.md": "needs wrk and nginx", "docs/start.md": "test_start.py follows it"}
# Exit statuses other than 0 that are no mistake of the page, with what is printed then.
STATUSES = {
    "stayfast cache purge ": (5, "no (stored )?answer"),  # of the page's tenant or key is stored here
    "stayfast key (show|rotate|revoke) ID": (1, "No stored key"),  # the reader has an id
    "stayfast check stayfast.yaml .*--live": (1, "FAILS"),  # no replicas run here
    "stayfast bench ": (1, r"failed +0 \("),  # whether a bound holds, and whether the bench keeps its pace, is the machine's
}
SERVER = re.compile(r"stayfast (serve|sim)\b(?!.* --list-presets)")
LISTENS = re.compile(r"listens on|http://127\.0\.0\.1:\d+")
REQUEST_ID = "req_bf40d6831929d9fa"  # that docs/telemetry.md explains
PROGRAMS = Path(sys.executable).parent
SETTINGS = """\
upstreams: {tiny: {kind: embedded}, simulated: {kind: simulated, script: steady}}
routes:
  stayfast-tiny: [tiny]
  simulated: [simulated]
  m: [simulated]
  faq: {upstreams: [simulated], cache: {mode: exact, max_temperature: 1}}
server: {drain_grace_s: 0}
"""
FILES = {  # that pages name and leave to the reader
    "hot.txt": "How do I order?\n",
    "questions.csv": "text,category\n" + "".join(f"{word} do I order article {n},{n}\n" for n in range(10)
                                                 for word in ("how", "why", "when", "where", "what", "which")),
    "pairs.csv": "sentence1,sentence2,label\n" + "".join(f"how do I order number {n},how can I buy number {n},1\n"
                                                         for n in range(30)),
}


class Servers(NamedTuple):
    """The gateway and the simulator that commands and programs of pages call."""

    gateway: str
    sim: str

    def in_place(self, text: str) -> str:
        """The text with their addresses in place of the usual ones."""
        for scheme in ("http", "ws"):
            text = text.replace(f"{scheme}://127.0.0.1:8090", self.gateway.replace("http", scheme, 1))
        return text.replace("http://127.0.0.1:8100", self.sim)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """One of each, with one request answered."""
    port = free_port()
    command = [PROGRAMS / "stayfast", "sim", "--provider", "openai=instant", "--provider", "claude=instant", "--port",
               str(port)]
    with (running(tmp_path_factory.mktemp("gateway"), 1, SETTINGS) as gateway,
          listening([str(word) for word in command], tmp_path_factory.mktemp("sim"))):
        wait_for_engine(gateway)
        gateway.post("/v1/chat/completions", b'{"model": "faq", "messages": [{"role": "user", "content": "hi"}]}',
                     REQUEST_ID)
        yield Servers(gateway.url, f"http://127.0.0.1:{port}")


def wait_for_engine(gateway: Gateway) -> None:
    """The embedded model starts beside the gateway."""
    ends_at = time.monotonic() + 20
    while not any(line["state"] == "ready" for line in gateway.log("engine")):
        assert time.monotonic() < ends_at
        time.sleep(0.05)


@contextmanager
def listening(command: Sequence[str] | str, folder: Path, variables: dict[str, str] | None = None) -> Iterator[None]:
    """A server while the block runs. It prints its address, and exits with 0 after Ctrl-C."""
    log = folder / "server.log"
    with log.open("wb") as out:
        child = subprocess.Popen(command, cwd=folder, stdout=out, stderr=out, shell=isinstance(command, str),
                                 env=variables, start_new_session=True)
    try:
        ends_at = time.monotonic() + 30
        while not LISTENS.search(log.read_text()):
            assert child.poll() is None, f"{command} ended: {log.read_text()}"
            assert time.monotonic() < ends_at, f"{command} does not listen: {log.read_text()}"
            time.sleep(0.05)
        yield
        os.kill(child.pid, signal.SIGINT)
        assert child.wait(20) == 0, f"{command}: {log.read_text()}"
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def id_of(page: Path) -> str:
    """A page's path, as the id of its test."""
    return str(page.relative_to(ROOT)) if page.is_relative_to(ROOT) else page.name


def with_blocks(*languages: str) -> list[Path]:
    """The pages with at least one such block."""
    return [page for page in PAGES if any(blocks(page, *languages))]


@pytest.mark.parametrize("page", PAGES, ids=id_of)
def test_every_block_names_its_language(page: Path) -> None:
    """A language that a test here or in test_examples.py reads."""
    check_languages(page)


def check_languages(page: Path) -> None:
    assert [info for info in fences(page) if info not in LANGUAGES] == []


@pytest.mark.parametrize("page", with_blocks("json"), ids=id_of)
def test_json_parses(page: Path) -> None:
    """Each block is one value."""
    for text in blocks(page, "json"):
        json.loads(text)


@pytest.mark.parametrize("page", with_blocks("yml"), ids=id_of)
def test_settings_of_simulator_load(page: Path, tmp_path: Path) -> None:
    """Other programs' settings are at least YAML."""
    for text in blocks(page, "yml"):
        if "providers" in yaml.safe_load(text):
            path = tmp_path / "providers.yaml"
            path.write_text(text)
            load_providers(path, ProviderConfig("gpt-4o-like", 0))


@pytest.mark.parametrize("page", with_blocks("python"), ids=id_of)
def test_python_of_page_runs(page: Path, servers: Servers, tmp_path: Path) -> None:
    """All its blocks, in order, as one program; what it asserts holds."""
    if id_of(page) in PAGES_NOT_RUN:
        return
    assert "broke the budget" not in run_python(page, servers, tmp_path)


def run_python(page: Path, servers: Servers, folder: Path) -> str:
    """The output of a page's program."""
    program = folder / "page.py"
    program.write_text(servers.in_place("\n".join(blocks(page, "python"))))
    ended = subprocess.run([sys.executable, program], cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.parametrize("page", with_blocks("sh", "console"), ids=id_of)
def test_commands_of_page_run(page: Path, servers: Servers, tmp_path: Path) -> None:
    """All its commands, in order, in one folder with the page's settings."""
    if id_of(page) not in PAGES_NOT_RUN:
        run_commands(page, servers, tmp_path)


def run_commands(page: Path, servers: Servers, folder: Path) -> None:
    commands = [command for command in commands_of(page) if why_not_run(command) is None]
    if any(command.startswith("curl ") for command in commands) and shutil.which("curl") is None:
        absent("curl is not installed")
    variables = prepare_folder(page, servers, folder, writes_settings=all("stayfast init" not in line for line in commands))
    for command in commands:
        given = adapted(command, servers)
        if SERVER.match(command):
            with listening(f"exec {given}", folder, variables):
                pass
            continue
        ended = subprocess.run(["bash", "-c", given], cwd=folder, env=variables, capture_output=True, text=True, timeout=60,
                               check=False)
        text = ended.stdout + ended.stderr
        assert ended.returncode == 0 or any(re.match(start, command) and ended.returncode == status and re.search(printed,
                                                                                                                  text)
                                            for start, (status, printed) in STATUSES.items()), f"{given}: {text}"


def commands_of(page: Path) -> Iterator[str]:
    """The commands of a page without comments; a line that ends with a backslash continues."""
    texts = [*blocks(page, "sh"), *("\n".join(line[2:] for line in text.splitlines() if line.startswith("$ "))
                                    for text in blocks(page, "console"))]
    for text in texts:
        for line in text.replace("\\\n", "").splitlines():
            for command in re.sub(r"(^|\s+)# .*$", "", line).split(" && "):
                if command.strip():
                    yield command.strip().removeprefix(".venv/bin/")


def why_not_run(command: str) -> str | None:
    """The reason in NOT_RUN; None for a command that runs."""
    return next((why for start, why in NOT_RUN.items() if re.match(start, command)), None)


def prepare_folder(page: Path, servers: Servers, folder: Path, *, writes_settings: bool) -> dict[str, str]:
    """Write the files that the page shows or names; returns the environment of its commands.

    The first settings of the page are `stayfast.yaml`, and the simulator's first `providers.yaml`, unless a comment in the
    first line has another name.
    """
    for name, text in FILES.items():
        (folder / name).write_text(text)
    text = ""
    for language, usual in (("yaml", "stayfast.yaml"), ("yml", "providers.yaml")):
        for shown in blocks(page, language):
            named = re.match(r"# (\w+\.yaml)\n", shown)
            path = folder / (named[1] if named else usual)
            if not path.exists() and (writes_settings or language == "yml"):
                path.write_text(servers.in_place(shown))
                text += shown
    search_path = f"{PROGRAMS}{os.pathsep}{os.environ['PATH']}"
    variables = variables_for(text if writes_settings else STARTER)
    return {**os.environ, **variables, "PATH": search_path, "TMPDIR": str(folder), "PYTHONPATH": str(ROOT)}


def adapted(command: str, servers: Servers) -> str:
    """The command with the addresses of this test, and shorter: it takes a second where a reader takes minutes."""
    given = servers.in_place(command)
    given = given.replace("--config examples/", f"--config {ROOT}/examples/")
    given = re.sub(r"--duration \S+", "--duration 1s", given)
    given = re.sub(r"--requests \d+", "--requests 200", given)
    given = re.sub(r' --cron "[^"]*"', "", given)  # which waits for six in the morning
    given = re.sub(r" --port \d+", "", given)
    if SERVER.match(command):
        given += " --port 0"
    elif re.match(r"stayfast (explain|warm|(doctor|top) --key-env|cache (stats|purge|inspect)|jobs|spend|"
                  "key (create|list|show|rotate|revoke)) ?", given):
        given += f" --url {servers.gateway}"
    elif re.match("stayfast bench (?!.*(--target|--virtual))", given):
        given += f" --target {servers.gateway}/v1"
    given = re.sub(r"--key 6bf2\.\.\.", f"--key {'6bf2' * 16}", given)
    return re.sub("^curl ", "curl -sS --fail-with-body ", given)


def test_every_exception_is_needed() -> None:
    """Each begins a command of a page that is run."""
    commands = [command for page in PAGES for command in commands_of(page)]
    starts = [*NOT_RUN, *STATUSES]
    assert [start for start in starts if not any(re.match(start, command) for command in commands)] == []
    assert [name for name in PAGES_NOT_RUN if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("fence", ["```", "```shell", "  ```ruby", "~~~", "```sh linenos"])
def test_wrong_fence_is_found(fence: str, tmp_path: Path) -> None:
    """Without a language, with an unknown one, and in forms that the tests do not read."""
    page = tmp_path / "page.md"
    page.write_text(f"{fence}\na\n{fence.strip()[:3]}\n")
    with pytest.raises(AssertionError):
        check_languages(page)


@pytest.mark.parametrize("block", [
    "sh\ncurl http://127.0.0.1:8090/nowhere\n", "sh\nstayfast check missing.yaml\n", "sh\nstayfast explain req_unknown\n",
    "sh\nstayfast serve --config missing.yaml\n", "console\n$ stayfast nonsense\n",
    "python\na = 1\n```\nand\n```python\nassert a == 2\n", "json\n{]\n", "yml\nproviders: {a: {prset: instant}}\n",
])
def test_wrong_page_is_found(block: str, servers: Servers, tmp_path: Path) -> None:
    """A path, a file, a command, an assertion, a value or a setting that does not exist or hold."""
    page = tmp_path / "page.md"
    page.write_text(f"```{block}```\n")

    def run_all() -> None:
        run_commands(page, servers, tmp_path)
        run_python(page, servers, tmp_path)
        test_json_parses(page)
        test_settings_of_simulator_load(page, tmp_path)

    with pytest.raises((AssertionError, ValueError)):
        run_all()


def test_places_of_glossary_exist() -> None:
    """Each path in the column `where`, under src/stayfast."""
    rows = re.findall(r"^\|[^|]+\|[^|]+\| (`.*`) \|$", (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8"),
                      re.MULTILINE)
    places = [place for row in rows for place in re.findall("`([^`]+)`", row)]
    assert len(places) > 50
    package = ROOT / "src" / "stayfast"
    assert [place for place in places if not (package / place).exists() and not (package / f"{place}.py").exists()] == []
