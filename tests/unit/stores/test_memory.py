"""The store in this process's memory."""

from stayfast.stores.base import Store
from stayfast.stores.memory import MemoryStore
from tests.unit.stores.suite import StoreSuite


class TestMemoryStore(StoreSuite):
    """All that `Store` promises."""

    def make(self, max_bytes: int) -> Store:
        """An empty one."""
        return MemoryStore(max_bytes)
