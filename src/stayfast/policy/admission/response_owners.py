"""Which client's key made a stored response, so that no other client goes on from it.

Problem: a provider stores responses by *its* account, and the gateway speaks to it with one key for all tenants. Whoever
has learned another tenant's response id (from a log, a ticket, a screenshot) could send it as `previous_response_id` and
read the conversation behind it. Rule: the id of each response is noted with the tenant it was answered to, and a request
that goes on from a response noted as another's is refused in the provider's own words for an id that it does not know.

    word = 40 bits of BLAKE2b(id) | 24 bits of BLAKE2b(tenant)        in the cell that 18 other bits of the id's hash name

A word is one integer of 64 bits, so workers that share the memory never see half of one. Memory: 2 MiB, once anything is
noted. A tenant whose answer was shared with another's (a cache that tenants share) makes the response open to any.
When wrong: an id that is not noted passes: one from before the start, from another machine's gateway, or whose cell another
id has taken since (one in 262,144 each time; half are gone after some 180,000 responses). Such ids are long random words,
and to refuse them would break every conversation at each restart. Two tenants' marks are alike once in 16 million pairs.
Conversations, containers and files of a provider are made beside the gateway, and are noted nowhere.
"""

from array import array
from collections.abc import Callable
from hashlib import blake2b
from typing import Final, Protocol

N_CELLS: Final = 1 << 18
_TENANT_BITS: Final = 24
_TENANT_MASK: Final = (1 << _TENANT_BITS) - 1
_ANYBODY: Final = 0


class Words(Protocol):
    """`N_CELLS` unsigned integers of 64 bits, 0 at first; perhaps seen by several processes."""

    def __getitem__(self, index: int, /) -> int: ...

    def __setitem__(self, index: int, value: int, /) -> None: ...


def own_words() -> Words:
    """Those of one process."""
    return array("Q", bytes(8 * N_CELLS))


class ResponseOwners:
    """The tenants of stored responses, by id. Pure state; bounded."""

    __slots__ = ("_make", "_words")

    def __init__(self, make: Callable[[], Words] = own_words) -> None:
        """make: where the words are; called when the first response is noted or looked up."""
        self._make = make
        self._words: Words | None = None

    def note(self, response_id: str, tenant: str) -> None:
        """This tenant has been answered with this response."""
        words, (cell, mark) = self._there(), _place_of(response_id)
        owner, known = _mark_of(tenant), words[cell]
        if known >> _TENANT_BITS == mark and known & _TENANT_MASK != owner:
            owner = _ANYBODY
        words[cell] = mark << _TENANT_BITS | owner

    def is_anothers(self, response_id: str, tenant: str) -> bool:
        """Whether it is noted as a response to other tenants alone."""
        cell, mark = _place_of(response_id)
        known = self._there()[cell]
        return known >> _TENANT_BITS == mark and known & _TENANT_MASK not in (_ANYBODY, _mark_of(tenant))

    def _there(self) -> Words:
        if self._words is None:
            self._words = self._make()
        return self._words

    def __repr__(self) -> str:
        return f"<ResponseOwners of {N_CELLS} cells{', unused' * (self._words is None)}>"


def _place_of(response_id: str) -> tuple[int, int]:
    """A cell, and 40 bits that are never 0."""
    digest = int.from_bytes(blake2b(response_id.encode(errors="replace"), digest_size=8).digest(), "big")
    return digest % N_CELLS, digest >> 64 - 40 or 1


def _mark_of(tenant: str) -> int:
    """24 bits that are never 0."""
    return int.from_bytes(blake2b(tenant.encode(), digest_size=3).digest(), "big") or 1
