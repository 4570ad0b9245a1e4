"""The proofs about the exact cache: they hold in short runs, and fail where the thing on trial is missing."""

import pytest
import uvloop

from stayfast.pipeline.stages import cache
from stayfast.prove import isolation
from stayfast.prove.claim import Conditions
from stayfast.prove.coalesce import Coalesce
from stayfast.prove.lookup import Extent, Lookup
from stayfast.wire.canonical import Asked, scope_of


def test_nothing_crosses() -> None:
    """A thousand requests."""
    finding = isolation.in_virtual_time(1000, 1)
    assert finding.figures[0].holds


@pytest.mark.parametrize("forgotten", ["tenant", "body"])
def test_a_key_that_forgets_something_is_seen(monkeypatch: pytest.MonkeyPatch, forgotten: str) -> None:
    """Without the tenant, or without the rest of the body, answers reach others."""
    def forgetful(asked: Asked, tenant: str | None, *who: str) -> bytes:
        return scope_of(asked, *who) if forgotten == "tenant" else scope_of(Asked(), tenant, *who)

    monkeypatch.setattr(cache, "scope_of", forgetful)
    finding = isolation.in_virtual_time(1000, 1)
    assert finding.figures[0].value > 10


@pytest.mark.sockets
def test_many_are_one_call() -> None:
    """Thirty clients; without a cache each is its own call."""
    finding = uvloop.run(Coalesce(n_quick=30).run(Conditions(is_quick=True)))
    assert finding.holds
    without = uvloop.run(Coalesce(n_quick=30, cache={"mode": "off"}).run(Conditions(is_quick=True)))
    assert [figure.value for figure in without.figures if "calls" in figure.name] == [30.0, 30.0]


@pytest.mark.sockets
def test_what_a_look_up_costs_is_measured() -> None:
    """A hit is cheaper than a call, and no request fails; the goals themselves are for an idle machine."""
    finding = uvloop.run(Lookup(quick=Extent(0.4, 1, 200)).run(Conditions(is_quick=True)))
    figures = {figure.name: figure.value for figure in finding.figures}
    assert figures["failed requests"] == 0
    assert 0 < figures["CPU of a hit"] < figures["CPU of an answer without a cache"]
    alone, whole = figures["semantic look-up among 200, p99"], figures["with the embedding among 200, p99"]
    assert 0 < alone < whole
    assert figures["of the 10 nearest, found"] == 100
