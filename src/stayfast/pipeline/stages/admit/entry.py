"""The limits of a request before it waits for a place: the size of its prompt, and the quota of its key."""

from stayfast.pipeline.exchange import Exchange, ReleaseStack
from stayfast.pipeline.stages.admit.key_quota import KeyQuotas
from stayfast.pipeline.stages.admit.size_limit import SizeLimit


class EntryLimits:
    """Both limits of one gateway."""

    __slots__ = ("_key_quotas", "_size")

    def __init__(self, size: SizeLimit, key_quotas: KeyQuotas) -> None:
        self._size = size
        self._key_quotas = key_quotas

    def check(self, ex: Exchange, held: ReleaseStack) -> Exchange:
        """The request, or a copy for the route of long prompts. held: gets what settles the key's quota. Raises Rejected
        (413), Shed (429).
        """
        if ex.policy.size is not None:
            ex = self._size.fit(ex)
        if ex.arrival.key_id:
            settle = self._key_quotas.reserve(ex)
            if settle is not None:
                held.add(settle)
        return ex
