"""The simulated Gemini API, in a thread of the tests' own process."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from stayfast.lab.simulated.vendors.gemini_server import GeminiRecord, GeminiServer
from tests.loop_thread import PATIENCE_S, loop_in_thread


@dataclass(frozen=True, slots=True)
class GeminiRig:
    """The running API. Records are only appended, so that another thread may read them."""

    server: GeminiServer
    port: int

    @property
    def origin(self) -> str:
        """Its address without a path."""
        return f"http://127.0.0.1:{self.port}"

    def record(self, marker: str) -> GeminiRecord:
        """The only request whose body has `marker`."""
        (found,) = [record for record in self.server.records if marker.encode() in record.body]
        return found

    def body(self, marker: str) -> dict[str, Any]:
        """The body of that request."""
        decoded: dict[str, Any] = json.loads(self.record(marker).body)
        return decoded

    def n_received(self, marker: str) -> int:
        """How many requests have `marker`."""
        return sum(marker.encode() in record.body for record in self.server.records)

    def last_body(self, marker: str) -> dict[str, Any]:
        """The body of the last of several requests of one conversation."""
        found: list[dict[str, Any]] = [json.loads(record.body) for record in self.server.records
                                       if marker.encode() in record.body]
        return found[-1]

    def wait_left(self, marker: str) -> bool:
        """Wait until the client has closed the connection of its request."""
        give_up_at = time.monotonic() + PATIENCE_S
        while time.monotonic() < give_up_at:
            if any(marker.encode() in record.body and record.has_left for record in self.server.records):
                return True
            time.sleep(0.01)
        return False


@contextmanager
def running_gemini() -> Iterator[GeminiRig]:
    """The API on a free port of loopback."""
    server = GeminiServer()
    with loop_in_thread("gemini") as loop:
        loop.at_end.append(server.close)
        yield GeminiRig(server, loop.run(server.listen()))
