"""The interfaces by which evidence decides on the tier of a request: before its call, and on the answer of a small tier."""

from collections.abc import Callable
from typing import Protocol

import msgspec

from stayfast.core.deadline import Deadline
from stayfast.core.types import AnswerSummary, Chunk, Request

SHADOW = "shadow"  # of a request that another tier answers as well: the beginning of its role; the tier's name follows


class TierVerdict(msgspec.Struct, frozen=True, gc=False):
    """Whether an answer is enough. why: a few fixed words with figures, for the record; never a part of an answer."""

    is_enough: bool
    why: str = ""


class TierFacts(msgspec.Struct, frozen=True, gc=False):
    """What an advisor or a verifier may know of a request besides its body. tiers: by name, small to large. start: of the
    settings. role: of a request that no client sent.
    """

    route: str
    tenant: str | None
    tiers: tuple[str, ...]
    start: str
    deadline: Deadline
    role: str = ""
    note: Callable[[str], object] = str  # for the record of the request; the default drops it


class TierAdvisor(Protocol):
    """Predicts the smallest tier that is enough for a request. Belongs to one loop; never awaits, never raises."""

    def advise(self, request: Request, facts: TierFacts) -> str | None:
        """The name of one of `facts.tiers`; None: no opinion, so the tier of the settings."""


OnAnswer = Callable[[bytes, AnswerSummary], None]


class TierObserver(Protocol):
    """Learns from the answers of all tiers, off the path. Belongs to one loop; never awaits, never raises."""

    def observe(self, request: Request, facts: TierFacts, served: str, advised: str) -> OnAnswer | None:
        """What is to be called with the whole answer, given to the client by the tier `served`; None: nothing. advised: the
        tier that was enough for the request.
        """

    def note_failed(self, request: Request, facts: TierFacts, tier: str) -> None:
        """A tier's answer was not enough, and was replaced."""


class TierVerifier(Protocol):
    """Checks the answers of tiers below the largest. Belongs to one loop; holds no state of a request."""

    def applies_to(self, request: Request, tier: str, facts: TierFacts) -> bool:
        """Whether an answer of this tier is to be verified; if not, it goes to the client as it comes."""

    async def verify(self, request: Request, answer: Chunk, summary: AnswerSummary, tier: str,
                     deadline: Deadline) -> TierVerdict:
        """Check a whole answer, in the client's dialect; of a stream, all its events. Must end by the deadline, which
        leaves time for the next tier. Never raises for an answer of unknown form.
        """
