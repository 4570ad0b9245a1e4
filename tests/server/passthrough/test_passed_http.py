"""What is passed on over HTTP, what is not, and how it ends."""

import json
import socket
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from hashlib import sha256
from http.client import IncompleteRead
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.clients.gateway import Gateway
from tests.server.passthrough.asking import MIB, OWN, ask, connect, log_line, until
from tests.server.passthrough.conftest import KEYS
from tests.server.passthrough.vendor import Vendor

pytestmark = pytest.mark.sockets


def memory_peak(pid: int) -> int:
    """The largest resident size of a process so far, in bytes."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) * 1024


def test_get_is_passed_with_query_and_without_client_credentials(gateway: Gateway) -> None:
    response, body = ask(gateway, "GET", "/v1/organization/a%20b?x=%2F&y", headers={
        **OWN, "x-custom": "1", "cookie": "session=1", "x-forwarded-for": "10.0.0.1", "openai-project": "theirs",
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "x-request-id": "mine-1",
        "idempotency-key": "k"})
    seen = json.loads(body)
    assert seen["target"] == "/v1/organization/a%20b?x=%2F&y"
    headers = seen["headers"]
    assert (headers["x-custom"], headers["x-request-id"], headers["x-stayfast-hop"]) == ("1", "mine-1", "1")
    assert headers["traceparent"] == "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    assert headers["authorization"] == "Bearer sk-vendor-secret"
    assert headers["idempotency-key"].startswith("sf-")
    assert not {"cookie", "x-forwarded-for", "openai-project"} & headers.keys()
    assert response.headers["x-request-id"] == "mine-1"
    assert response.headers["set-cookie"] is None
    line = log_line(gateway, "mine-1")
    assert (line["path"], line["upstream"], line["status"], line["tenant"]) == ("/v1/organization", "vendor", 200, "a")
    assert (line["trace_id"], line["upstream_request_id"]) == ("0af7651916cd43dd8448eb211c80319c", "req_vendor")
    assert line["bytes_down"] == len(body)


def test_prefix_of_openai_base_url_is_passed(gateway: Gateway) -> None:
    assert json.loads(ask(gateway, "GET", "/openai/v1/skills")[1])["target"] == "/v1/skills"


@pytest.mark.parametrize(("status", "passed"), [(404, 404), (400, 400), (403, 403), (500, 500), (503, 503), (401, 502)])
def test_status_is_passed_unless_gateways_own_key_is_refused(gateway: Gateway, status: int, passed: int) -> None:
    response, body = ask(gateway, "POST", f"/v1/status/{status}", b"{}")
    assert response.status == passed
    assert (b"sk-vendor-secret" in body) is (status != 401)  # the vendor quotes it; only a refusal of the key is read


def test_head_has_length_without_body_and_connection_stays(gateway: Gateway) -> None:
    connection = connect(gateway)
    connection.request("HEAD", "/v1/skills", headers=OWN)
    response = connection.getresponse()
    assert response.read() == b""
    assert int(response.headers["content-length"]) > 10
    connection.request("GET", "/v1/skills", headers=OWN)
    assert connection.getresponse().read().startswith(b"{")
    connection.close()


def test_redirect_is_passed_not_followed(gateway: Gateway) -> None:
    """One to the upstream's own API stays at the gateway; one to a signed address elsewhere is unchanged."""
    response, _ = ask(gateway, "GET", "/v1/redirect?own")
    assert (response.status, response.headers["location"]) == (302, "/v1/files/f/content")
    assert ask(gateway, "GET", "/v1/redirect?blob")[0].headers["location"] == "https://blob.example/x?sig=1"


def test_upload_of_known_length_uses_little_memory(gateway: Gateway) -> None:
    """192 MiB go up; the gateway's memory grows by a few buffers."""
    before, digest, block = memory_peak(gateway.pid), sha256(), bytes(range(256)) * 4096

    def blocks() -> Iterator[bytes]:
        for _ in range(192):
            digest.update(block)
            yield block

    connection = connect(gateway, 60)
    connection.request("POST", "/v1/uploads", blocks(), {**OWN, "content-length": str(192 * MIB), "x-request-id": "up-1"})
    seen = json.loads(connection.getresponse().read())
    connection.close()
    assert (seen["n_bytes"], seen["digest"]) == (192 * MIB, digest.hexdigest())
    assert seen["headers"]["content-length"] == str(192 * MIB)
    grown = memory_peak(gateway.pid) - before
    assert grown < 12 * MIB, grown
    assert log_line(gateway, "up-1")["bytes_up"] == 192 * MIB


def test_upload_in_chunks_is_sent_in_chunks(gateway: Gateway) -> None:
    response, body = ask(gateway, "POST", "/v1/uploads", (b"x" * 1000 for _ in range(50)), OWN)
    seen = json.loads(body)
    assert (response.status, seen["n_bytes"], seen["headers"]["transfer-encoding"]) == (200, 50_000, "chunked")


