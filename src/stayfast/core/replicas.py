"""Facts about the replicas of self-hosted engines."""

import msgspec


class PhaseChanged(msgspec.Struct, frozen=True, gc=False):
    """A replica of an engine changed its phase: loading, warming, ready, sleeping, draining."""

    upstream: str
    state: str
    why: str
