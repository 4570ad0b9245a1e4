"""A gateway with a quick and a slow model, and requests to it."""

import json
import urllib.request

SETTINGS = """
server: {host: 127.0.0.1}
log: {requests: false}
upstreams:
  quick: {kind: simulated, probe: false, ttft: {median_s: 0.01}, gaps: {median_s: 0.001}, output: {median: 5}}
  slow: {kind: simulated, probe: false, ttft: {median_s: 0.4}, gaps: {median_s: 0.001}, output: {median: 5}}
routes:
  quick: {upstreams: [quick]}
  slow: {upstreams: [slow], hedge: {mode: off}}
"""


def ask(port: int, model: str, request_id: str) -> None:
    """One streamed chat, read to its end."""
    body = json.dumps({"model": model, "stream": True, "messages": [{"role": "user", "content": "Hi"}]}).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/chat/completions", body, {
        "content-type": "application/json", "x-request-id": request_id})
    with urllib.request.urlopen(request, timeout=20) as answer:
        answer.read()
