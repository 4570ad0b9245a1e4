"""Public test tools: virtual time, scripted upstreams and a recording sink.

    from stayfast.testing import Say, Scripted, SimLoop, Wait, run

    def test_first_word_after_250_ms():
        async def main(loop: SimLoop) -> float: ...
        assert run(main) == 0.25      # virtual seconds: exact, and without waiting
"""

from typing import TypeVar

from stayfast.core.events import Fact
from stayfast.testing.simloop import Deadlocked, SimLoop, VirtualThreads, run
from stayfast.upstreams.scripted import Cut, Fail, Script, ScriptedUpstream, SendBytes, SendText, Wait

__all__ = ["Cut", "Deadlocked", "Fail", "RecordingSink", "Script", "ScriptedUpstream", "SendBytes", "SendText", "SimLoop",
           "VirtualThreads", "Wait", "run"]

T = TypeVar("T")


class RecordingSink:
    """Records all facts in order."""

    def __init__(self) -> None:
        self.facts: list[Fact] = []

    def emit(self, fact: Fact) -> None:
        self.facts.append(fact)

    def facts_of(self, kind: type[T]) -> list[T]:
        """The facts of one type, in order."""
        return [fact for fact in self.facts if isinstance(fact, kind)]
