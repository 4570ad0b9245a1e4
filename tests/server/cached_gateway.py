"""A gateway with a cache, for tests."""

import json
from urllib.request import Request, urlopen

SETTINGS = """\
upstreams:
  sim: {kind: simulated, script: steady, prices: {"*": {input_per_mtok: 1000, output_per_mtok: 1000}}}
routes:
  m: {upstreams: [sim], cache: {mode: exact, max_temperature: 1}}
  other: {upstreams: [sim], cache: {mode: exact, max_temperature: 1}}
server: {drain_grace_s: 0}
"""


def ask(url: str, model: str, text: str, tags: str = "") -> str:
    """One chat; what the cache said, in a word."""
    return hit(url, model, text, tags).split(";")[0]


def hit(url: str, model: str, text: str, tags: str = "") -> str:
    """One chat; what the cache said."""
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": text}]}).encode()
    headers = {"content-type": "application/json", "x-request-id": text, **({"x-cache-tags": tags} if tags else {})}
    with urlopen(Request(f"{url}/v1/chat/completions", body, headers), timeout=20) as answer:
        answer.read()
        return str(answer.headers["x-cache"])
