"""File descriptors of this process: the limit, the share of client connections, and errors when none is left.

Problem: client and upstream connections share one table. An attacker who fills it with silent connections makes every
connect to an upstream fail, as if the upstream were down. Rule: the soft limit is raised to the hard one at start. `RESERVE`
descriptors are kept for files, stores and the listener. Clients get at most half of the rest, because each running request
needs one connection on either side.
"""

import errno
import os
import resource
from contextlib import suppress

from stayfast.core.errors import Shed

MAX_DESCRIPTORS = 1 << 20  # the default of Linux's fs.nr_open; a higher limit means "unlimited"
RESERVE = 64
RETRY_AFTER_S = 1.0
_NONE_LEFT = (errno.EMFILE, errno.ENFILE)


def descriptor_limit() -> int:
    """The number of descriptors that this process may have open, at most MAX_DESCRIPTORS."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_DESCRIPTORS if soft == resource.RLIM_INFINITY else min(soft, MAX_DESCRIPTORS)


def descriptor_reserve(limit: int) -> int:
    """The number of descriptors that client connections never use."""
    return min(RESERVE, limit // 8)


def client_share(limit: int) -> int:
    """The maximum number of client connections; upstream connections may use as many."""
    return max(1, (limit - descriptor_reserve(limit)) // 2)


def raise_descriptor_limit() -> tuple[int, int]:
    """Raise the soft limit towards the hard one. Returns the limit before and after. Never lowers it, never fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    before = descriptor_limit()
    wanted = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MAX_DESCRIPTORS)
    while soft != resource.RLIM_INFINITY and wanted > soft:
        with suppress(ValueError, OSError):  # macOS rejects more than kern.maxfilesperproc, whatever the hard limit is
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            break
        wanted //= 2
    return before, descriptor_limit()


def is_exhaustion(error: OSError) -> bool:
    """Whether an operation failed because the process or the system has no descriptor left."""
    return error.errno in _NONE_LEFT


def are_exhausted() -> bool:
    """Whether no descriptor is left now. For errors that hide it: `getaddrinfo` then reports an unknown name."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        return is_exhaustion(error)
    return False


def exhausted_error(doing: str) -> Shed:
    """The error of a request that needs a descriptor when none is left. `doing`: what for, such as "for a connection"."""
    return Shed(f"The gateway has no file descriptor left {doing}: its limit is {descriptor_limit()}. The operator can "
                "raise it (ulimit -n, LimitNOFILE=); until then, send fewer requests at once.",
                reason="descriptors", code="descriptors_exhausted", retry_after_s=RETRY_AFTER_S)
