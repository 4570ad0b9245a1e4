"""A proxy that does what a gateway must not: when its client leaves it stays with the upstream, to the end.

`python deaf.py SETTINGS`: takes a gateway's settings, of which it reads the routes' first upstreams.
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit


class Deaf:
    """Keeps every upstream connection open."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings = settings
        self._open: list[asyncio.StreamWriter] = []  # never closed

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        body = await reader.readexactly(int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0]))
        upstream = self._settings["routes"][json.loads(body)["model"]]["upstreams"][0]
        base = urlsplit(self._settings["upstreams"][upstream]["base_url"])
        upstream_reader, upstream_writer = await asyncio.open_connection(base.hostname, base.port)
        self._open.append(upstream_writer)
        upstream_writer.write(head.replace(b"/v1/", base.path.encode() + b"/", 1) + body)
        while data := await upstream_reader.read(65536):
            if not writer.transport.is_closing():
                writer.write(data)


async def main(settings: dict[str, Any]) -> None:
    deaf = Deaf(settings)
    server = await asyncio.start_server(deaf.serve, "127.0.0.1", 0)
    sys.stdout.write(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(json.loads(Path(sys.argv[1]).read_text())))
