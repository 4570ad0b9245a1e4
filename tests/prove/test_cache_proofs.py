"""The claims about caches hold in short runs, and fall short with broken parts."""

from math import inf
from pathlib import Path

import msgspec
import pytest
import uvloop

from stayfast.core.clock import SystemClock
from stayfast.lab.claims import cache_lookup_cost as lookup
from stayfast.lab.claims import isolation
from stayfast.lab.claims.coalesce import Coalesce
from stayfast.lab.claims.isolation import FILES, IsolatedConversation, read_conversations, send_follow_ups
from stayfast.lab.harness.claim import Conditions, Extent, Figure, SetUpFailed, Verdict
from stayfast.lab.harness.virtual import run_virtual
from stayfast.pipeline.cache import route_cache as caching
from stayfast.pipeline.stages.cache import lookup as cache
from stayfast.wire.canonical import CanonicalRequest, identity_bytes, scope_bytes


def test_isolation_claim_exact_cache_holds() -> None:
    finding = run_virtual(isolation.send_random_requests, 1000, 1)
    assert finding.figures[0].holds


def test_isolation_claim_semantic_cache_holds() -> None:
    """The embedder finds all texts alike, so there are many hits. With 6,000 requests their share is above its goal."""
    finding = run_virtual(isolation.send_random_requests, 6000, 1, is_semantic=True)
    assert finding.holds, finding.figures


def forgets(monkeypatch: pytest.MonkeyPatch, forgotten: str) -> None:
    """Remove the tenant, or the rest of the body, from cache keys."""
    if forgotten == "tenant":
        monkeypatch.setattr(caching, "identity_bytes", lambda _, *who: identity_bytes(*who))
    else:
        monkeypatch.setattr(cache, "scope_bytes", lambda _, who: scope_bytes(CanonicalRequest(), who))


@pytest.mark.parametrize("is_semantic", [False, True])
@pytest.mark.parametrize("forgotten", ["tenant", "body"])
def test_isolation_claim_incomplete_key_falls_short(monkeypatch: pytest.MonkeyPatch, forgotten: str,
                                                    is_semantic: bool) -> None:
    forgets(monkeypatch, forgotten)
    finding = run_virtual(isolation.send_random_requests, 1000, 1, is_semantic=is_semantic)
    assert finding.figures[0].value > 10


ASKED = [IsolatedConversation(f"What is a {thing}?", f"A {thing} is a thing.", follow_up) for thing in ("fugue", "sonata",
                                                                                                        "canon")
         for follow_up in ("What are its types?", "Who wrote the best ones of them?")]


def test_isolation_claim_follow_up_of_other_question_misses() -> None:
    assert [figure.value for figure in run_virtual(send_follow_ups, ASKED, 1)] == [0.0, 0.0, 100.0]


def test_isolation_claim_key_without_parent_falls_short(monkeypatch: pytest.MonkeyPatch) -> None:
    forgets(monkeypatch, "body")
    taken, crossed, _ = run_virtual(send_follow_ups, ASKED, 1)
    assert taken.value > 0
    assert crossed.value > 0


def test_read_conversations_duplicates_and_invalid_file(tmp_path: Path) -> None:
    assert read_conversations(tmp_path) == []
    names = {"question": "Main Query", "answer": "Main Query Response", "follow_up": "Follow-Up Query"}
    rows = [{names[field]: value for field, value in msgspec.structs.asdict(one).items()} for one in ASKED]
    (tmp_path / FILES[0]).write_bytes(msgspec.json.encode(rows + rows))
    assert read_conversations(tmp_path) == ASKED
    (tmp_path / FILES[1]).write_text("[1]")
    with pytest.raises(SetUpFailed, match=FILES[1]):
        read_conversations(tmp_path)


