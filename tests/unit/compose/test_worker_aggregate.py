"""compose.together: one answer for all workers, and counters that never go back."""

import json
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import msgspec
import pytest
import uvloop
from prometheus_client.parser import text_string_to_metric_families

from stayfast.compose.aggregate import TurnRegistry, WorkerAggregate
from stayfast.compose.cache_reports import Caches
from stayfast.core.events import RequestDone
from stayfast.observe.fact_batch import FactBatch, handle_facts
from stayfast.observe.recent_requests import RecentConfig, RecentRequests
from stayfast.observe.request_filter import RequestFilter
from stayfast.observe.traffic_rows import TrafficReport
from stayfast.server.backend import RecentRequestsQuery
from stayfast.workers.channels import WorkerPeers
from tests.unit.observe.fact_rig import counting, done

pytestmark = pytest.mark.sockets


async def worker(folder: Path, n: int, *facts: RequestDone, n_workers: int = 2) -> WorkerAggregate:
    """Worker `n`, which has seen these and listens to the others."""
    metrics, recent = counting(in_flight=lambda: [("u", 1)]), RecentRequests(RecentConfig())
    batch = FactBatch(metrics, recent)
    made = WorkerAggregate(metrics, recent, batch.flush, WorkerPeers(folder, n, n_workers, 0.2), Caches(dict),
                           TurnRegistry(dict))
    await made.start()
    for fact in facts:
        batch.emit(fact)
    return made


async def scrape(of: WorkerAggregate) -> dict[str, float]:
    """What a scrape of this worker tells, by name; labels added up."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families((await of.metrics()).decode()):
        for sample in family.samples:
            found[sample.name + sample.labels.get("state", "")] = found.get(sample.name, 0) + sample.value
    return found


def run_on_uvloop(main: Callable[[Path], Awaitable[None]], folder: Path) -> None:
    """Run it on uvloop, as workers do."""
    async def run() -> None:
        await main(folder)

    uvloop.run(run())


def test_worker_aggregate_any_worker_has_the_totals(tmp_path: Path) -> None:
    """Three requests at one worker, two at the other, and requests in flight as well."""
    async def main(folder: Path) -> None:
        one, two = await worker(folder, 0, *[done()] * 3), await worker(folder, 1, *[done()] * 2)
        for asked in (one, two):
            found = await scrape(asked)
            assert (found["stayfast_requests_total"], found["stayfast_ttft_seconds_count"]) == (5, 5)
            assert (found["stayfast_in_flight"], found["stayfast_build_info"]) == (2, 1)
            assert (found["stayfast_workersanswered"], found["stayfast_workerssilent"]) == (2, 0)
        one.peers.close()
        two.peers.close()

    run_on_uvloop(main, tmp_path)


def test_worker_aggregate_counters_survive_a_crash(tmp_path: Path) -> None:
    """While a worker is gone its last counts stand for it; its successor continues from there."""
    async def main(folder: Path) -> None:
        one, two = await worker(folder, 0, *[done()] * 3), await worker(folder, 1, *[done()] * 2)
        assert (await scrape(one))["stayfast_requests_total"] == 5
        handle_facts(two.metrics_sink, [done()])  # never shown to anybody: it may be lost
        two.peers.close()  # as if killed
        found = await scrape(one)
        assert (found["stayfast_requests_total"], found["stayfast_in_flight"]) == (5, 1)
        assert (found["stayfast_workersanswered"], found["stayfast_workerssilent"]) == (1, 1)
        again = await worker(folder, 1, done())
        assert (await scrape(one))["stayfast_requests_total"] == (await scrape(again))["stayfast_requests_total"] == 6
        one.peers.close()
        again.peers.close()

    run_on_uvloop(main, tmp_path)


def test_worker_aggregate_unreadable_counts_are_ignored(tmp_path: Path) -> None:
    """Of another version, or half written."""
    async def main(folder: Path) -> None:
        (folder / "0.counts").write_bytes(b"\x93nonsense")
        one = await worker(folder, 0, done())
        assert (await scrape(one))["stayfast_requests_total"] == 1
        one.peers.close()

    run_on_uvloop(main, tmp_path)


def test_worker_aggregate_traffic_has_the_rows_of_all_workers(tmp_path: Path) -> None:
    """Newest first; attempts at jobs are left out, and a tenant is a digest."""
    async def main(folder: Path) -> None:
        one = await worker(folder, 0, done(wall_at=1.0, tenant="acme"), done(wall_at=3.0), done(wall_at=4.0, role="job"))
        two = await worker(folder, 1, done(wall_at=2.0, body_mark=5))
        report = msgspec.json.decode(await one.traffic(), type=TrafficReport)
        assert [round(row.arrived_at + row.e2e_s) for row in report.rows] == [3, 2, 1]
        assert [row.body_mark for row in report.rows] == ["", "00000005", ""]
        assert report.columns[0] == "arrived_at"
        assert b"acme" not in await one.traffic()
        assert len(report.rows[-1].tenant) == 8
        one.peers.close()
        two.peers.close()

    run_on_uvloop(main, tmp_path)


def test_worker_aggregate_requests_are_found_at_all_workers(tmp_path: Path) -> None:
    """Newest first, or one by its id; nothing of another tenant."""
    async def main(folder: Path) -> None:
        one = await worker(folder, 0, done(request_id="a", wall_at=1.0, tenant="x"),
                           done(request_id="c", wall_at=3.0, ttft_s=1.5))
        two = await worker(folder, 1, done(request_id="b", wall_at=2.0, tenant="y", status=502))

        async def listed(asked: RecentRequestsQuery) -> list[str]:
            return [row["request_id"] for row in json.loads(await one.recent_requests(asked))["data"]]

        assert await listed(RecentRequestsQuery()) == ["c", "b", "a"]
        assert await listed(RecentRequestsQuery(n=2)) == ["c", "b"]
        assert await listed(RecentRequestsQuery(is_notable=True)) == ["b"]
        assert await listed(RecentRequestsQuery(tenant="x")) == ["a"]
        assert await listed(RecentRequestsQuery(wanted=RequestFilter(status="5xx"))) == ["b"]
        assert await listed(RecentRequestsQuery(n=2, is_slowest=True)) == ["c", "a"]
        found = await one.recent_request("b", None)
        assert found is not None
        assert json.loads(found)["status"] == 502
        assert await one.recent_request("b", "x") is None
        assert await one.recent_request("b", "y") is not None
        assert await one.recent_request("nope", None) is None
        one.peers.close()
        two.peers.close()

    run_on_uvloop(main, tmp_path)


def test_worker_aggregate_adds_common_names_on_request() -> None:
    """Only with `metrics.aliases`; the engine's figures are those that are read at the scrape."""
    async def main(_: Path) -> None:
        for has_aliases in (False, True):
            made = WorkerAggregate(counting(done()), RecentRequests(RecentConfig()), FactBatch().flush, WorkerPeers(),
                                   Caches(dict), TurnRegistry(dict), has_aliases=has_aliases,
                                   read_engines=lambda: {"gpu": {"kv_hit_ratio": 0.5}})
            await made.start()
            text = (await made.metrics()).decode()
            assert ("llm_request_duration_seconds_count{" in text) == has_aliases
            assert ('kv_cache_hit_rate{upstream="gpu"} 0.5\n' in text) == has_aliases
            assert "speculative_draft_acceptance_rate" not in text

    run_on_uvloop(main, Path())


