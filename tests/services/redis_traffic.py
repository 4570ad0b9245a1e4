"""Requests to gateways with a shared store, for tests."""

import json
import urllib.request

SLOW_S = 5.0  # no request may take longer, on a machine whose cores others use as well


def ask(port: int, question: str, *, stream: bool = False, model: str = "chat") -> str:
    """One question; returns what the cache had to say. Raises for any answer but a whole one."""
    body = json.dumps({"model": model, "stream": stream, "messages": [{"role": "user", "content": question}]}).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/chat/completions", body,
                                     {"content-type": "application/json", "x-cache-tags": "faq"})
    with urllib.request.urlopen(request, timeout=SLOW_S) as answer:
        said = answer.read()
        assert b"data: [DONE]" in said if stream else json.loads(said)["choices"][0]["message"]["content"]
        return str(answer.headers["x-cache"]).split(";")[0]


def metric(port: int, name: str) -> float:
    """The sum of all series that begin so."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=SLOW_S) as answer:
        return sum(float(line.rsplit(" ", 1)[1]) for line in answer.read().decode().splitlines() if line.startswith(name))
