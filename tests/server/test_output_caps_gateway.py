"""Output limits and JSON schemas at a running gateway, with the embedded model, in each dialect."""

import json
from collections.abc import Iterator
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from tests.server.gateway_process import Gateway, until
from tests.server.gateway_process import running as running_gateway

pytestmark = pytest.mark.sockets

SETTINGS = """\
upstreams: {local: {kind: embedded, n_threads: 1}, sim: {kind: simulated, script: steady}}
routes:
  tiny: [local]
  short: {upstreams: [sim], cap: {default_tokens: 5}}
server: {drain_grace_s: 0}
"""
SCHEMA = {"type": "object", "properties": {"zeta": {"enum": ["positive", "negative"]},
                                           "alpha": {"type": "integer", "minimum": 0, "maximum": 10}},
          "required": ["zeta", "alpha"]}
WIDE = {"type": "object", "required": [f"name{n}" for n in range(40)]}
MESSAGES = [{"role": "user", "content": "I love it"}]
N_TOKENS = 40  # the same answer with llama.cpp's blanks has 84


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with running_gateway(tmp_path_factory.mktemp("caps"), 1, SETTINGS) as found:
        yield found


def bodies(schema: object) -> dict[str, tuple[str, dict[str, Any]]]:
    """Path and body of a request for JSON, by dialect."""
    return {
        "chat": ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": N_TOKENS, "response_format": {
            "type": "json_schema", "json_schema": {"name": "mood", "strict": True, "schema": schema}}}),
        "responses": ("/v1/responses", {"input": "I love it", "store": False, "max_output_tokens": N_TOKENS,
                                        "text": {"format": {"type": "json_schema", "name": "mood", "schema": schema}}}),
        "messages": ("/v1/messages", {"messages": MESSAGES, "max_tokens": N_TOKENS, "output_config": {
            "format": {"type": "json_schema", "schema": schema}}})}


def text_of(dialect: str, answer: dict[str, Any]) -> str:
    match dialect:
        case "chat":
            assert answer["choices"][0]["finish_reason"] == "stop"
            return str(answer["choices"][0]["message"]["content"])
        case "responses":
            assert answer["status"] == "completed"
            return str(answer["output"][-1]["content"][0]["text"])
        case _:
            assert answer["stop_reason"] == "end_turn"
            return str(answer["content"][0]["text"])


@pytest.mark.parametrize("dialect", ["chat", "responses", "messages"])
def test_schema_at_the_embedded_model_ends_before_the_limit(running: Gateway, dialect: str) -> None:
    path, body = bodies(SCHEMA)[dialect]
    text = text_of(dialect, json.loads(running.post(path, json.dumps({"model": "tiny", **body}).encode())))
    found = json.loads(text)
    assert list(found) == ["zeta", "alpha"]
    assert found["zeta"] in ("positive", "negative")
    assert 0 <= found["alpha"] <= 10
    assert " " not in text
    assert "\n" not in text


@pytest.mark.parametrize("dialect", ["chat", "responses", "messages"])
def test_schema_longer_than_the_limit_is_a_400_of_the_dialect(running: Gateway, dialect: str) -> None:
    path, body = bodies(WIDE)[dialect]
    request = Request(f"{running.url}{path}", json.dumps({"model": "tiny", **body}).encode(),
                      {"content-type": "application/json"})
    with pytest.raises(HTTPError) as caught:
        urlopen(request, timeout=20)
    with caught.value as answer:
        error = json.loads(answer.read())["error"]
    assert caught.value.code == 400
    assert "at least 80 tokens" in error["message"]
    assert error["type"] == "invalid_request_error"
    if dialect != "messages":
        assert error["code"] == "schema_exceeds_limit"


def test_default_limit_that_ends_a_stream_is_in_report_log_and_metric(running: Gateway) -> None:
    body = {"model": "short", "messages": MESSAGES, "stream": True}
    stream = running.post("/v1/chat/completions", json.dumps(body).encode(), "capped").decode()
    events = [json.loads(line[6:]) for line in stream.splitlines() if line.startswith("data: {")]
    assert [choice["finish_reason"] for event in events for choice in event["choices"] if choice["finish_reason"]] == [
        "length"]
    assert [event["stayfast"]["degraded"] for event in events if "stayfast" in event] == ["capped"]
    assert ": x-stayfast-degraded capped\n" in stream
    until(lambda: any(line["request_id"] == "capped" for line in running.log("request")))
    [line] = [line for line in running.log("request") if line["request_id"] == "capped"]
    assert (line["degraded"], line["cut_by"], line["finish"]) == ("capped", "default", "length")
    assert running.count("stayfast_cut_answers_total", route="short", by="default") >= 1


@pytest.mark.parametrize(("n_tokens", "mark", "cut_by"), [(None, "capped", "default"), (3, None, "client")])
def test_limit_that_ends_a_whole_answer_is_in_its_head(running: Gateway, n_tokens: int | None, mark: str | None,
                                                       cut_by: str) -> None:
    body = {"model": "short", "messages": MESSAGES, "max_tokens": n_tokens}
    request = Request(f"{running.url}/v1/chat/completions", json.dumps(body).encode(),
                      {"content-type": "application/json", "x-request-id": f"whole-{n_tokens}"})
    with urlopen(request, timeout=20) as answer:
        assert answer.headers["x-stayfast-degraded"] == mark
        assert json.loads(answer.read())["choices"][0]["finish_reason"] == "length"
    until(lambda: any(line["request_id"] == f"whole-{n_tokens}" for line in running.log("request")))
    [line] = [line for line in running.log("request") if line["request_id"] == f"whole-{n_tokens}"]
    assert line["cut_by"] == cut_by
