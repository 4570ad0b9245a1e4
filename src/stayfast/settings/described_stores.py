"""What the settings of shared stores mean whose dataclass lives on a lower floor."""

from collections.abc import Mapping
from typing import Any

from stayfast.core.setting import About
from stayfast.stores.remote_store import SharedConfig

SHARED = {
    "timeout_s": About("The longest that a request waits for it, in seconds; then it goes on as if nothing were kept.",
                       minimum=0.001, maximum=10),
    "wait_s": About("The longest that a request for a whole answer waits for another process that makes the same one just "
                    "now, in seconds; never more than half of its own time. 0: each process makes its own.", minimum=0,
                    maximum=60),
    "near_bytes": About("The memory for answers that were had or kept lately, in each worker; 0: none.", minimum=0,
                        maximum=1 << 40),
    "near_s": About("How long an answer is had from there, in seconds: as long, other processes may give what was purged.",
                    more_than=0, maximum=86_400),
}
DESCRIBED: Mapping[type[Any], Mapping[str, About]] = {SharedConfig: SHARED}
