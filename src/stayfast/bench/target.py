"""What a run asks of whatever it measures: a server behind HTTP, or the pipeline in this process."""

from typing import Protocol

import msgspec

from stayfast.bench.gaps import Gaps
from stayfast.bench.samples import Sample
from stayfast.bench.schedule import Shot


class Asking(msgspec.Struct, frozen=True, gc=False):
    """One shot as it is due now. Instants are the clock's."""

    shot: Shot
    zero_at: float  # the run's zero: instants of the sample count from it
    timeout_at: float  # by then the answer must be whole: the user's patience, from t0
    gaps: Gaps  # where gaps between chunks are counted, at the run's seconds


class Target(Protocol):
    """Something that answers. Task-safe."""

    @property
    def counted_by(self) -> str:
        """How output tokens were counted so far: usage, chunks, or both."""
        ...

    async def ask(self, asking: Asking) -> Sample:
        """Ask, and say how it went. Failures, the time-out among them, are samples, never exceptions."""
        ...

    def close(self) -> None:
        """Let go of what is held between requests. Answers on their way are cut off."""
        ...
