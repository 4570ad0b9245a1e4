"""Where summaries of conversations are: their keys in a store of answers, what is stored, and what it is deleted by.

A conversation has no id that all clients send. It is found by its own turns: the key of its first n turns is

    link(0) = SHA-256(route, tenant),  link(n) = SHA-256(link(n - 1), digest of turn n)

An edited turn changes all links from there on, so no stale summary is found. Two continuations of one beginning share the
summaries of the beginning. Another tenant or route never has the same links.
"""

from collections.abc import Sequence
from hashlib import sha256

import msgspec

from stayfast.core.context import Summary
from stayfast.stores.base import CachedAnswer
from stayfast.wire.context.turns import Turn, Turns

_VERSION = b"history 1"
ID_CHARS = 32  # of a conversation's id, in hexadecimal digits


class StoredSummary(msgspec.Struct, frozen=True):
    """A summary of the first `after` turns of a conversation, of `n_tokens`."""

    after: int
    n_tokens: int
    summary: Summary


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(StoredSummary).decode


class LinkedTurns(msgspec.Struct, frozen=True):
    """One request's turns, their tokens, and the keys of their beginnings. session: that a header names; empty: none."""

    turns: Turns
    sizes: Sequence[int]
    links: Sequence[bytes]
    route: str
    tenant: str | None
    session: bytes

    @property
    def id(self) -> str:
        """Of all conversations of the tenant and route with the same first turn."""
        return self.links[1].hex()[:ID_CHARS]

    @property
    def tags(self) -> tuple[str, ...]:
        """Of its summaries in a store."""
        own = f"conversation:{self.id}"
        return (own, session_tag(self.session)) if self.session else (own,)


def link_turns(turns: Sequence[Turn], route: str, tenant: str | None) -> list[bytes]:
    """The key of the first n turns at place n."""
    names = msgspec.msgpack.encode((_VERSION, route, tenant))
    links = [sha256(names).digest()]
    for turn in turns:
        links.append(sha256(links[-1] + bytes.fromhex(turn.digest)).digest())
    return links


def session_tag(session: bytes) -> str:
    """The tag of a session's summaries; not the name itself, which may be that of a person."""
    return f"session:{sha256(session).hexdigest()[:ID_CHARS]}"


def deletion_tags(name: str) -> tuple[str, ...]:
    """What `DELETE /admin/conversations/{name}` deletes: a session's summaries, and those of a conversation's id."""
    is_id = len(name) == ID_CHARS and all(char in "0123456789abcdef" for char in name)
    return (session_tag(name.encode()), f"conversation:{name}") if is_id else (session_tag(name.encode()),)


def store_summary(stored: StoredSummary, route: str, tenant: str | None, tags: tuple[str, ...], *, now: float,
                  ttl_s: float) -> CachedAnswer:
    """The form in a store. now: wall-clock seconds."""
    return CachedAnswer(_encode(stored), now, drop_at=now + ttl_s, route=route, tenant=tenant, tags=tags)


def read_summary(answer: CachedAnswer | None, after: int, now: float) -> StoredSummary | None:
    """The summary of the first `after` turns; None for anything else, and for one that is too old."""
    if answer is None or answer.drop_at < now:
        return None
    try:
        stored = _decode(answer.body)
    except msgspec.DecodeError:
        return None
    return stored if stored.after == after else None
