"""`verify: ROUTE` in a gateway that runs, with the real embedder: what is no yes in time is a miss, and never an error."""

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from tests.flow.real_embedder import weights
from tests.server.gateway_process import Gateway, running, until

__all__ = ["weights"]
pytestmark = pytest.mark.sockets
ANSWER = "Click the link in the mail."
WITHIN_S = 1.0
SETTINGS = """\
upstreams:
  model: {kind: openai, base_url: "http://127.0.0.1:PORT/v1", key: none, probe: false}
embedder: {cache_dir: "GRAPHS"}
routes:
  faq:
    upstreams: [model]
    cache: {mode: semantic, threshold: 0.6, audit_share: 0.001, max_temperature: 1, lookup_timeout_s: WITHIN, verify: check}
    budget: {cache: 3}
  check: {upstreams: [model]}
server: {drain_grace_s: 0}
"""


class Model(ThreadingHTTPServer):
    """Answers every question with ANSWER, and the checker's with `says`: words, a status, or seconds to wait."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.says: str | int | float = "yes"
        self.checked: list[str] = []


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Model

    def do_POST(self) -> None:
        """One completion."""
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        status, words = 200, ANSWER
        if body["messages"][0]["role"] == "system" and body["messages"][0]["content"].startswith("You check an answer"):
            self.server.checked.append(body["messages"][1]["content"])
            says = self.server.says
            if isinstance(says, float):
                time.sleep(says)
            status, words = (says, "") if isinstance(says, int) else (200, says if isinstance(says, str) else "yes")
        said = json.dumps({"id": "1", "object": "chat.completion", "created": 1, "model": body["model"], "choices": [
            {"index": 0, "message": {"role": "assistant", "content": words}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 9, "completion_tokens": 9, "total_tokens": 18}}).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Nothing."""


@pytest.fixture
def model() -> Iterator[Model]:
    """A running one."""
    server = Model()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def ask(gateway: Gateway, question: str) -> str:
    """What the cache had to say of a question that was answered."""
    body = json.dumps({"model": "faq", "messages": [{"role": "user", "content": question}]}).encode()
    request = Request(f"{gateway.url}/v1/chat/completions", body, {"content-type": "application/json"})
    with urlopen(request, timeout=20) as answer:
        assert json.loads(answer.read())["choices"][0]["message"]["content"] == ANSWER
        return str(answer.headers["x-cache"])


def known(gateway: Gateway) -> float:
    """How many questions it has learned."""
    return gateway.count("stayfast_semantic_entries", route="faq")


def test_semantic_verify_anything_but_yes_is_a_miss(model: Model, tmp_path: Path, weights: tuple[object, Path]) -> None:
    """Yes is a hit. No, chatter, an error and silence are misses with an answer of their own, within the look-up's time."""
    settings = SETTINGS.replace("PORT", str(model.server_address[1])).replace("GRAPHS", str(weights[1])).replace(
        "WITHIN", str(WITHIN_S))
    with running(tmp_path, 1, settings) as gateway:
        numbers = iter(range(1000))

        def learned() -> bool:
            ask(gateway, f"Where is the oldest lighthouse of island {next(numbers)}?")
            return known(gateway) > 0

        until(learned)  # the embedder is loaded beside the first requests
        n = known(gateway)
        assert ask(gateway, "How can I reset the password of an account?").startswith("miss")
        until(lambda: known(gateway) > n)
        assert ask(gateway, "How could somebody reset the password of an account?").startswith("hit; kind=semantic")
        assert model.checked[-1] == (
            f"<question>\nHow could somebody reset the password of an account?\n</question>\n<answer>\n{ANSWER}\n</answer>")
        answers: tuple[str | int | float, ...] = ("no", "Yes, but only on Sundays.", "", 500, 400, 60.0)
        for number, says in enumerate(answers):
            model.says = says
            n_checked, began_at = len(model.checked), time.monotonic()
            where = ("at home", "on a phone", "as the owner", "in the app", "by mail", "on the web")[number]
            assert ask(gateway, f"How can I reset an account password {where}?").startswith("miss"), says
            assert time.monotonic() - began_at < 10 * WITHIN_S
            assert len(model.checked) > n_checked, says
        counts = {result: gateway.count("stayfast_semantic_requests_total", route="faq", result=result)
                  for result in ("hit", "refused", "timeout")}
        assert counts["hit"] == 1
        assert counts["refused"] + counts["timeout"] == 6
        assert counts["timeout"] >= 1
        model.says = "yes"
        assert ask(gateway, "How can I reset an account password with a laptop?").startswith("hit; kind=semantic")
