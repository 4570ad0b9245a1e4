"""A gateway and a Prometheus that scrapes it, as an operator has them: processes, files, ports of loopback."""

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import isnan
from pathlib import Path
from typing import Any

import yaml

from tests.ports import free_port

START_S = 30.0
STOP_S = 20.0
SCRAPE = """
global: {{scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}}
rule_files: [rules.yml]
scrape_configs:
  - job_name: stayfast
    static_configs: [{{targets: ["127.0.0.1:{port}"]}}]
"""


@contextmanager
def running(command: Sequence[str], folder: Path, url: str) -> Iterator[None]:
    """A process that answers at `url`; its standard error is kept in `folder`. Ended by SIGTERM, and waited for."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("STAYFAST_") and name != "PORT"}
    errors = folder / f"{Path(command[0]).name}.stderr"
    with errors.open("w") as stderr:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=stderr, cwd=folder, env=environment)
        try:
            wait_until(lambda: _answers(process, url), START_S, errors)
            yield
        finally:
            process.terminate()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                raise


def wait_until(is_so: Callable[[], bool], seconds: float, errors: Path) -> None:
    """Until a condition holds; fails with what the process wrote."""
    give_up_at = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < give_up_at, errors.read_text()[-4000:]
        time.sleep(0.1)


def _answers(process: subprocess.Popen[bytes], url: str) -> bool:
    assert process.poll() is None, f"it ended with {process.returncode}"
    try:
        with urllib.request.urlopen(url, timeout=1):
            return True
    except (urllib.error.URLError, ConnectionError):
        return False


@contextmanager
def gateway(folder: Path, settings: str, program: Sequence[str] = ("-m", "stayfast")) -> Iterator[int]:
    """A gateway with these settings, in which `{port}` is its own; gives the port. program: the command line, for Python."""
    port = free_port()
    (folder / "stayfast.yaml").write_text(settings.replace("{port}", str(port)))
    command = [sys.executable, *program, "serve", "--config", "stayfast.yaml", "--port", str(port)]
    with running(command, folder, f"http://127.0.0.1:{port}/livez"):
        yield port


class Prometheus:
    """Questions to a running one."""

    def __init__(self, origin: str) -> None:
        self.origin = origin

    def ask(self, path: str, **arguments: str) -> Any:
        """One call of its API; AssertionError with its words where it refuses."""
        url = f"{self.origin}/api/v1/{path}?{urllib.parse.urlencode(arguments)}"
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{error.code} for {arguments}: {error.read().decode()}") from None

    def values(self, query: str) -> list[float]:
        """What a query gives at this moment, NaN left out."""
        found = (float(row["value"][1]) for row in self.ask("query", query=query)["result"])
        return [value for value in found if not isnan(value)]


@contextmanager
def prometheus(program: str, folder: Path, gateway_port: int, rules: str) -> Iterator[Prometheus]:
    """One that scrapes the gateway every second; every group of rules is evaluated as often."""
    made = yaml.safe_load(rules)
    for group in made["groups"]:
        group.pop("interval", None)
    (folder / "rules.yml").write_text(yaml.safe_dump(made))
    (folder / "prometheus.yml").write_text(SCRAPE.format(port=gateway_port))
    port = free_port()
    command = [program, "--config.file=prometheus.yml", "--storage.tsdb.path=data", f"--web.listen-address=127.0.0.1:{port}",
               "--log.level=warn"]
    with running(command, folder, f"http://127.0.0.1:{port}/-/ready"):
        yield Prometheus(f"http://127.0.0.1:{port}")
