"""From listening to the last byte."""

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from stayfast.lab.sim_server.site import Site

BACKLOG = 4096


class Listener:
    """A site on a port. Make it inside the loop."""

    __slots__ = ("_server", "site")

    def __init__(self, site: Site) -> None:
        self.site = site
        self._server: asyncio.Server | None = None

    async def listen(self) -> int:
        """Take connections; returns the port. Raises OSError."""
        config = self.site.config
        self._server = await asyncio.get_running_loop().create_server(self.site.connect, config.host, config.port,
                                                                      backlog=BACKLOG)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    def close(self) -> None:
        """Stop listening and cut off what runs."""
        if self._server is not None:
            self._server.close()
        self.site.close()


@contextmanager
def signalled() -> Iterator[asyncio.Event]:
    """An event for SIGTERM and SIGINT, which end nothing by themselves inside of this."""
    loop = asyncio.get_running_loop()
    has_come = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, has_come.set)
    try:
        yield has_come
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