@pytest.mark.sockets
def test_coalesce_claim_holds_and_no_cache_falls_short() -> None:
    """Thirty clients; without a cache each makes its own call."""
    finding = uvloop.run(Coalesce(quick=Extent(30)).run(Conditions(is_quick=True)))
    assert finding.holds
    without = uvloop.run(Coalesce(quick=Extent(30), cache={"mode": "off"}).run(Conditions(is_quick=True)))
    assert [figure.value for figure in without.figures if "calls" in figure.name] == [30.0, 30.0]
    assert without.verdict is Verdict.FALLS_SHORT


def test_lookup_claim_slow_turns_do_not_change_cost_of_miss() -> None:
    """Each turn is compared with the adjacent one; the interval is that of the rounds, of which it needs six."""
    meter = lookup.LookupMeter()
    speeds = [1.0, 1.0, 4.0, 1.0, 1.0, 2.0, 2.0, 2.0, 2.0, 2.0]
    meter.rounds = [[{"off": 100 * speed, "miss": 110 * speed, "hit": 50 * speed} for speed in half]
                    for half in (speeds[:5], speeds[5:])]
    added = next(figure for figure in meter.figures() if figure.name == "CPU that a miss adds")
    assert (added.value, added.low, added.high) == (20.0, -inf, inf)
    meter.rounds *= 3
    added = next(figure for figure in meter.figures() if figure.name == "CPU that a miss adds")
    assert (added.value, added.low, added.high) == (20.0, 10.0, 20.0)


def test_lookup_claim_busy_machine_explains_only_what_falls_short() -> None:
    slow, quick = Figure("search", 9.0, "ms", 5.0), Figure("search", 1.0, "ms", 5.0)
    assert lookup.busy_reason((slow,), 0.5) == (
        "other processes took 50% of the time of the searching thread, which may explain the long searches")
    assert lookup.busy_reason((slow,), 0.99) is None
    assert lookup.busy_reason((quick,), 0.5) is None


def test_lookup_claim_without_sockets_uses_fastest_tenth() -> None:
    """Half of one round and most of another were slow."""
    turn = (50.0, 65.0)
    slow = (75.0, 100.0)
    value, off = lookup.figures_without_sockets([[turn, slow] * 20, [slow] * 38 + [turn] * 2, [turn] * 40] * 2)
    assert (value.value, value.low, value.high) == (15.0, 15.0, 25.0)
    assert (off.value, off.low, off.high) == (50.0, 50.0, 75.0)


def test_lookup_claim_canned_system_misses_and_hits() -> None:
    async def results(cache: dict[str, object] | None) -> list[str | None]:
        clock = SystemClock()
        gateway = lookup.canned_system(cache, clock).gateway
        return [await lookup.send_numbered(gateway, number, clock) for number in (1, 2, 1)]

    *misses, hit = uvloop.run(results({"mode": "exact"}))
    assert misses == ["miss; kind=exact", "miss; kind=exact"]
    assert hit is not None
    assert hit.startswith("hit; kind=exact; age=0; key=")
    assert uvloop.run(results(None)) == [None, None, None]


@pytest.mark.sockets
@pytest.mark.serial
def test_lookup_claim_takes_every_figure() -> None:
    """The goals themselves are for an idle machine."""
    finding = uvloop.run(lookup.CacheLookupCost(quick=Extent(200, 0.4)).run(Conditions(is_quick=True)))
    figures = {figure.name: figure.value for figure in finding.figures}
    assert figures["failed requests"] == 0
    assert 0 < figures["CPU of a hit"] < figures["CPU of an answer without a cache"]
    inside_us = figures["CPU of a request without a cache, without sockets"]
    assert 0 < figures["CPU that a miss adds, without sockets"] < inside_us < figures["CPU of an answer without a cache"]
    alone, whole = figures["semantic look-up among 200, p99"], figures["with the embedding among 200, p99"]
    assert 0 < alone < whole
    assert figures["of the 10 nearest, found"] == 100
    assert 0 < figures["stage cache of a semantic miss, p50"] <= figures["stage cache of a semantic miss, p99"]
