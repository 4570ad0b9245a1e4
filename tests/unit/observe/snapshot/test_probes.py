"""All probes of several workers: from facts to the rows of a snapshot."""

from typing import Any

import msgspec
import pytest

from stayfast.core.events import (
    AttemptDone,
    BreakerChanged,
    ConnectionOpened,
    ConnectionReused,
    Fact,
    JobStoreCalled,
    LoopLag,
    RequestDone,
    StoreCallDone,
    StoreChanged,
    TokenGaps,
)
from stayfast.core.samples import PromptSampled, QuotaReported
from stayfast.core.snapshot import UpstreamRow
from stayfast.core.stage_times import StageTimes
from stayfast.core.types import Api, Outcome, Usage
from stayfast.observe.fact_batch import handle_facts
from stayfast.observe.snapshot.probes import ProbePart, ProbeRows, WorkerProbes, merge_probes, sum_machines
from stayfast.observe.snapshot.store_probes import StoreSite
from stayfast.testing import SimLoop, run

ATTEMPT = AttemptDone("chat", "up", 1.0, 3.0, Outcome.SUCCESS, 0.5, usage=Usage(100, 50), n_content=50, last_s=2.0)
FACTS: list[Fact] = [
    ConnectionOpened("up", 0.1, "1.1", tls=True, connect_s=0.03), ConnectionReused("up"), TokenGaps("chat", "up", [0.1]),
    ATTEMPT, RequestDone("r", Api.CHAT, "chat", "m", True, 200, 1.0, 3.0, 0.0, StageTimes(0.0, (), 0.0), tenant="acme",
                         attempts=(ATTEMPT,)),
    LoopLag(0.004), BreakerChanged("up", "open", "5 failures"), StoreCallDone("hot", "get", "hit", 0.001),
    StoreChanged("hot", "open", "slow"), JobStoreCalled("claim", "ok", 0.002), PromptSampled("chat", 3.0, 100.0),
    QuotaReported("up", 3.0, {"requests": 0.3, "tokens": 0.6})]
SITES = {"hot": StoreSite("redis", ("cache",)), "jobs": StoreSite("sqlite", ("jobs",))}


def parts_of(n_workers: int, *, is_whole: bool = True) -> list[ProbePart]:
    """The part of each worker after all facts, as other workers get it."""
    async def main(loop: SimLoop) -> list[ProbePart]:
        parts = []
        for worker in range(n_workers):
            probes = WorkerProbes(worker, loop, lambda: ("info", 2))
            probes.begin(SITES, {}, lambda task: None)
            handle_facts(probes, FACTS)
            encoded = msgspec.msgpack.encode(probes.collect(is_whole=is_whole))
            parts.append(msgspec.msgpack.decode(encoded, type=ProbePart))
        return parts

    return run(main)


def rows_of(n_workers: int) -> ProbeRows:
    return merge_probes(parts_of(n_workers), [UpstreamRow("up", n_attempts=7)])


@pytest.mark.parametrize("n_workers", [1, 3])
def test_probes_facts_of_all_workers_are_in_the_rows(n_workers: int) -> None:
    rows = rows_of(n_workers)
    (upstream,), (prompt,), (tenant,) = rows.upstreams, rows.prompts, rows.tenants
    assert (upstream.n_attempts, upstream.n_opened, upstream.n_reused) == (7, n_workers, n_workers)
    assert (upstream.n_breaker_changes_1h, upstream.tokens_per_s.n) == (n_workers, n_workers)
    assert upstream.quota_left == upstream.quota_left_1h == {"requests": 0.3, "tokens": 0.6}
    assert (prompt.route, prompt.n) == ("chat", n_workers)
    assert (tenant.name, tenant.n) == ("acme", n_workers)
    stores = {row.name: row for row in rows.stores}
    assert (stores["hot"].n_calls, stores["hot"].is_open, stores["jobs"].n_calls) == (n_workers, False, n_workers)
    assert [row.worker for row in rows.machines] == list(range(n_workers))
    assert rows.machines[0].loop_lag_s.n == 1
    assert rows.machines[0].n_lost_lines == 2


def test_probes_light_part_has_what_a_frame_shows() -> None:
    parts = parts_of(2, is_whole=False)
    totals = sum_machines(parts)
    assert totals.loop_lag_s.n == 2
    assert totals.quota_left == {"up": 0.3}
    assert not parts[0].prompts
    assert not parts[0].upstreams
    assert not parts[0].stores


def test_probes_part_is_small() -> None:
    whole, light = (len(msgspec.msgpack.encode(parts_of(1, is_whole=is_whole)[0])) for is_whole in (True, False))
    assert light < 500
    assert whole < 4000


def test_probes_without_facts_have_empty_rows() -> None:
    async def main(loop: SimLoop) -> Any:
        return merge_probes([WorkerProbes(0, loop, lambda: ("info", 0)).collect()], [])

    rows = run(main)
    assert (rows.upstreams, rows.prompts, rows.tenants, rows.stores) == ((), (), (), ())
    assert len(rows.machines) == 1
