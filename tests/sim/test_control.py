"""The control endpoints, keys, and what is answered to bad input."""

import json
from http.client import HTTPConnection
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stayfast.lab.sim_server.app import ListenConfig
from stayfast.lab.simulated import ProviderConfig
from tests.sim.running import Sim, running_sim

pytestmark = pytest.mark.sockets

ASK = {"model": "m", "messages": [{"role": "user", "content": "SECRET-PROMPT"}], "max_tokens": 5}
PATHS = ("chat/completions", "completions", "responses", "embeddings", "messages", "messages/count_tokens")


def post(sim: Sim, path: str, body: Any, headers: dict[str, str] | None = None, method: str = "POST") -> tuple[int, Any]:
    """Status and JSON body of an answer."""
    connection = HTTPConnection("127.0.0.1", sim.port, timeout=10)
    try:
        connection.request(method, path, body if isinstance(body, bytes) else json.dumps(body), headers or {})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def test_control_counts_requests_and_reset(sim: Sim) -> None:
    assert post(sim, "/openai/v1/chat/completions", ASK)[0] == 200
    assert sim.counts("openai")["n_asked"] == 1
    assert sim.counts("anthropic")["n_asked"] == 0
    said = sim.control("GET", "requests")[1]
    assert [(one["provider"], one["api"], one["status"], one["ended"]) for one in said["requests"]] == [
        ("openai", "chat", 200, "whole")]
    assert "SECRET-PROMPT" not in json.dumps(said)
    assert sim.control("POST", "reset")[0] == 200
    assert sim.counts("openai")["n_asked"] == 0
    assert sim.control("GET", "requests")[1] == {"requests": []}


def test_control_reset_repeats_the_same_answers(sim: Sim) -> None:
    first = [post(sim, "/openai/v1/chat/completions", ASK)[1]["choices"] for _ in range(3)]
    sim.control("POST", "reset")
    assert [post(sim, "/openai/v1/chat/completions", ASK)[1]["choices"] for _ in range(3)] == first


def test_control_faults_are_added_and_removed(sim: Sim) -> None:
    sim.fails(provider="openai", kind="status", status=503)
    assert post(sim, "/openai/v1/chat/completions", ASK)[0] == 503
    assert post(sim, "/anthropic/v1/messages", ASK)[0] == 200
    assert sim.control("DELETE", "faults")[0] == 200
    assert post(sim, "/openai/v1/chat/completions", ASK)[0] == 200


def test_control_regime_is_held_and_released(sim: Sim) -> None:
    assert sim.control("POST", "regime", {"regime": "outage", "provider": "openai"})[0] == 200
    assert post(sim, "/openai/v1/chat/completions", ASK)[0] in (500, 503)
    assert sim.control("POST", "regime", {"regime": None})[0] == 200
    assert post(sim, "/openai/v1/chat/completions", ASK)[0] == 200


def test_control_returns_the_config(sim: Sim) -> None:
    said = sim.control("GET", "config")[1]["providers"]
    assert said["tight"]["quota"]["requests_per_min"] == 2


@pytest.mark.parametrize(("order", "body", "status", "named"), [
    ("POST faults", {}, 400, "kind"),
    ("POST faults", {"kind": "explode"}, 400, "kind"),
    ("POST faults", {"kind": "hang", "rate": 2}, 400, "rate"),
    ("POST faults", {"kind": "hang", "rat": 1}, 400, "rate"),
    ("POST faults", {"kind": "hang", "provider": "nobody"}, 400, "provider"),
    ("POST faults", {"kind": "hang", "provider": ["x"]}, 400, "provider"),
    ("POST faults", b"{", 400, "JSON"),
    ("POST faults", b"[" * 100_000, 400, "nested"),
    ("POST regime", {"regime": "sunny"}, 400, "regime"),
    ("POST regime", {}, 400, "regime"),
    ("GET requests?n=-1", None, 400, "n"),
    ("GET nothing", None, 404, "/_sim/counts"),
    ("POST counts", {}, 405, "GET"),
])
def test_control_wrong_order_names_the_field(sim: Sim, order: str, body: Any, status: int, named: str) -> None:
    method, path = order.split(" ")
    said_status, said = sim.control(method, path, body)
    assert said_status == status
    assert named in said["error"]["message"]
    assert post(sim, "/openai/v1/chat/completions", ASK)[0] == 200


