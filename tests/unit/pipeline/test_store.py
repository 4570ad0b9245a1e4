"""The store in this process's memory."""

from stayfast.pipeline.store import MemoryStore
from tests.unit.pipeline.stores import StoreSuite


class TestMemoryStore(StoreSuite):
    """All that `Store` promises."""

    make = MemoryStore
