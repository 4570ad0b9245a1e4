"""One request's record: what came, when, for whom, by when it must be over, and where its time went."""

from dataclasses import dataclass

from stayfast.core.deadline import Deadline
from stayfast.core.types import Request
from stayfast.pipeline.ledger import Ledger


@dataclass(frozen=True, slots=True)
class Arrival:
    """What the edge knows of a request beside its body. `accepted_at` is when its first byte was read."""

    request_id: str
    accepted_at: float  # monotonic seconds
    tenant: str | None = None
    headers: tuple[tuple[str, str], ...] = ()  # the client's headers that may go on to an upstream (lower-case names)
    total_s: float | None = None  # the client's own patience, where it said so


class Exchange:
    """A request on its way through the stages. One task owns it."""

    __slots__ = ("arrival", "deadline", "ledger", "n_attempts", "request", "upstream")

    def __init__(self, request: Request, arrival: Arrival, deadline: Deadline, ledger: Ledger) -> None:
        self.request = request
        self.arrival = arrival
        self.deadline = deadline
        self.ledger = ledger
        self.n_attempts = 0
        self.upstream: str | None = None

    def __repr__(self) -> str:
        where = self.ledger.stage.value if self.ledger.stage is not None else "done"
        return f"<Exchange {self.arrival.request_id} {self.request.api.value} {self.request.model!r} in {where}>"
