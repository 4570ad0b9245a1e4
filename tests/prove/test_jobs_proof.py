"""`prove batch-interference`: short runs of the claim, and of a policy that gives jobs every free place."""

from stayfast.jobs.capacity import JobCapacity
from stayfast.lab.claims.job_interference import JobInterference
from stayfast.lab.harness.claim import Extent, Verdict
from stayfast.upstreams.state.upstream_state import UpstreamState
from tests.prove.running import run, short_of


class EveryFreePlace(JobCapacity):
    """Jobs take all places that are free."""

    def room_at(self, member: UpstreamState) -> int:
        """Without a reserve, and without regard to interactive requests."""
        self.places_of(member)
        return max(0, int(member.limit.value) - member.n_in_flight)


def test_batch_interference_with_the_policy_holds() -> None:
    """The same requests, with and without a full queue."""
    finding = run(JobInterference(quick=Extent(virtual_s=400.0)))
    figures = {figure.name: figure for figure in finding.figures}
    assert figures["ratio of the two"].verdict is Verdict.HOLDS
    assert short_of(finding) == []


def test_batch_interference_with_every_free_place_falls_short() -> None:
    """The jobs go faster, and the requests wait."""
    finding = run(JobInterference(quick=Extent(virtual_s=400.0), capacity=EveryFreePlace))
    assert short_of(finding) == ["ratio of the two"]
