"""Issuers of credentials on loopback: Entra, Google, its metadata server, AWS's container endpoint and STS; and a provider
that accepts what they issued."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from ssl import SSLContext
from typing import Any
from urllib.parse import parse_qs

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

SECRET = "marker-secret-51d7"
TOKEN = "marker-token-90ac"
CHUNK = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m",
         "choices": [{"index": 0, "delta": {"content": "hi"}, "finish_reason": "stop"}]}
_STS = """<AssumeRoleResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleResult><Credentials>
<AccessKeyId>ASIAROLE</AccessKeyId><SecretAccessKey>{secret}</SecretAccessKey><SessionToken>{token}</SessionToken>
<Expiration>{ends}</Expiration></Credentials></AssumeRoleResult></AssumeRoleResponse>"""


class Issuers(ThreadingHTTPServer):
    """All issuers. status: of their answers; an error quotes what was sent, secrets included."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.status, self.life_s = 200, 3600
        self.hang = threading.Event()
        self.hang.set()  # cleared: tokens are not answered until it is set again
        self.refuses = False  # the provider: its error quotes the token
        self.asked: list[tuple[str, dict[str, str]]] = []  # paths and forms
        self.provider_tokens: list[str] = []

    @property
    def port(self) -> int:
        return int(self.server_address[1])


class _Handler(BaseHTTPRequestHandler):
    server: Issuers
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path.endswith("openid-configuration"):
            base = f"https://127.0.0.1:{self.server.port}/tenant"
            self._answer({"token_endpoint": f"{base}/oauth2/v2.0/token", "issuer": f"{base}/v2.0",
                          "authorization_endpoint": f"{base}/oauth2/v2.0/authorize"}, 200)
            return
        self.server.asked.append((path, dict(self.headers)))
        if path == "/aws/container":
            self._answer({"AccessKeyId": "ASIACONTAINER", "SecretAccessKey": SECRET, "Token": TOKEN,
                          "Expiration": self._ends()})
        elif path.endswith("/token"):
            self._answer({"access_token": TOKEN, "expires_in": self.server.life_s, "token_type": "Bearer", "resource": "r",
                          "expires_on": str(int(datetime.now(UTC).timestamp()) + self.server.life_s)})
        else:
            self._answer({"default": {"email": "a@b", "aliases": [], "scopes": []}, "email": "default", "scopes": []})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"] or 0))
        if self.path.endswith("/chat/completions"):
            self._chat()
            return
        self.server.hang.wait(60)
        form = {name: values[0] for name, values in parse_qs(body.decode()).items()}
        self.server.asked.append((self.path, form))
        if form.get("Action") == "AssumeRole":
            self._answer(_STS.format(secret=SECRET, token=TOKEN, ends=self._ends()).encode(), media="text/xml")
        else:
            self._answer({"access_token": TOKEN, "expires_in": self.server.life_s, "token_type": "Bearer",
                          "issued_token_type": "urn:ietf:params:oauth:token-type:access_token"}, form=form)

    def _chat(self) -> None:
        self.server.provider_tokens.append(self.headers["authorization"])
        if self.headers["authorization"] == f"Bearer {TOKEN}" and not self.server.refuses:
            self._answer(b"data: %s\n\ndata: [DONE]\n\n" % json.dumps(CHUNK).encode(), 200, media="text/event-stream")
        else:
            self._answer({"error": {"message": f"no {self.headers['authorization']}", "code": "x", "type": "y"}}, 401)

    def _ends(self) -> str:
        return (datetime.now(UTC) + timedelta(seconds=self.server.life_s)).strftime("%Y-%m-%dT%H:%M:%SZ")

    def _answer(self, answer: Any, status: int | None = None, media: str = "application/json",
                form: dict[str, str] | None = None) -> None:
        status = status or self.server.status
        if status != 200 and form is not None:
            answer = {"error": "invalid_client", "error_description": f"AADSTS7000215: {json.dumps(form)}"}
        body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("content-type", media)
        self.send_header("metadata-flavor", "Google")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing on standard error."""


@contextmanager
def issuers(context: SSLContext | None = None) -> Iterator[Issuers]:
    """All issuers at one port, over TLS if there is a context."""
    server = Issuers()
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def service_account(folder: Path, port: int) -> Path:
    """The file of a service account whose tokens come from loopback."""
    key = rsa.generate_private_key(65537, 2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    file = folder / "account.json"
    file.write_text(json.dumps({"type": "service_account", "client_email": "a@b.iam", "private_key_id": "1",
                                "private_key": key.decode(), "token_uri": f"http://127.0.0.1:{port}/google/token"}))
    return file


def federation(folder: Path, port: int) -> Path:
    """The file of a workload identity pool, whose subject token is in a file."""
    (folder / "subject").write_text(SECRET)
    file = folder / "federation.json"
    file.write_text(json.dumps({
        "type": "external_account", "audience": "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p",
        "subject_token_type": "urn:ietf:params:oauth:token-type:jwt", "token_url": f"http://127.0.0.1:{port}/sts/token",
        "credential_source": {"file": str(folder / "subject")}}))
    return file
