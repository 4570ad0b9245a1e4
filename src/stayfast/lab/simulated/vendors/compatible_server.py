"""The simulated OpenAI-compatible providers, Azure's paths and Vertex AI's for Anthropic, on a socket: for tests.

    /VENDOR/chat/completions                                                      with a bearer token
    /openai/v1/..., /openai/deployments/NAME/...?api-version=2024-10-21           Azure, with the header api-key
    /publishers/anthropic/models/NAME:rawPredict, ...:streamRawPredict            Vertex AI, with a bearer token
"""

import asyncio
import contextlib
from collections.abc import Iterator, Mapping
from re import fullmatch
from typing import Any, Final, NamedTuple

import msgspec

from stayfast.lab.simulated.vendors.compatible import COMPATIBLE_VENDORS, CompatibleVendor, VendorRefusal
from stayfast.lab.simulated.vendors.raw_request import read_raw_request

Json = dict[str, Any]
KEY: Final = "key-of-the-vendor"
_ANY: Final = msgspec.json.Decoder()
_AZURE: Final = CompatibleVendor("azure")
_AZURE_PATHS: Final = r"/openai/(?:v1|deployments/gpt-4o)/chat/completions(\?api-version=2024-10-21)?"
_VERTEX_PATH: Final = r"/publishers/anthropic/models/([^/:]+):(rawPredict|streamRawPredict)"
_OK: Final = 200


class ReceivedRequest(NamedTuple):
    """What a client sent."""

    target: str
    headers: Mapping[str, str]
    body: Json


class CompatibleServer:
    """Listens on loopback. `received`: the requests so far."""

    def __init__(self) -> None:
        self.received: list[ReceivedRequest] = []
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()

    async def listen(self) -> int:
        """Start; returns the port."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def close(self) -> None:
        """Close all connections; returns once they are."""
        if self._server is not None:
            self._server.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
                while True:
                    _, target, headers, body = await read_raw_request(reader)
                    request = ReceivedRequest(target, headers, _ANY.decode(body))
                    self.received.append(request)
                    await _answer(request, writer)
        finally:
            self._serving.discard(task)
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()


async def _answer(request: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
    try:
        headers, parts = _route(request)
        content = list(parts)
    except VendorRefusal as refusal:
        body = msgspec.json.encode(refusal.body)
        writer.write(b"HTTP/1.1 %d Refused\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
                     % (refusal.status, len(body), body))
        await writer.drain()
        return
    kind = "text/event-stream" if request.body.get("stream") else "application/json"
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    writer.write(f"HTTP/1.1 {_OK} OK\r\nContent-Type: {kind}\r\nTransfer-Encoding: chunked\r\n{lines}\r\n".encode())
    for part in content:
        if part:
            writer.write(b"%x\r\n%b\r\n" % (len(part), part))
            await writer.drain()
            await asyncio.sleep(0)  # each part is a read of its own
    writer.write(b"0\r\n\r\n")
    await writer.drain()


def _route(request: ReceivedRequest) -> tuple[Mapping[str, str], Iterator[bytes]]:
    """The headers and the parts of the answer. Raises VendorRefusal."""
    target, headers, body = request
    if target.startswith("/openai/"):
        if headers.get("api-key") != KEY:
            raise VendorRefusal(401, {"error": {"code": "401", "message": "Access denied due to invalid subscription key."}})
        found = fullmatch(_AZURE_PATHS, target)
        if found is None or (found[1] is None) is ("deployments" in target):
            raise VendorRefusal(404, {"error": {"code": "404", "message": "Resource not found"}})
        return {}, _AZURE.answer_parts(body)
    if headers.get("authorization") != f"Bearer {KEY}":
        raise VendorRefusal(401, {"error": {"message": "Invalid API key", "code": "invalid_api_key"}})
    if (path := fullmatch(_VERTEX_PATH, target)) is not None:
        return {}, _answer_vertex(path[2], body)
    found = fullmatch(r"/(\w+)/chat/completions", target)
    vendor = COMPATIBLE_VENDORS.get(found[1]) if found is not None else None
    if vendor is None:
        raise VendorRefusal(404, {"error": {"message": "Not found"}})
    return vendor.headers, vendor.answer_parts(body)


def _answer_vertex(specifier: str, body: Json) -> Iterator[bytes]:
    """Anthropic's protocol; the path names the model, and whether the answer is streamed."""
    complaint = "model: Extra inputs are not permitted" if "model" in body else (
        "anthropic_version: Field required" if body.get("anthropic_version") != "vertex-2023-10-16" else "")
    if specifier != ("streamRawPredict" if body.get("stream") else "rawPredict"):
        complaint = f"stream does not fit {specifier}"
    if complaint:
        raise VendorRefusal(400, {"type": "error", "error": {"type": "invalid_request_error", "message": complaint}})
    message: Json = {"id": "msg_vrtx_1", "type": "message", "role": "assistant", "model": "claude", "content": [],
               "stop_reason": None, "stop_sequence": None, "usage": {"input_tokens": 5, "output_tokens": 1}}
    text = {"type": "text", "text": "Hello"}
    end: Json = {"stop_reason": "end_turn", "stop_sequence": None}
    if not body.get("stream"):
        return iter([msgspec.json.encode({**message, **end, "content": [text]})])
    events: list[Json] = [
        {"type": "message_start", "message": message},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hello"}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": end, "usage": {"output_tokens": 1}}, {"type": "message_stop"}]
    return (f"event: {event['type']}\ndata: ".encode() + msgspec.json.encode(event) + b"\n\n" for event in events)
