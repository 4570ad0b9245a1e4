"""File descriptors of this process: how many there are, how they are divided, and what it looks like when none is left.

Problem: accepted connections and those to upstreams come out of one table. Whoever fills it with silent connections makes
every connect to an upstream fail, and the failure looks like the upstream's. Rule: the soft limit is raised to the hard one
at start; `RESERVE` descriptors stay for files, stores and the listener, and of the others clients get at most half, because
each request under way needs one connection on either side.
"""

import errno
import os
import resource
from contextlib import suppress

from stayfast.core.errors import Shed

MOST_DESCRIPTORS = 1 << 20  # what Linux allows a process unless fs.nr_open is changed; beyond it a limit stands for "any"
RESERVE = 64
RETRY_AFTER_S = 1.0
_NONE_LEFT = (errno.EMFILE, errno.ENFILE)


def descriptor_limit() -> int:
    """How many descriptors this process may have open at a time, at most MOST_DESCRIPTORS."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_DESCRIPTORS if soft == resource.RLIM_INFINITY else min(soft, MOST_DESCRIPTORS)


def reserve_of(limit: int) -> int:
    """How many of them no client connection gets, whatever else is free."""
    return min(RESERVE, limit // 8)


def share_of(limit: int) -> int:
    """How many of them the connections of clients may take; those to upstreams may take as many."""
    return max(1, (limit - reserve_of(limit)) // 2)


def raise_descriptor_limit() -> tuple[int, int]:
    """Raise the soft limit towards the hard one; the limit before and after. Never lowers it, never raises an error."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    before = descriptor_limit()
    wanted = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MOST_DESCRIPTORS)
    while soft != resource.RLIM_INFINITY and wanted > soft:
        with suppress(ValueError, OSError):  # macOS refuses more than kern.maxfilesperproc, whatever the hard limit is
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            break
        wanted //= 2
    return before, descriptor_limit()


def is_exhaustion(error: OSError) -> bool:
    """Whether an operation failed because this process, or the whole system, has no descriptor left."""
    return error.errno in _NONE_LEFT


def are_exhausted() -> bool:
    """Whether none is left just now: for failures that do not carry it (`getaddrinfo` reports an unknown name instead)."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        return is_exhaustion(error)
    return False


def exhausted(doing: str) -> Shed:
    """The error of a request that could not be served for want of a descriptor. It is the gateway's own: no upstream's."""
    return Shed(f"The gateway has no file descriptor left {doing}: its limit is {descriptor_limit()}. Its operator can "
                "raise it (ulimit -n, LimitNOFILE=); until then, send fewer requests at a time.",
                reason="descriptors", code="descriptors_exhausted", retry_after_s=RETRY_AFTER_S)
