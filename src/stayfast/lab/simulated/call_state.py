"""What a simulated provider knows of one request: what it asks for, what it holds, and what came of it."""

from stayfast.lab.simulated.engine import Sequence
from stayfast.lab.simulated.prompt_cache import Looked
from stayfast.lab.simulated.quota import Charge
from stayfast.lab.simulated.request import Ask


class CallState:
    """One request at a provider. Changed by the provider and by what answers the request, on one loop."""

    __slots__ = ("ask", "asked_at", "charge", "ended_at", "n_after_hangup", "n_generated", "number", "outcome", "remembers",
                 "request_id", "sequence")

    def __init__(self, ask: Ask, number: int, request_id: str, asked_at: float) -> None:
        self.ask = ask
        self.number = number
        self.request_id = request_id  # what the provider calls it, in headers and errors
        self.asked_at = asked_at
        self.ended_at: float | None = None
        self.outcome: str | None = None  # None: running
        self.n_generated = 0  # tokens of all choices, told when it is over
        self.n_after_hangup = 0  # of those, the ones that came into being after the caller had gone
        self.charge: Charge | None = None  # what the quota was charged in advance
        self.remembers: Looked | None = None  # what its prompt leaves in the provider's cache
        self.sequence: Sequence | None = None  # its place in the engine