def test_sim_wrong_request_is_rejected_in_its_dialect(sim: Sim) -> None:
    status, said = post(sim, "/openai/v1/chat/completions", {"model": "m", "messages": 1})
    assert (status, said["error"]["param"]) == (400, "messages")
    status, said = post(sim, "/anthropic/v1/messages", {"model": "m", "messages": ASK["messages"]})
    assert (status, said["type"]) == (400, "error")
    assert "max_tokens" in said["error"]["message"]
    for path in ("/v2/what", "/nobody/v1/chat/completions"):
        status, said = post(sim, path, ASK)
        assert (status, said["error"]["code"]) == (404, "not_found")
    status, said = post(sim, "/nobody/v1/messages", ASK)
    assert (status, said["type"], said["error"]["type"]) == (404, "error", "not_found_error")
    assert post(sim, "/v1/models", ASK)[0] == 405
    assert post(sim, "/v2/what", b"", method="GET")[0] == 404
    assert post(sim, "/v1/chat/completions", b"", method="GET")[0] == 405


def test_sim_key_is_required() -> None:
    with running_sim({"a": ProviderConfig()}, key="sk-sim") as sim:
        assert post(sim, "/v1/chat/completions", ASK)[0] == 401
        assert post(sim, "/v1/messages", ASK, {"x-api-key": "wrong"})[1]["error"]["type"] == "authentication_error"
        assert post(sim, "/v1/messages", ASK, {"x-api-key": "sk-sim"})[0] == 200
        assert post(sim, "/v1/chat/completions", ASK, {"authorization": "Bearer sk-sim"})[0] == 200
        assert sim.control("GET", "counts")[0] == 401


def test_control_is_served_on_loopback_only() -> None:
    assert ListenConfig("127.0.0.2").has_control
    assert ListenConfig("::1").has_control
    assert not ListenConfig("0.0.0.0").has_control
    assert ListenConfig("0.0.0.0", control_anywhere=True).has_control
    with running_sim({"a": ProviderConfig()}, host="0.0.0.0") as sim:
        assert sim.control("GET", "counts")[0] == 403
        assert post(sim, "/healthz", b"", method="GET") == (200, {"status": "ok"})


FIELDS = st.sampled_from(("model", "messages", "role", "content", "type", "text", "input", "prompt", "stream", "tools",
                          "name", "tool_choice", "function", "parameters", "properties", "response_format", "json_schema",
                          "schema", "user", "max_tokens", "n", "dimensions", "encoding_format", "enum", "items", "anyOf",
                          "format"))
JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
                    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(FIELDS, inner, max_size=4), max_leaves=12)
BASE = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "input": "Hi", "prompt": "Hi", "max_tokens": 5}


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(path=st.sampled_from(PATHS), more=st.dictionaries(FIELDS, JSON, max_size=4), is_based=st.booleans())
def test_sim_any_body_is_answered(sim: Sim, path: str, more: dict[str, Any], *, is_based: bool) -> None:
    body = {**BASE, **more} if is_based else more
    connection = HTTPConnection("127.0.0.1", sim.port, timeout=10)
    try:
        connection.request("POST", f"/openai/v1/{path}", json.dumps(body))
        answer = connection.getresponse()
        said = answer.read()
    finally:
        connection.close()
    assert answer.status in (200, 400)
    if answer.status == 400:
        assert json.loads(said)["error"]["message"]


def test_control_engine_figures_are_on_the_page_of_metrics(sim: Sim) -> None:
    assert sim.control("POST", "engine", {"figures": {"waiting": 40, "kv_used_ratio": 0.97}, "provider": "openai"})[0] == 200
    page = get_text(sim, "/openai/metrics")
    assert 'vllm:num_requests_waiting{engine="0",model_name="openai"} 40\n' in page
    assert 'vllm:num_requests_waiting{engine="0",model_name="anthropic"} 0\n' in get_text(sim, "/anthropic/metrics")
    assert sim.control("POST", "engine", {"figures": None})[0] == 200
    assert "} 40\n" not in get_text(sim, "/openai/metrics")


@pytest.mark.parametrize("figures", [{"waiting": -1}, {"kv_used_ratio": 2}, {"speed": 1}])
def test_control_engine_wrong_figures_are_refused(sim: Sim, figures: Any) -> None:
    assert sim.control("POST", "engine", {"figures": figures})[0] == 400


def get_text(sim: Sim, path: str) -> str:
    connection = HTTPConnection("127.0.0.1", sim.port, timeout=10)
    try:
        connection.request("GET", path)
        return connection.getresponse().read().decode()
    finally:
        connection.close()
