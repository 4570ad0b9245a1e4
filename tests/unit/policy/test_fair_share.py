"""policy.admission.fair_share: service by weight, and places reserved for others."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from stayfast.policy.admission.fair_share import FairShares, TenantShare, weighted_tokens


def serve(sharing: FairShares, share: TenantShare, n_input: float, n_output: float) -> float:
    """One request from start to end; what it took of the engine, in weighted tokens."""
    sharing.start_request(share, 300)
    took = weighted_tokens(n_input, n_output)
    sharing.end_request(share, 300, took)
    return took


@given(st.lists(st.floats(0.1, 10), min_size=2, max_size=6), st.integers(0, 2**32))
def test_sharing_service_follows_weights(weights: list[float], seed: int) -> None:
    """However long their requests are: the gap in service for each unit of weight is at most two of the largest."""
    rng, sharing = Random(seed), FairShares()
    shares = [TenantShare(str(n), weight) for n, weight in enumerate(weights)]
    got = dict.fromkeys(shares, 0.0)
    most = 0.0
    for share in shares:
        sharing.add_request(share, 0.0, None)
        share.n_waiting = 1
    for _ in range(500):
        share = min(shares, key=lambda share: share.claim)
        took = serve(sharing, share, rng.uniform(1, 4000), rng.uniform(1, 1000))
        got[share] += took
        most = max(most, took / min(weights))
    served = [got[share] / share.weight for share in shares]
    assert max(served) - min(served) <= 2 * most


def test_sharing_idle_tenant_saves_no_service() -> None:
    """A returning tenant starts level with the waiting ones, or with the one that started last."""
    sharing, busy, idle = FairShares(), TenantShare("busy"), TenantShare("idle")
    sharing.add_request(busy, 0.0, None)
    for _ in range(10):
        serve(sharing, busy, 100, 0)
    sharing.add_request(idle, 1.0, busy.served)
    assert idle.served == busy.served == 1000
    late = TenantShare("late")
    sharing.add_request(late, 1.0, None)
    assert late.served == 900  # busy's, before its last request


def test_sharing_waiting_tenant_keeps_its_claim() -> None:
    """No lift while something of its own waits: it has not been idle."""
    sharing, share = FairShares(), TenantShare("a")
    share.n_waiting = 1
    sharing.add_request(share, 0.0, 5000.0)
    assert share.served == 0


def test_sharing_estimate_counts_while_running() -> None:
    """What was thought and not used is no service."""
    sharing, share = FairShares(), TenantShare("a", 2.0)
    sharing.start_request(share, weighted_tokens(1000, 4000))
    sharing.start_request(share, 10)
    assert (share.served, share.claim) == (0, 4505)
    sharing.end_request(share, 9000, 100 + 2 * 10)
    assert (share.served, share.claim) == (60, 65)
    sharing.end_request(share, 10, 0)
    assert share.claim == 60


def test_sharing_greedy_tenant_leaves_recent_places_of_others() -> None:
    """Up to what is theirs, while they have traffic and are not greedy themselves; alone, a tenant may fill everything."""
    sharing, noisy, quiet = FairShares(), TenantShare("noisy"), TenantShare("quiet")
    noisy.n_running = 20
    sharing.add_request(noisy, 0.0, None)
    assert sharing.n_reserved(noisy, 20, 0.0) == 0
    quiet.n_running = 6
    sharing.add_request(quiet, 0.0, None)
    quiet.n_running = 2
    assert sharing.n_reserved(noisy, 20, 1.0) == 4
    assert sharing.n_reserved(noisy, 10, 1.0) == 3  # of ten places five are the other's
    assert sharing.n_reserved(noisy, 41, 1.0) == 0  # it has less than its share
    noisy.enter_queue()
    assert sharing.n_reserved(noisy, 41, 1.0) == 4
    assert sharing.n_reserved(quiet, 20, 1.0) == 0
    quiet.enter_queue()
    assert sharing.n_reserved(noisy, 20, 1.0) == 0
    quiet.leave_queue()
    quiet.n_running = 0
    assert sharing.n_reserved(noisy, 20, 20.0) == 6
    assert sharing.n_reserved(noisy, 20, 40.0) == 0  # it has used none for long enough
    sharing.add_request(noisy, 61.0, None)
    assert sharing.n_reserved(noisy, 20, 61.0) == 0
