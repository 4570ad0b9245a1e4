"""Tenants, durable work and costs, planted."""

from functools import reduce
from typing import Any

from stayfast.lab.doctor.recorded import spread, with_jobs, with_tenant, with_traffic, with_upstream
from stayfast.lab.doctor.scene import Plant, Scene

TENANTS, JOBS, COST = frozenset({"tenants"}), frozenset({"chat.jobs"}), frozenset({"chat.cost"})
NAMES = ("acme", "beta", "gamma")
KEYS = {name: f"sha256:{number:064x}" for number, name in enumerate(NAMES)}


def _tenants(scene: Scene, **changes: dict[str, Any]) -> Scene:
    """Three tenants that are alike, but for the changes of each."""
    keyed = scene.set(server={"keys": KEYS}, tenants={"acme": {"quota": {"tokens_per_minute": 100_000}}})
    return reduce(lambda before, name: before.amend(with_tenant(name, **changes.get(name, {}))), NAMES, keyed)


def _jobs(scene: Scene, **fields: Any) -> Scene:
    return scene.amend(with_jobs("chat", **fields))


def _disturbed(scene: Scene, running: int) -> Scene:
    before = with_traffic("chat", "", window_s=3600.0, n=12_000)
    later = with_traffic("chat", "", window_s=300.0, ttft_s=spread(0.5, 1.1, 1.4, 1200))
    return _jobs(scene.amend(before).amend(later), running=running).amend(with_upstream("north", in_flight=50))


def _costs(scene: Scene, cost_usd: dict[str, float], unpriced: int = 0) -> Scene:
    priced = scene.amend(with_traffic("chat", cost_usd=cost_usd, n_hedges=60, n_hedges_won=20, n_unpriced=0))
    return priced.amend(with_traffic("classify", n_unpriced=0)).amend(with_traffic("chat", "north", n_unpriced=unpriced))


LARGE = {"n": 900, "n_tokens": 900_000}
COSTS = {"first": 3.0, "hedge": 0.1}
PLANTS = (
    Plant("tenant that fills all places", "tenant.noisy", True,
          lambda scene: _tenants(scene, acme=LARGE, beta={"n_shed": 20, "waiting": 12}), touches=TENANTS),
    Plant("large tenant with room for all", "tenant.noisy", False, lambda scene: _tenants(scene, acme=LARGE),
          touches=TENANTS),
    Plant("tenant with prompts of 12,000 tokens", "tenant.long_prompts", True,
          lambda scene: _tenants(scene, gamma={"input_tokens": spread(8000.0, 12_000.0), "ttft_s": spread(2.0, 3.5)}),
          touches=TENANTS),
    Plant("tenant with long prompts and usual times", "tenant.long_prompts", False,
          lambda scene: _tenants(scene, gamma={"input_tokens": spread(8000.0, 12_000.0)}), touches=TENANTS),
    Plant("tenant at its quota", "tenant.at_quota", True,
          lambda scene: _tenants(scene, acme={"left": {"tokens_per_minute": 0.0}, "n_shed": 40}), touches=TENANTS),
    Plant("tenant with half of its quota", "tenant.at_quota", False,
          lambda scene: _tenants(scene, acme={"left": {"tokens_per_minute": 0.5}}), touches=TENANTS),
    Plant("tenant with a low weight", "tenant.starved", True,
          lambda scene: _tenants(scene, beta={"n_shed": 60, "n_tokens": 40_000}), touches=TENANTS),
    Plant("tenant of tier batch that waits", "tenant.starved", False,
          lambda scene: _tenants(scene, beta={"n_shed": 60, "n_tokens": 40_000, "tier": "batch"}), touches=TENANTS),
    Plant("jobs past their deadline", "jobs.overdue", True, lambda scene: _jobs(scene, overdue_s=600.0), touches=JOBS),
    Plant("jobs in time", "jobs.overdue", False, _jobs, touches=JOBS),
    Plant("jobs that no process runs", "jobs.unserved", True,
          lambda scene: _jobs(scene, queued=200, running=0, oldest_s=4000.0, n_ended={}), touches=JOBS),
    Plant("jobs that wait for the night", "jobs.unserved", False,
          lambda scene: _jobs(scene.set(jobs={"windows": {"chat": "22:00-06:00 UTC"}}), queued=200, running=0,
                              oldest_s=4000.0, n_ended={}), touches=JOBS),
    Plant("jobs for three days", "jobs.queue_deep", True, lambda scene: _jobs(scene, queued=150_000), touches=JOBS),
    Plant("jobs for two hours", "jobs.queue_deep", False, lambda scene: _jobs(scene, queued=4000), touches=JOBS),
    Plant("jobs that die", "jobs.dead", True, lambda scene: _jobs(scene, n_ended={"completed": 500, "dead": 60}),
          touches=JOBS),
    Plant("one dead job", "jobs.dead", False, lambda scene: _jobs(scene, n_ended={"completed": 500, "dead": 1}),
          touches=JOBS),
    Plant("batches with stragglers", "jobs.uneven_batches", True,
          lambda scene: _jobs(scene, batch_s=spread(600.0, 3000.0, 4000.0, 20), batch_deviation=1.1), touches=JOBS),
    Plant("batches that are alike", "jobs.uneven_batches", False, _jobs, touches=JOBS),
    Plant("jobs that take the upstream", "jobs.disturb_live", True, lambda scene: _disturbed(scene, 40),
          touches=JOBS | frozenset({"chat.ttft"})),
    Plant("few jobs while live requests are slower", "jobs.disturb_live", False, lambda scene: _disturbed(scene, 2),
          touches=JOBS | frozenset({"chat.ttft"})),
    Plant("streams without token counts", "usage.missing", True,
          lambda scene: scene.amend(with_traffic("chat", "north", n_output_tokens=0)).amend(
              with_traffic("classify", "north", n_output_tokens=0)), touches=COST),
    Plant("answers of a few tokens", "usage.missing", False,
          lambda scene: scene.amend(with_traffic("chat", n_output_tokens=60_000)), touches=COST),
    Plant("model without a price", "price.missing", True, lambda scene: _costs(scene, COSTS, 100_000), touches=COST),
    Plant("rare model without a price", "price.missing", False, lambda scene: _costs(scene, COSTS, 5), touches=COST),
    Plant("prices of last year", "price.old", True,
          lambda scene: scene.amend(with_upstream("north", n_attempts=600, price_age_days=400.0)), touches=COST),
    Plant("prices of last month", "price.old", False,
          lambda scene: scene.amend(with_upstream("north", n_attempts=600, price_age_days=30.0)), touches=COST),
    Plant("hedges for a third of the cost", "hedge.cost", True,
          lambda scene: _costs(scene, {"first": 2.0, "hedge": 1.0}), touches=COST),
    Plant("hedges for 3 % of the cost", "hedge.cost", False, lambda scene: _costs(scene, COSTS), touches=COST),
)
