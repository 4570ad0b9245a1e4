"""An answer that is there from the start: a template's, a cache's. No upstream is asked, and nothing is held."""

from stayfast.core.types import Chunk, Outcome, Sight, Usage
from stayfast.pipeline.cadence import Cadence


class Known:
    """Source and stream in one; nothing comes after the lead."""

    __slots__ = ("cadence", "name", "sight")

    is_incremental = False

    def __init__(self, name: str, cadence: Cadence, usage: Usage | None, finish_reason: str | None) -> None:
        self.name = name
        self.cadence = cadence
        self.sight = sight = Sight()
        sight.is_complete = True
        sight.n_content = 1
        sight.finish_reason = finish_reason
        sight.usage = usage

    async def next(self) -> Chunk | None:
        """The lead was all."""
        return None

    def cut(self) -> Chunk | None:
        """It is whole."""
        return None

    def close(self) -> None:
        """Holds nothing."""

    def end(self, outcome: Outcome, fault: str | None = None, *, upstream_status: int | None = None) -> None:
        """Holds nothing."""

    def abandon(self) -> None:
        """Holds nothing."""
