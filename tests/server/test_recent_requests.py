"""/admin/requests and `stayfast explain`: permissions, errors, and the printed text."""

import json
from dataclasses import replace

import msgspec
import pytest
import uvloop

from stayfast.cli.explain import draw_waterfall
from stayfast.core.types import Outcome, Usage
from stayfast.observe.request_filter import RequestFilter
from stayfast.observe.waterfall import Waterfall, build_waterfall
from stayfast.policy.histogram import LogHistogram
from stayfast.server.backend import RecentRequestsQuery
from tests.server.fakes import FakeBackend, get, serving
from tests.server.keys import ADMIN, KEY, KEYS
from tests.unit.observe.fact_rig import SLOW_RETRIED_REQUEST, attempt, done


@pytest.mark.sockets
def test_requests_endpoint_tenant_sees_own_and_admin_all() -> None:
    """Without a key nothing; with keys the tenant is passed on; without any keys everybody's are shown."""
    async def main() -> None:
        async with serving(FakeBackend(KEYS)) as running:
            client = await running.connect()
            client.send(get("/admin/requests") + get("/admin/requests/r%2F1"))
            assert [(await client.answer())[0] for _ in range(2)] == [401, 401]
            for key in (KEY, ADMIN):
                client.send(get("/admin/requests?n=7&which=notable", f"x-api-key: {key}"))
                status, headers, body = await client.answer()
                assert (status, headers["cache-control"], json.loads(body)["object"]) == (200, "no-store", "list")
                client.send(get("/admin/requests/r%2F1", f"x-api-key: {key}"))
                assert json.loads((await client.answer())[2])["request_id"] == "r/1"
            assert running.backend.asked == [RecentRequestsQuery(7, True, "app"), RecentRequestsQuery(tenant="app"),
                                             RecentRequestsQuery(7, True), RecentRequestsQuery()]
        async with serving() as running:
            client = await running.connect()
            client.send(get("/admin/requests"))
            assert (await client.answer())[0] == 200
            assert running.backend.asked == [RecentRequestsQuery()]

    uvloop.run(main())


@pytest.mark.sockets
def test_requests_endpoint_parses_filters() -> None:
    """Each parameter reaches the query, percent-decoded."""
    async def main() -> None:
        async with serving() as running:
            client = await running.connect()
            client.send(get("/admin/requests?which=slowest&route=a%2Fb&upstream=u&status=5xx&outcome=failed&since=12.5"))
            assert (await client.answer())[0] == 200
            assert running.backend.asked == [RecentRequestsQuery(
                is_slowest=True, wanted=RequestFilter("a/b", "u", "5xx", "failed", 12.5))]

    uvloop.run(main())


@pytest.mark.sockets
@pytest.mark.parametrize(("path", "status", "param"), [
    ("/admin/requests/none", 404, "id"), ("/admin/requests?n=0", 400, "n"), ("/admin/requests?n=1001", 400, "n"),
    ("/admin/requests?n=%D9%A1", 400, "n"), ("/admin/requests?n=1e3", 400, "n"), ("/admin/requests?which=bad", 400, "which"),
    ("/admin/requests?status=5", 400, "status"), ("/admin/requests?status=6xx", 400, "status"),
    ("/admin/requests?outcome=bad", 400, "outcome"), ("/admin/requests?since=nan", 400, "since"),
    ("/admin/requests?since=-1", 400, "since"), ("/admin/requests?route=", 400, "route"),
    ("/admin/requests?upstream=" + "u" * 201, 400, "upstream"), ("/admin/requests?router=m", 400, "router"),
    ("/admin/requests/", 404, None), ("/admin", 404, None)])
def test_requests_endpoint_invalid_parameters_are_400(path: str, status: int, param: str | None) -> None:
    """A 4xx that names what is wrong."""
    async def main() -> None:
        async with serving() as running:
            client = await running.connect()
            client.send(get(path))
            told, _, body = await client.answer()
            assert (told, json.loads(body)["error"]["param"]) == (status, param)

    uvloop.run(main())


def test_server_config_admins_must_have_keys() -> None:
    """A name that no key belongs to is a mistake."""
    with pytest.raises(ValueError, match="admins: 'nobody'"):
        replace(KEYS, admins=("nobody",))


def told(**changes: object) -> Waterfall:
    """A request as the gateway tells of it."""
    fact = SLOW_RETRIED_REQUEST if not changes else done(**changes)
    return msgspec.json.decode(msgspec.json.encode(build_waterfall(fact, LogHistogram())), type=Waterfall)


def test_explain_prints_waterfall() -> None:
    """Stages on one scale with their allowances, attempts as lanes, the broken budget, the verdict."""
    assert draw_waterfall(told(), 80) == """\
r  m -> v  chat  200 ok  3.00 s of 3.00 s  0.250000 USD

                  0                           3.00 s
  admit           █                                   100 ms of 3.00 s
  call             ████████████████████████████       2.50 s of 2.00 s  broke its budget
  relay                                        █████  400 ms of 500 ms
  settle                                           █  0.00 ms of 0.00 ms
  1 u              ·········                          status 503
  2 v                        ··················▶█▒▒▒  success, 20 tokens
                  · waiting  ▶ first token  █ answering  ▒ stalled

Answered in 3.00 s; first token after 2.60 s.
Stage call broke its budget: 2.50 s of 2.00 s.
Attempt 1 at u failed after 800 ms: status 503.
v stalled once during its answer, for at most 300 ms.
Longest stage: call, 2.50 s of 3.00 s.
Gateway overhead before the first token: 200 ms.
"""


def test_explain_overrun_uses_one_unit() -> None:
    """As stages are."""
    first = draw_waterfall(told(total_s=0.98, ended_at=2.02), 80).splitlines()[0]
    assert "  1.02 s of 0.98 s  " in first


def test_explain_shows_lost_hedge() -> None:
    """It was closed for being slower: it neither failed nor was it ignored, and it wrote nothing to be counted."""
    none = Usage()
    lost = attempt(outcome=Outcome.IGNORED, is_lost=True, ttft_s=None, usage=none, cost_usd=None)
    drawn = draw_waterfall(told(attempts=(lost, attempt(upstream="v", usage=none))), 80).splitlines()
    assert [line.split("  ")[-1] for line in drawn if line.startswith(("  1 ", "  2 "))] == [
        "lost the race", "success, 0 tokens"]


def test_explain_escapes_control_characters() -> None:
    """Escape sequences in what a client or an upstream chose are printed as question marks."""
    text = draw_waterfall(told(route=None, model="\x1b[2J\r\nx", status=502, error="\x1b]0;owned\x07"), 80, is_red=True)
    assert not [char for char in text if not char.isprintable() and char != "\n"]
    assert "?[2J??x" in text


def test_explain_failed_stage_is_red() -> None:
    """One line, and only on a terminal."""
    text = draw_waterfall(told(), 80, is_red=True)
    assert [line for line in text.splitlines() if "\x1b[31m" in line] == [
        line for line in text.splitlines() if "broke its budget" in line and "Stage" not in line]
