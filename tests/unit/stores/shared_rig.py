"""A shared store on virtual time, for tests."""

from collections import Counter
from random import Random

from stayfast.core.events import StoreCallDone
from stayfast.stores.remote_store import RemoteStore, SharedConfig
from stayfast.testing import RecordingSink, SimLoop
from tests.unit.stores.fake_door import FakeDoor, Place

FAR = SharedConfig(local_bytes=0)


class Rig:
    """A store and its door."""

    def __init__(self, loop: SimLoop, config: SharedConfig = FAR, place: Place | None = None, seed: int = 1) -> None:
        self.loop = loop
        self.sink = RecordingSink()
        self.door = FakeDoor(place if place is not None else Place(), loop)
        self.store = RemoteStore("s", self.door, config, loop, self.sink, rng=Random(seed))

    def counts(self, what: str = "get") -> Counter[str]:
        """What came of it, how often."""
        return Counter(fact.result for fact in self.sink.facts_of(StoreCallDone) if fact.what == what)
