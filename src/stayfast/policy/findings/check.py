"""The form of a check: a pure function from a snapshot to findings, and which other findings it explains."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from stayfast.core.findings import Finding
from stayfast.core.snapshot import Snapshot


class Check(NamedTuple):
    """One kind of finding. `explains`: ids of its consequences, which are hidden while it is found at the same place."""

    id: str
    title: str
    find: Callable[[Snapshot], Iterable[Finding]]
    explains: tuple[str, ...] = ()
