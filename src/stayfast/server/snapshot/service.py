"""The interface of snapshots that the endpoints need."""

from typing import Protocol

from stayfast.server.snapshot.live_feed import LiveFeed


class SnapshotService(Protocol):
    """What the whole gateway does now and did in the last hour. Results are JSON."""

    @property
    def feed(self) -> LiveFeed: ...

    async def snapshot(self) -> bytes:
        """The whole snapshot. Raises Shed (503) if the worker that collects does not answer."""

    async def history(self, seconds: float) -> bytes:
        """Frames of the last `seconds`. Raises Shed (503)."""
