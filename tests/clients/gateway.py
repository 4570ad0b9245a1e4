"""The gateway itself, as a user starts it: a process, a settings file, a port."""

import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tests.clients.upstream import Upstream
from tests.ports import free_port

START_S = 20.0
STOP_S = 10.0
KEEPALIVE_S = 0.2
BRIEF_S = 1.0  # what a request to a route `brief-<dialect>` has; then it ends by a template, or in part
UPSTREAM_MODEL = "upstream-model"
DIALECTS = ("chat", "responses", "messages")  # what the upstream behind the route `via-<dialect>` speaks

SETTINGS = """
server: {{host: 127.0.0.1, sse_keepalive_s: {keepalive_s}}}
upstreams:
  chat: {{kind: openai, base_url: "{origin}/v1", key: sk-upstream-key, probe: false,
         apis: [chat, completions, embeddings, rerank]}}
  responses: {{kind: openai, base_url: "{origin}/v1", key: sk-upstream-key, apis: [responses], probe: false}}
  messages: {{kind: anthropic, base_url: "{origin}", key: sk-upstream-key, probe: false}}
routes:
  via-chat: {{upstreams: [chat], model: {model}}}
  via-responses: {{upstreams: [responses], model: {model}}}
  via-messages: {{upstreams: [messages], model: {model}}}
  brief-chat: &brief
    {{upstreams: [chat], model: {model}, timeouts: {{total_s: {brief_s}}}, on_overrun: {{template: Later., partial: true}}}}
  brief-responses: {{<<: *brief, upstreams: [responses]}}
  brief-messages: {{<<: *brief, upstreams: [messages]}}
  resumable-chat: {{upstreams: [chat], model: {model}, resumable: true}}
defaults: {{retry: {{max_attempts: 1}}}}
jobs: {{path: "{folder}/jobs"}}
"""


@dataclass(frozen=True, slots=True)
class Gateway:
    """A running gateway. What it wrote to standard error is kept in `errors`."""

    origin: str
    errors: Path
    pid: int = 0

    @property
    def openai_url(self) -> str:
        """What an OpenAI SDK takes as its base_url."""
        return f"{self.origin}/v1"


@contextmanager
def running_gateway(upstream: Upstream, folder: Path) -> Iterator[Gateway]:
    """A gateway in front of `upstream`, its files in `folder`; ended by SIGTERM, and waited for."""
    settings = folder / "stayfast.yaml"
    settings.write_text(SETTINGS.format(origin=upstream.origin, model=UPSTREAM_MODEL, keepalive_s=KEEPALIVE_S,
                                        brief_s=BRIEF_S, folder=folder))
    with started(settings, folder) as gateway:
        yield gateway


@contextmanager
def started(settings: Path, folder: Path, *options: str, module_path: Path | None = None) -> Iterator[Gateway]:
    """A gateway with these settings, begun in `folder`; ended by SIGTERM, and waited for. module_path: where modules that
    the settings name are; then the environment has the port, and no flag, so that these learn of it."""
    port = free_port()
    errors_at = folder / "stderr.txt"
    with errors_at.open("w") as errors, (folder / "stdout.txt").open("w") as output:
        process = _spawn(settings, port, errors, output, folder, *options, module_path=module_path)
        gateway = Gateway(f"http://127.0.0.1:{port}", errors_at, process.pid)
        try:
            _wait_live(process, gateway)
            yield gateway
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                status = process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                raise
    assert status == 0, f"the gateway ended with {status}: {gateway.errors.read_text()[-2000:]}"


def _spawn(settings: Path, port: int, errors: IO[str], output: IO[str], folder: Path,
           *options: str, module_path: Path | None = None) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "stayfast", "serve", "--config", str(settings), *options]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("STAYFAST_") and name != "PORT"}
    if module_path is not None:
        environment |= {"STAYFAST_PORT": str(port), "PYTHONPATH": str(module_path)}
    else:
        command += ["--port", str(port)]
    return subprocess.Popen(command, env=environment, stdout=output, stderr=errors, cwd=folder)


def _wait_live(process: subprocess.Popen[bytes], gateway: Gateway) -> None:
    give_up_at = time.monotonic() + START_S
    while time.monotonic() < give_up_at:
        if process.poll() is not None:
            raise AssertionError(f"the gateway did not start ({process.returncode}): {gateway.errors.read_text()[-4000:]}")
        try:
            with urllib.request.urlopen(f"{gateway.origin}/livez", timeout=1):
                return
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.05)
    raise AssertionError(f"the gateway is not live after {START_S} s: {gateway.errors.read_text()[-4000:]}")