def test_upload_to_slow_upstream_slows_client(gateway: Gateway, vendor: Vendor) -> None:
    """While the vendor reads nothing, the client can write no more than the buffers in between."""
    vendor.gate.clear()
    parts = urlsplit(gateway.origin)
    with socket.create_connection((parts.hostname, parts.port), timeout=0.5) as client:
        client.sendall(f"POST /v1/uploads/gate HTTP/1.1\r\nhost: x\r\nauthorization: {OWN['authorization']}\r\n"
                       f"content-length: {200 * MIB}\r\n\r\n".encode())
        n_sent = 0
        with suppress(TimeoutError):
            while n_sent < 200 * MIB:
                n_sent += client.send(b"x" * 65_536)
        assert n_sent < 60 * MIB
        vendor.gate.set()
        client.settimeout(20)
        while n_sent < 200 * MIB:
            n_sent += client.send(b"x" * min(65_536, 200 * MIB - n_sent))
        assert client.recv(65_536).startswith(b"HTTP/1.1 200 OK\r\n")


def test_slow_reader_slows_upstream(gateway: Gateway, vendor: Vendor) -> None:
    """A client that stops reading stops the vendor; when it leaves, the vendor's connection is closed."""
    parts = urlsplit(gateway.origin)
    with socket.create_connection((parts.hostname, parts.port), timeout=10) as client:
        client.sendall(f"GET /v1/endless HTTP/1.1\r\nhost: x\r\nauthorization: {OWN['authorization']}\r\n\r\n".encode())
        assert client.recv(100).startswith(b"HTTP/1.1 200 OK\r\n")
        n_before = -1
        while vendor.n_sent != n_before:
            n_before = vendor.n_sent
            time.sleep(0.3)
        assert vendor.n_sent < 60 * MIB
    until(vendor.last("/v1/endless").has_left.is_set)


def test_client_that_leaves_before_head_closes_upstream_call(gateway: Gateway, vendor: Vendor) -> None:
    connection = connect(gateway)
    connection.request("POST", "/v1/hang", b"{}", {**OWN, "x-request-id": "left-1"})
    until(lambda: any(one.target == "/v1/hang" for one in vendor.requests))
    connection.close()
    until(vendor.last("/v1/hang").has_left.is_set)
    line = log_line(gateway, "left-1")
    assert (line["status"], line["error"]) == (499, "client_left")


def test_deadline_before_head_is_504(gateway: Gateway, vendor: Vendor) -> None:
    """The client's own deadline counts, too."""
    began_at = time.monotonic()
    response, body = ask(gateway, "POST", "/v1/hang", b"{}", {**OWN, "x-request-timeout": "0.3"})
    assert (response.status, json.loads(body)["error"]["code"]) == (504, "total_s_exceeded")
    assert 0.25 < time.monotonic() - began_at < 3
    until(vendor.last("/v1/hang").has_left.is_set)


@pytest.mark.parametrize("target", ["/v1/cut", "/v1/cut/chunked"])
def test_cut_body_breaks_clients_connection(gateway: Gateway, target: str) -> None:
    with pytest.raises(IncompleteRead) as cut:
        ask(gateway, "GET", target)
    assert cut.value.partial == b"0123456789"


def test_cut_body_to_http_1_0_client_is_reset(gateway: Gateway) -> None:
    """Without chunks or a length, a plain close would be a whole response."""
    parts = urlsplit(gateway.origin)
    with socket.create_connection((parts.hostname, parts.port), timeout=10) as client:
        client.sendall(f"GET /v1/cut/chunked HTTP/1.0\r\nauthorization: {OWN['authorization']}\r\n\r\n".encode())
        client.recv(65_536)
        with pytest.raises(ConnectionResetError):
            client.recv(65_536)


def test_silence_within_body_breaks_off_after_idle(gateway: Gateway, vendor: Vendor) -> None:
    with pytest.raises(IncompleteRead):
        ask(gateway, "GET", "/v1/stall", headers={**OWN, "x-request-id": "idle-1"})
    assert log_line(gateway, "idle-1")["error"] == "idle_s_exceeded"
    until(vendor.last("/v1/stall").has_left.is_set)


def test_early_answer_to_upload_is_passed(gateway: Gateway) -> None:
    """The vendor answers after the first part; the client gets that answer, and the connection ends."""
    parts = urlsplit(gateway.origin)
    with socket.create_connection((parts.hostname, parts.port), timeout=10) as client:
        client.sendall(f"POST /v1/uploads/refused HTTP/1.1\r\nhost: x\r\nauthorization: {OWN['authorization']}\r\n"
                       f"content-length: {100 * MIB}\r\n\r\n".encode() + b"x" * 1000)
        answer = client.recv(65_536)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"connection: close\r\n" in answer


