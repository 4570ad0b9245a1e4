"""All proofs. To add one: a module with a `Claim`, and a line here (docs/proofs.md)."""

from stayfast.prove.budget import Budget
from stayfast.prove.cancel import Cancel
from stayfast.prove.claim import Claim
from stayfast.prove.overhead import Overhead
from stayfast.prove.truth import Truth


def claims() -> dict[str, Claim]:
    """By name, in the order in which `make proofs` runs them."""
    found: tuple[Claim, ...] = (Truth(), Overhead(), Cancel(), Budget())
    return {claim.name: claim for claim in found}
