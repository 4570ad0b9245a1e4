"""One request's record: what came, when, for whom, by when it must be over, and where its time went."""

import msgspec

from stayfast.core.clock import Clock
from stayfast.core.deadline import Deadline, Timeouts
from stayfast.core.types import Request, Stage
from stayfast.pipeline.ledger import Ledger
from stayfast.pipeline.watch import Watch


class Arrival(msgspec.Struct, frozen=True, gc=False):
    """What the edge knows of a request beside its body. `accepted_at` is when its first byte was read."""

    request_id: str
    accepted_at: float  # monotonic seconds
    tenant: str | None = None
    headers: tuple[tuple[str, str], ...] = ()  # the client's headers that may go on to an upstream (lower-case names)
    total_s: float | None = None  # the client's own patience, where it said so


class Exchange:
    """A request on its way through the stages. One task owns it; its deadline starts at accept."""

    __slots__ = ("arrival", "deadline", "ledger", "n_attempts", "request", "route", "timeouts", "total_s",
                 "upstream", "watch")

    def __init__(self, request: Request, arrival: Arrival, timeouts: Timeouts, clock: Clock) -> None:
        total_s = timeouts.total_s if arrival.total_s is None else min(arrival.total_s, timeouts.total_s)
        self.total_s = total_s
        self.request = request
        self.arrival = arrival
        self.timeouts = timeouts
        self.deadline = Deadline(arrival.accepted_at + total_s)
        self.ledger = Ledger(clock, arrival.accepted_at, self.deadline)
        self.watch = Watch(clock, self.deadline, total_s)
        self.n_attempts = 0
        self.route: str | None = None
        self.upstream: str | None = None

    def enter(self, stage: Stage) -> None:
        """The next stage begins."""
        self.ledger.enter(stage, self.timeouts.first_token_s if stage is Stage.CALL else None)

    def __repr__(self) -> str:
        where = self.ledger.stage.value if self.ledger.stage is not None else "done"
        return f"<Exchange {self.arrival.request_id} {self.request.api.value} {self.request.model!r} in {where}>"
