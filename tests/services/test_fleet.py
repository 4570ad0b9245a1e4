"""Gateways that share a Redis: who is alive, purges, and what happens without it."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.services.fleet_rig import SETTINGS, call, fleet, member, names_at, wait_for
from tests.services.redis_traffic import ask, metric

pytestmark = pytest.mark.sockets


def test_fleet_lists_live_gateways(tmp_path: Path) -> None:
    """All of them at each; one that stops leaves at once, one that is killed after three heartbeats."""
    with fleet(tmp_path, "one", "two") as (server, (one, two)):
        wait_for(lambda: names_at(one) == names_at(two) == ["one", "two"])
        listed = call(one, "/admin/gateways")
        assert (listed["why_alone"], listed["findings"]) == (None, [])
        row = listed["data"][1]
        assert (row["workers"], row["draining"], row["answers"], row["in_flight"]) == (1, False, False, 0)
        assert row["seen_s_ago"] < 3
        assert listed["data"][0]["answers"]
        assert listed["data"][0]["config"] == row["config"]
        with member(tmp_path, "three", server, "new") as three:
            wait_for(lambda: names_at(one) == ["one", "three", "two"])
            wait_for(lambda: metric(three, "stayfast_fleet_gateways") == 3)
            (found,) = call(two, "/admin/gateways")["findings"]
            assert found.startswith("three~")
            assert found.endswith(": routes. Reload the one with the old file (SIGHUP).")
        assert names_at(one) == ["one", "two"]
        assert 0 <= metric(one, "stayfast_fleet_exchange_age_seconds") < 5


def test_fleet_purge_reaches_every_gateway(tmp_path: Path) -> None:
    """Caches in memory, too; the result counts the answers of all gateways."""
    with fleet(tmp_path, "one", "two") as (_, (one, two)):
        wait_for(lambda: names_at(one) == ["one", "two"])
        for port in (one, two):
            assert (ask(port, "What?"), ask(port, "What?")) == ("miss", "hit")
        began_at = time.monotonic()
        assert call(one, "/admin/cache?route=chat", "DELETE") == {"forgotten": 2, "gone": [], "unconfirmed": []}
        assert time.monotonic() - began_at < 1.4  # without the wait for gateways that do not confirm
        assert (ask(two, "What?"), ask(one, "What?")) == ("miss", "miss")


def test_fleet_purge_drops_copies_near_a_shared_store(tmp_path: Path) -> None:
    """Without a fleet, another gateway would serve its copy for a minute."""
    text = SETTINGS.replace("cache: {", "cache: {store: hot, ") + (
        'stores:\n  hot: {kind: redis, url: "URL", local_ttl_s: 60, timeout_s: 1}\n')
    with fleet(tmp_path, "one", "two", settings=text) as (server, (one, two)):
        wait_for(lambda: names_at(one) == ["one", "two"])
        assert ask(one, "What?") == "miss"
        wait_for(lambda: server.say(b"EXISTS", b"stayfast:i:all") == b":1\r\n")
        assert (ask(two, "What?"), ask(two, "What?")) == ("hit", "hit")
        assert metric(two, 'stayfast_cache_store_requests_total{store="hot",op="get",result="local_hit"}') == 1
        assert call(one, "/admin/cache?tag=faq", "DELETE") == {"forgotten": 1, "gone": [], "unconfirmed": []}
        assert ask(two, "What?") == "miss"


def test_fleet_lists_draining_gateway(tmp_path: Path) -> None:
    """A balancer's operator sees it at every other gateway."""
    with fleet(tmp_path, "one") as (server, (one,)), member(
            tmp_path, "two", server, settings=SETTINGS.replace("127.0.0.1}", "127.0.0.1, drain_grace_s: 30}")):
        wait_for(lambda: names_at(one) == ["one", "two"])
        (pid,) = call(one, "/admin/gateways")["data"][1]["pids"]
        os.kill(pid, signal.SIGTERM)
        wait_for(lambda: [row["draining"] for row in call(one, "/admin/gateways")["data"]] == [False, True])
        os.kill(pid, signal.SIGINT)
        wait_for(lambda: names_at(one) == ["one"])


def test_fleet_new_epoch_purges_other_gateways(tmp_path: Path) -> None:
    """A gateway that starts with another epoch than the fleet's; one with the same epoch purges nothing."""
    with fleet(tmp_path, "one", "two") as (server, (one, two)):
        wait_for(lambda: names_at(one) == ["one", "two"])
        assert (ask(one, "What?"), ask(one, "What?")) == ("miss", "hit")
        wait_for(lambda: server.say(b"HLEN", b"{stayfast:fleet}:epochs") == b":1\r\n")
        with member(tmp_path, "three", server):
            wait_for(lambda: len(names_at(two)) == 3)
            assert ask(one, "What?") == "hit"
        with member(tmp_path, "four", server, "new"):
            wait_for(lambda: ask(one, "What?") == "miss")


def test_fleet_without_its_server_goes_on(tmp_path: Path) -> None:
    """Killed, then frozen: no request fails or waits; each lists itself, and why; a purge says what it did not reach, and
    reaches it when the server is back.
    """
    with fleet(tmp_path, "one", "two") as (server, (one, two)):
        wait_for(lambda: names_at(one) == names_at(two) == ["one", "two"])
        for harm, heal in ((server.kill, server.start), (server.freeze, server.thaw)):
            harm()
            with _load((one, two)) as took_s:
                wait_for(lambda: call(one, "/admin/gateways")["why_alone"] is not None)
                listed = call(one, "/admin/gateways")
                assert [row["id"].partition("~")[0] for row in listed["data"]] == ["one"]
                assert "unavailable" in listed["why_alone"]
                assert (ask(two, "What?"), ask(two, "What?"))[1] == "hit"
                purged = call(one, "/admin/cache?all=true", "DELETE")
                (unreached,) = purged["unconfirmed"]
                assert unreached.startswith("two~")
                assert "the purge is retried" in purged["gone"][0]
                time.sleep(2)
            assert len(took_s) > 20
            assert max(took_s) < 1.0
            heal()
            wait_for(lambda: ask(two, "What?") == "miss")
            wait_for(lambda: names_at(one) == names_at(two) == ["one", "two"])


@contextmanager
def _load(ports: tuple[int, ...]) -> Iterator[list[float]]:
    """New questions to all gateways until the block ends; how long each took. Fails if one fails."""
    took_s: list[float] = []
    failures: list[BaseException] = []
    is_over = threading.Event()

    def send() -> None:
        n = 0
        while not is_over.is_set():
            n += 1
            began_at = time.monotonic()
            try:
                ask(ports[n % len(ports)], f"Question {time.monotonic()}")
            except (OSError, AssertionError, ValueError, KeyError) as error:
                failures.append(error)
                return
            took_s.append(time.monotonic() - began_at)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield took_s
    finally:
        is_over.set()
        thread.join()
    assert failures == []