def test_expectation_is_answered_once_upstream_takes_body(gateway: Gateway) -> None:
    parts = urlsplit(gateway.origin)
    with socket.create_connection((parts.hostname, parts.port), timeout=10) as client:
        client.sendall(f"POST /v1/uploads HTTP/1.1\r\nhost: x\r\nauthorization: {OWN['authorization']}\r\n"
                       "content-length: 5\r\nexpect: 100-continue\r\n\r\n".encode())
        assert client.recv(65_536) == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.sendall(b"12345")
        answer = client.recv(65_536)
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b'"n_bytes": 5' in answer
    assert b'"expect"' not in answer


def test_expectation_without_key_is_refused_before_body(gateway: Gateway, vendor: Vendor) -> None:
    n_before = len(vendor.requests)
    parts = urlsplit(gateway.origin)
    with socket.create_connection((parts.hostname, parts.port), timeout=10) as client:
        client.sendall(b"POST /v1/uploads HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\nexpect: 100-continue\r\n\r\n")
        assert client.recv(65_536).startswith(b"HTTP/1.1 401 ")
    assert len(vendor.requests) == n_before


def test_body_above_limit_is_413(gateway: Gateway) -> None:
    parts = urlsplit(gateway.origin)
    with socket.create_connection((parts.hostname, parts.port), timeout=10) as client:
        client.sendall(f"POST /v1/uploads HTTP/1.1\r\nhost: x\r\nauthorization: {OWN['authorization']}\r\n"
                       "content-length: 500000001\r\n\r\n".encode())
        assert client.recv(65_536).startswith(b"HTTP/1.1 413 ")


def test_no_key_is_401_and_quota_is_429(gateway: Gateway) -> None:
    assert ask(gateway, "GET", "/v1/skills", headers={})[0].status == 401
    other = {"authorization": f"Bearer {KEYS['b']}"}
    statuses = [ask(gateway, "GET", "/v1/skills", headers=other)[0].status for _ in range(3)]
    assert statuses == [200, 200, 429]
    assert ask(gateway, "GET", "/v1/skills")[0].status == 200  # another tenant's quota


def test_upstream_at_its_limit_is_503_and_over_its_rate_429(gateway: Gateway, vendor: Vendor) -> None:
    vendor.gate.clear()
    connection = connect(gateway)
    connection.request("POST", "/v1/score", b"{}", OWN)
    until(lambda: any(one.target == "/v1/score" for one in vendor.requests))
    response, body = ask(gateway, "POST", "/v1/score", b"{}")
    assert (response.status, json.loads(body)["error"]["code"]) == (503, "upstream_busy")
    vendor.gate.set()
    assert connection.getresponse().read() == b"{}"
    connection.close()
    assert [ask(gateway, "POST", "/v1/ocr", b"{}")[0].status for _ in range(2)] == [200, 429]


def test_upstream_that_is_down_is_suspended(gateway: Gateway) -> None:
    """Two failed connections in a row, as its settings say; then requests are refused at once, with Retry-After."""
    codes = []
    for _ in range(3):
        response, body = ask(gateway, "POST", "/v1/evals", b"{}")
        codes.append((response.status, json.loads(body)["error"]["code"]))
    assert codes == [(502, "upstream_connect"), (502, "upstream_connect"), (503, "upstream_down")]
    assert int(response.headers["retry-after"]) >= 1


@pytest.mark.parametrize(("target", "code"), [
    ("/v1/models", None), ("/v1/%66iles%2fx%2f..", "bad_path"), ("/v1/..%2fadmin", "bad_path"), ("/v1/a//b", "bad_path"),
    ("/v1/%63hat/completions", "not_found"), ("/v1/Chat/Completions", "not_found"), ("/v1/jobs/x/y/z", "not_found"),
    ("/v2/images", "not_found"), ("/images", "not_found"),
])
def test_own_and_ambiguous_paths_are_not_passed(gateway: Gateway, vendor: Vendor, target: str, code: str | None) -> None:
    n_before = len(vendor.requests)
    _, body = ask(gateway, "GET", target)
    assert json.loads(body).get("error", {}).get("code") == code
    assert len(vendor.requests) == n_before


def test_metrics_count_requests_and_bytes(gateway: Gateway) -> None:
    ask(gateway, "POST", "/v1/skills", b"12345")
    request = urllib.request.Request(f"{gateway.origin}/metrics", headers={"authorization": f"Bearer {KEYS['boss']}"})
    text = urllib.request.urlopen(request, timeout=10).read().decode()
    pairs = [line.rpartition(" ") for line in text.splitlines() if line[:1] not in ("#", "")]
    rows = {name: float(value) for name, _, value in pairs}
    assert rows['stayfast_passthrough_requests_total{upstream="vendor",path="/v1/skills",status="200"}'] >= 1
    assert rows['stayfast_passthrough_bytes_total{upstream="vendor",path="/v1/skills",direction="up"}'] >= 5
    assert rows['stayfast_passthrough_in_flight{upstream="vendor"}'] == 0