def test_worker_aggregate_takes_engines_from_worker_0(tmp_path: Path) -> None:
    """Whichever worker is scraped. Without worker 0 the names are absent."""
    async def main(folder: Path) -> None:
        figures: list[dict[str, dict[str, float]]] = [{"gpu": {"kv_hit_ratio": 0.5}}, {}]
        made = [WorkerAggregate(counting(done()), RecentRequests(RecentConfig()), FactBatch().flush,
                                WorkerPeers(folder, n, 2, 0.5), Caches(dict), TurnRegistry(dict), has_aliases=True,
                                read_engines=partial(dict, figures[n])) for n in range(2)]
        for one in made:
            await one.start()
        name = 'kv_cache_hit_rate{upstream="gpu"} 0.5\n'
        assert [name in (await one.metrics()).decode() for one in made] == [True, True]
        made[0].peers.close()
        assert "kv_cache_hit_rate" not in (await made[1].metrics()).decode()
        made[1].peers.close()

    run_on_uvloop(main, tmp_path)


def test_worker_aggregate_without_workers_is_local() -> None:
    async def main(_: Path) -> None:
        alone = WorkerAggregate(counting(done()), RecentRequests(RecentConfig()), FactBatch().flush, WorkerPeers(),
                                Caches(dict), TurnRegistry(dict))
        await alone.start()
        found = await scrape(alone)
        assert (found["stayfast_requests_total"], found["stayfast_workersanswered"]) == (1, 1)

    run_on_uvloop(main, Path())


