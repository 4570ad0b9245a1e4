"""What upstreams have to know of the routes that name them: which models, beside whom, whose requests pay, and lanes."""

from collections.abc import Iterator, Mapping, Sequence

from stayfast.pipeline.handoffs import Route, Target
from stayfast.pipeline.stages.route import ANY_MODEL
from stayfast.policy.balance import Backlog
from stayfast.policy.extra import ExtraBudget
from stayfast.upstreams.state.upstream_state import Member, Registry


def introduce(registry: Registry, routes: Mapping[str, Route], lanes: Sequence[str] = ()) -> None:
    """Tell each upstream of its routes, and of the lanes that requests are in. What it has learned stays."""
    models: dict[Member, dict[str, None]] = {member: {} for member in registry}
    budgets: dict[Member, list[ExtraBudget]] = {member: [] for member in registry}
    open_to_any: set[Member] = set()
    chosen: set[Member] = set()
    for name, route in routes.items():
        if len(route.targets) > 1:
            chosen.update(target.member for target in route.targets)
        for target in _targets(route):
            budgets[target.member].append(route.hedging.budget)
            model = target.model or name
            if model == ANY_MODEL:
                open_to_any.add(target.member)
            else:
                models[target.member][model] = None
    for member in registry:
        member.serves(models[member], any_model=member in open_to_any)
        member.divide(lanes)
        member.extra.routes = tuple(dict.fromkeys(budgets[member]))
        member.backlog = (member.backlog or Backlog()) if member in chosen else None


def _targets(route: Route) -> Iterator[Target]:
    yield from route.targets
    for tier in route.fallback:
        yield from tier
