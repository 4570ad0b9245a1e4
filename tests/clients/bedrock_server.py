"""The simulated Bedrock on a port of loopback, in a thread of its own; signatures are verified by botocore's algorithm."""

import asyncio
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from re import search
from typing import Any

from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from stayfast.lab.simulated.vendors.bedrock import BedrockAnswer, BedrockModel, BedrockVendor
from stayfast.lab.simulated.vendors.raw_request import read_raw_request
from tests.loop_thread import loop_in_thread

KEY = "bedrock-api-key-0123456789"
REGION = "eu-west-1"
ACCESS_KEY, SECRET_KEY, TOKEN = "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", "a-session-token"
MODEL = "eu.anthropic.claude-sonnet-4-5-20250929-v1:0"
PROFILE = "arn:aws:bedrock:eu-west-1:123456789012:application-inference-profile/a1b2c3"
MODELS = {
    MODEL: BedrockModel(), PROFILE: BedrockModel(),
    "sim.throttled": BedrockModel((429, "ThrottlingException", "Too many requests, please wait before trying again.")),
    "sim.loading": BedrockModel((429, "ModelNotReadyException", "Model is not ready for inference.")),
    "sim.invalid": BedrockModel((400, "ValidationException", "Input is too long for requested model.")),
    "sim.broken": BedrockModel((424, "ModelErrorException", "The model failed.")),
    "sim.throttled-inside": BedrockModel(exception="throttlingException", n_events=3),
    "sim.failed-at-once": BedrockModel(exception="modelStreamErrorException", n_events=1),
    "sim.cut": BedrockModel(n_events=3),
    "sim.no-usage": BedrockModel(n_events=-1),
    "sim.silent": BedrockModel(n_events=3, is_silent=True),
    "sim.filtered": BedrockModel(stop_reason="guardrail_intervened"),
    "sim.malformed": BedrockModel(stop_reason="malformed_tool_use"),
}


def is_signed(method: str, target: str, headers: Mapping[str, str], body: bytes) -> bool:
    """Whether botocore makes the same signature of this request."""
    given = headers["authorization"]
    names, signature = search(r"SignedHeaders=([^,]*)", given), search(r"Signature=([0-9a-f]*)", given)
    if names is None or signature is None or f"Credential={ACCESS_KEY}/" not in given:
        return False
    signed = {name: headers[name] for name in names[1].split(";") if name in headers}
    request = AWSRequest(method, f"http://{headers['host']}{target}", signed, body)
    request.context["timestamp"] = headers["x-amz-date"]
    auth = SigV4Auth(Credentials(ACCESS_KEY, SECRET_KEY, TOKEN), "bedrock", REGION)
    text = auth.string_to_sign(request, auth.canonical_request(request))
    return bool(auth.signature(text, request) == signature[1]) and headers.get("x-amz-security-token") == TOKEN


@dataclass(slots=True)
class BedrockRecord:
    """One request that was received."""

    target: str
    headers: dict[str, str]
    body: bytes
    has_left: threading.Event = field(default_factory=threading.Event)  # the client closed its connection

    @property
    def json(self) -> dict[str, Any]:
        parsed: dict[str, Any] = json.loads(self.body)
        return parsed


@dataclass(slots=True)
class BedrockServer:
    """The running server. `records`: the requests so far."""

    vendor: BedrockVendor = field(default_factory=lambda: BedrockVendor(MODELS, KEY, is_signed))
    records: list[BedrockRecord] = field(default_factory=list)
    port: int = 0

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def requests_with(self, marker: str) -> list[BedrockRecord]:
        """Those with `marker` in their body."""
        return [record for record in self.records if marker.encode() in record.body]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        with suppress(ConnectionError, asyncio.IncompleteReadError), closing(writer):
            while True:
                method, target, headers, body = await read_raw_request(reader)
                record = BedrockRecord(target, headers, body)
                self.records.append(record)
                await _send(self.vendor.answer(method, target, headers, body), record, reader, writer)


async def _send(answer: BedrockAnswer, record: BedrockRecord, reader: asyncio.StreamReader,
                writer: asyncio.StreamWriter) -> None:
    fields = {**answer.headers, "transfer-encoding": "chunked"}
    lines = [f"HTTP/1.1 {answer.status} Status", *(f"{name}: {value}" for name, value in fields.items()), "", ""]
    writer.write("\r\n".join(lines).encode())
    for part in answer.parts:
        for piece in (part[:7], part[7:]):  # a frame arrives in pieces
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            await writer.drain()
    if answer.is_silent:
        with suppress(ConnectionError):
            await reader.read()  # until the client leaves
        record.has_left.set()
        raise ConnectionResetError
    writer.write(b"0\r\n\r\n")
    await writer.drain()


@contextmanager
def running_bedrock() -> Iterator[BedrockServer]:
    """The server on a free port."""
    bedrock = BedrockServer()
    with loop_in_thread("bedrock") as loop:
        server = loop.run(asyncio.start_server(bedrock.serve, "127.0.0.1", 0))
        loop.at_end.append(server.close)
        bedrock.port = server.sockets[0].getsockname()[1]
        yield bedrock
