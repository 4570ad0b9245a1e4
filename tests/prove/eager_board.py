"""A gateway that does what the page must not: it makes a whole frame for each request, and for each viewer anew.

`python eager_board.py SETTINGS`: answers each request for a model at once; of the settings it reads the routes.
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

ANSWER = json.dumps({"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [
    {"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}}).encode()
PAGE = b"a page"


class EagerBoard:
    """Sends a frame of all requests so far to each viewer at each request."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._routes = list(settings["routes"])
        self._viewers: list[asyncio.StreamWriter] = []
        self._n = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                if head.startswith(b"GET /admin/live "):
                    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
                    self._viewers.append(writer)
                    return
                if head.startswith(b"GET "):
                    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: %d\r\n\r\n%b"
                                 % (len(PAGE), PAGE))
                    continue
                await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]))
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
                             % (len(ANSWER), ANSWER))
                self._show()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    def _show(self) -> None:
        self._n += 1
        for viewer in self._viewers:
            if viewer.transport.is_closing():
                continue
            rows = [{"route": route, "n": self._n, "heat": [[row, self._n] for row in range(29)]} for route in self._routes]
            viewer.write(b"event: frame\ndata: %b\n\n" % json.dumps({"n": self._n, "routes": rows, "requests": [
                {"id": f"req_{number:016x}", "route": self._routes[0]} for number in range(500)]}).encode())


async def main(settings: dict[str, Any]) -> None:
    server = await asyncio.start_server(EagerBoard(settings).serve, "127.0.0.1", 0)
    sys.stdout.write(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(json.loads(Path(sys.argv[1]).read_text())))
