"""All claims. To add one: a module with a `Claim`, and a line here (docs/proofs.md)."""

from stayfast.lab.claims.affinity import AffinityClaim
from stayfast.lab.claims.agent import AGENT
from stayfast.lab.claims.batch_run import BatchRunClaim
from stayfast.lab.claims.batcher import BatcherClaim
from stayfast.lab.claims.board import BoardClaim
from stayfast.lab.claims.brownout import Brownout
from stayfast.lab.claims.budget import BudgetClaim
from stayfast.lab.claims.budget_overhead import BudgetOverhead
from stayfast.lab.claims.cache_lookup_cost import CacheLookupCost
from stayfast.lab.claims.cancel import Cancel
from stayfast.lab.claims.caps import CapsClaim
from stayfast.lab.claims.classify import ClassifyClaim
from stayfast.lab.claims.coalesce import Coalesce
from stayfast.lab.claims.cold import ColdClaim
from stayfast.lab.claims.deadline import DEADLINE
from stayfast.lab.claims.diet import DietClaim
from stayfast.lab.claims.doctor import DoctorClaim
from stayfast.lab.claims.engine import EngineClaim
from stayfast.lab.claims.fair import FAIR
from stayfast.lab.claims.fleet import FleetClaim
from stayfast.lab.claims.history import HistoryClaim
from stayfast.lab.claims.isolation import Isolation
from stayfast.lab.claims.job_interference import JobInterference
from stayfast.lab.claims.job_kills import JobKills
from stayfast.lab.claims.job_resume import ResumeClaim
from stayfast.lab.claims.job_throughput import JobThroughput
from stayfast.lab.claims.lanes import LANES_CLAIM
from stayfast.lab.claims.leaks import LEAKS
from stayfast.lab.claims.mixed import Mixed
from stayfast.lab.claims.noisy import Noisy
from stayfast.lab.claims.overhead import Overhead
from stayfast.lab.claims.overload import Overload
from stayfast.lab.claims.partial import PARTIAL
from stayfast.lab.claims.plan import PlanClaim
from stayfast.lab.claims.prefix import PrefixClaim
from stayfast.lab.claims.prefix_chat import PrefixChatClaim
from stayfast.lab.claims.quota import QUOTA
from stayfast.lab.claims.semantic import SemanticClaim
from stayfast.lab.claims.signals import SignalsClaim
from stayfast.lab.claims.silent import SilentClaim
from stayfast.lab.claims.speculate import SpeculateClaim
from stayfast.lab.claims.stalls import StallsClaim
from stayfast.lab.claims.storm import Storm
from stayfast.lab.claims.stragglers import Stragglers
from stayfast.lab.claims.table import TableClaim
from stayfast.lab.claims.tail import Hangs, HedgeClaim, Tail
from stayfast.lab.claims.tiers import TiersClaim
from stayfast.lab.claims.tools import TOOLS
from stayfast.lab.claims.truth import TruthClaim
from stayfast.lab.harness.claim import Claim


def claims() -> dict[str, Claim]:
    """By name, in the order in which `make proofs` runs them."""
    found: tuple[Claim, ...] = (TruthClaim(), Overhead(), Cancel(), BudgetClaim(), Tail(), Mixed(), Hangs(), HedgeClaim(),
                                SilentClaim(), Noisy(),
                                Overload(), QUOTA,
                                FleetClaim(), FAIR, LEAKS, Brownout(), ColdClaim(), Storm(), StallsClaim(), CapsClaim(),
                                LANES_CLAIM,
                                Stragglers(),
                                Isolation(), Coalesce(), CacheLookupCost(), PrefixClaim(), AffinityClaim(), HistoryClaim(),
                                SemanticClaim(), TiersClaim(), ClassifyClaim(), BatcherClaim(), TableClaim(), DietClaim(),
                                BudgetOverhead(), JobKills(), BatchRunClaim(), JobInterference(), ResumeClaim(),
                                DoctorClaim(), JobThroughput(), BoardClaim(), PlanClaim(), DEADLINE, TOOLS, PARTIAL,
                                AGENT, EngineClaim(), PrefixChatClaim(), SignalsClaim(), SpeculateClaim())
    return {claim.name: claim for claim in found}
