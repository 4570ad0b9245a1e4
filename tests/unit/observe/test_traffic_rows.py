"""observe.traffic_rows: a finished request as a row of figures."""

import pytest

from stayfast.core.types import Usage
from stayfast.observe.traffic_rows import digest_tenant, list_traffic, to_traffic_line
from stayfast.pipeline.stages.settle import mark_body
from tests.unit.observe.fact_rig import done


def test_to_traffic_line_holds_figures_only() -> None:
    fact = done(wall_at=100.0, ttft_s=0.5, usage=Usage(30, 20, 5), tenant="acme", model="secret prompt")
    row = to_traffic_line(fact, "m")
    assert (row.n_input, row.n_cached, row.n_output, row.ttft_s) == (30, 5, 20, 0.5)
    assert row.arrived_at == pytest.approx(100.0 - row.e2e_s)
    assert "secret" not in str(row)


def test_list_traffic_requests_without_a_route_are_left_out() -> None:
    assert len(list_traffic([done(), done(route=None), done(role="job")])) == 1


def test_digest_tenant_is_short_and_stable() -> None:
    assert digest_tenant("acme") == digest_tenant("acme") != digest_tenant("other")
    assert (len(digest_tenant("acme")), digest_tenant(None)) == (8, "")


@pytest.mark.parametrize("n", [10, 255, 256, 257, 4000, 100_000])
def test_mark_body_changes_with_length_and_end(n: int) -> None:
    body = bytes(range(256)) * (n // 256 + 1)
    body = body[:n]
    assert mark_body(body) == mark_body(bytes(body))
    assert len({mark_body(body), mark_body(body + b"x"), mark_body(body[:-1] + b"\x00y"[:1])}) >= 2
    assert 0 <= mark_body(body) < 2**32
