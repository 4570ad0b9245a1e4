"""All proofs. To add one: a module with a `Claim`, and a line here (docs/proofs.md)."""

from stayfast.prove.agent import AgentProof
from stayfast.prove.brownout import Brownout
from stayfast.prove.budget import Budget
from stayfast.prove.cancel import Cancel
from stayfast.prove.claim import Claim
from stayfast.prove.coalesce import Coalesce
from stayfast.prove.deadline import Deadline
from stayfast.prove.fair import Fair
from stayfast.prove.hangs import Hangs
from stayfast.prove.hedge import Hedge
from stayfast.prove.isolation import Isolation
from stayfast.prove.lanes import LanesProof
from stayfast.prove.layer import Layer
from stayfast.prove.leaks import Leaks
from stayfast.prove.lookup import Lookup
from stayfast.prove.mixed import Mixed
from stayfast.prove.noisy import Noisy
from stayfast.prove.overhead import Overhead
from stayfast.prove.overload import Overload
from stayfast.prove.partial import Partial
from stayfast.prove.prefix import Prefix
from stayfast.prove.quota import QuotaProof
from stayfast.prove.semantic import Semantic
from stayfast.prove.stalls import Stalls
from stayfast.prove.storm import Storm
from stayfast.prove.stragglers import Stragglers
from stayfast.prove.table import Table
from stayfast.prove.tail import Tail
from stayfast.prove.tools import Tools
from stayfast.prove.truth import Truth


def claims() -> dict[str, Claim]:
    """By name, in the order in which `make proofs` runs them."""
    found: tuple[Claim, ...] = (Truth(), Overhead(), Cancel(), Budget(), Tail(), Mixed(), Hangs(), Hedge(), Noisy(),
                                Overload(), QuotaProof(), Fair(), Leaks(), Brownout(), Storm(), Stalls(), LanesProof(),
                                Stragglers(), Isolation(), Coalesce(), Lookup(), Prefix(), Semantic(), Table(), Layer(),
                                Deadline(), Tools(), Partial(), AgentProof())
    return {claim.name: claim for claim in found}
