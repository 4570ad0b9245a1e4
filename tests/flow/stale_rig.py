"""A gateway whose route may serve stale answers, and an upstream that is down."""

from stayfast.core.errors import Fault
from stayfast.pipeline.stages.admit.admission import Admit
from stayfast.policy.cache.freshness import CacheConfig
from stayfast.testing import Fail, Script, SimLoop, Wait
from tests.flow.cache_rig import CacheRig

CONFIG = CacheConfig("exact", ttl_s=60, max_temperature=1, stale_while_revalidate_s=60, stale_if_error_s=600)
DOWN: Script = [Wait(0.1), Fail(Fault.RESET)]


class StaleRig(CacheRig):
    """A route that gives old answers."""

    def __init__(self, loop: SimLoop, *scripts: Script, admit: Admit | None = None) -> None:
        super().__init__(loop, *scripts, config=CONFIG, admit=admit)
