"""The owners of stored responses, so that no tenant can continue another tenant's conversation.

Problem: a provider stores responses by account, and the gateway uses one account for all tenants. A client that found
another tenant's response id could send it as `previous_response_id`. Rule: the id of each response is recorded with its
tenant, and a request that continues another tenant's response gets the provider's own error for an unknown id.

    word = 40 bits of BLAKE2b(id) | 24 bits of BLAKE2b(tenant)        in the cell given by 18 other bits of the id's hash

A word is one 64-bit integer, so workers that share the memory (2 MiB) never see a partial one. A response that two tenants
received (from a shared cache) is open to all.
When wrong: an unrecorded id passes: from before the start, from another machine's gateway, or overwritten (half are lost
after about 180,000 responses). Such ids are long and random, and refusing them would break every conversation at a restart.
Conversations, containers and files that were created elsewhere are not recorded.
"""

from array import array
from collections.abc import Callable
from hashlib import blake2b
from typing import Final, Protocol

N_CELLS: Final = 1 << 18
_TENANT_BITS: Final = 24
_TENANT_MASK: Final = (1 << _TENANT_BITS) - 1
_SHARED: Final = 0


class Words(Protocol):
    """`N_CELLS` unsigned 64-bit integers, initially 0; possibly in shared memory."""

    def __getitem__(self, index: int, /) -> int: ...

    def __setitem__(self, index: int, value: int, /) -> None: ...


def allocate_words() -> Words:
    """Memory of this process alone."""
    return array("Q", bytes(8 * N_CELLS))


class ResponseOwners:
    """The tenants of stored responses, by id. Pure state; bounded."""

    __slots__ = ("_make", "_words")

    def __init__(self, make: Callable[[], Words] = allocate_words) -> None:
        """`make` allocates the words, at the first use."""
        self._make = make
        self._words: Words | None = None

    def record(self, response_id: str, tenant: str) -> None:
        words, (cell, mark) = self._get_words(), _cell_of(response_id)
        owner, known = _tenant_bits(tenant), words[cell]
        if known >> _TENANT_BITS == mark and known & _TENANT_MASK != owner:
            owner = _SHARED
        words[cell] = mark << _TENANT_BITS | owner

    def belongs_to_other(self, response_id: str, tenant: str) -> bool:
        """Whether another tenant alone received this response."""
        cell, mark = _cell_of(response_id)
        known = self._get_words()[cell]
        return known >> _TENANT_BITS == mark and known & _TENANT_MASK not in (_SHARED, _tenant_bits(tenant))

    def _get_words(self) -> Words:
        if self._words is None:
            self._words = self._make()
        return self._words


def _cell_of(response_id: str) -> tuple[int, int]:
    """The cell of an id, and 40 hash bits that are never all 0."""
    digest = int.from_bytes(blake2b(response_id.encode(errors="replace"), digest_size=8).digest(), "big")
    return digest % N_CELLS, digest >> 64 - 40 or 1


def _tenant_bits(tenant: str) -> int:
    return int.from_bytes(blake2b(tenant.encode(), digest_size=3).digest(), "big") or 1
