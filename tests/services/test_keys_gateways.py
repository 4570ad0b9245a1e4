"""Stored keys at several real gateways: changes are in force everywhere at once, and no spend is lost or counted twice."""

import json
import os
import signal
import socket
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.server.gateway_process import Gateway
from tests.services.keys_rig import call, chat, create, gateways, run_cli, seconds_until, spend
from tests.services.postgres_server import PostgresServer, postgres_server

pytestmark = pytest.mark.sockets
WITHIN_S = 5.0  # a notification takes milliseconds, a poll a second; the rest is for a busy machine
IN_A_ROW = 12  # requests on new connections, so that each of two workers has answered some


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """One for all tests of this file."""
    with postgres_server() as started:
        yield started


def answers(gateway: Gateway, key: str, status: int) -> bool:
    """Whether a worker answers with a status."""
    return chat(gateway, key) == status


def all_answer(gateway: Gateway, key: str, status: int) -> bool:
    """Whether all workers do."""
    return all(answers(gateway, key, status) for _ in range(IN_A_ROW))


def test_keys_change_at_one_gateway_and_are_in_force_at_the_other(tmp_path: Path, server: PostgresServer) -> None:
    """By PostgreSQL: created, rotated, revoked. The figures are printed: `-s` shows them."""
    with gateways(tmp_path, 2, 2, f"{server.url}?search_path=keys_force") as (one, other):
        taken_s: dict[str, list[float]] = {"created": [], "rotated": [], "revoked": []}
        for number in range(4):
            key_id, key = create(one, f"k{number}")
            taken_s["created"].append(seconds_until(partial(answers, other, key, 200), WITHIN_S))
            seconds_until(partial(all_answer, other, key, 200), WITHIN_S)
            _, rotated = call(one, "POST", f"/admin/keys/{key_id}/rotate", body={"grace_s": 0})
            taken_s["rotated"].append(seconds_until(partial(answers, other, key, 401), WITHIN_S))
            seconds_until(partial(all_answer, other, rotated["key"], 200), WITHIN_S)
            assert call(other, "DELETE", f"/admin/keys/{key_id}")[0] == 200
            taken_s["revoked"].append(seconds_until(partial(answers, one, rotated["key"], 401), WITHIN_S))
            seconds_until(partial(all_answer, one, rotated["key"], 401), WITHIN_S)
        sys.stdout.write(f"{ {what: f'{max(values) * 1e3:.0f} ms at most' for what, values in taken_s.items()} }\n")


def test_lost_database_leaves_keys_in_force_and_changes_wait(tmp_path: Path, server: PostgresServer) -> None:
    """Killed: known keys are served, changes are refused with 503; started again: everything works."""
    with gateways(tmp_path, 1, 1, f"{server.url}?search_path=keys_lost") as (one,):
        key_id, key = create(one, "ci", scopes=["routes:m"])
        seconds_until(lambda: chat(one, key) == 200)
        server.kill()
        try:
            assert chat(one, key) == 200
            assert chat(one, key, "other") == 403
            assert call(one, "DELETE", f"/admin/keys/{key_id}")[0] == 503
            seconds_until(lambda: bool(one.log("keys_store")))
            assert chat(one, key) == 200
            assert chat(one, "sf-a-key-that-nobody-has") == 401
        finally:
            server.start()
        seconds_until(lambda: call(one, "DELETE", f"/admin/keys/{key_id}")[0] == 200)
        seconds_until(lambda: chat(one, key) == 401, WITHIN_S)


def test_gateway_that_starts_without_its_database_serves_static_keys_alone(tmp_path: Path, server: PostgresServer) -> None:
    """Unknown keys get 503 until the keys can be read; then a stored one is served."""
    address = f"{server.url}?search_path=keys_start"
    with gateways(tmp_path, 1, 1, address) as (one,):
        _, key = create(one, "ci")
    server.kill()
    is_down = True
    try:
        (tmp_path / "again").mkdir()
        with gateways(tmp_path / "again", 1, 1, address) as (one,):
            assert call(one, "GET", "/v1/models", key)[0] == 503
            assert call(one, "GET", "/v1/models")[0] == 200
            server.start()
            is_down = False
            seconds_until(lambda: call(one, "GET", "/v1/models", key)[0] == 200)
    finally:
        if is_down:
            server.start()


def test_spend_of_workers_and_gateways_is_the_exact_sum(tmp_path: Path, server: PostgresServer) -> None:
    """Two gateways of two workers: requests by two keys; a job counts for its key, too."""
    with gateways(tmp_path, 2, 2, f"{server.url}?search_path=keys_spend") as started:
        ids = {}
        for name in ("a", "b"):
            key_id, key = create(started[0], name)
            ids[name] = (key_id, key)
            for gateway in started:
                seconds_until(partial(all_answer, gateway, key, 200), WITHIN_S)
        before = {row["key"]: row for row in _settled(started, sum(IN_A_ROW for _ in range(4)))["data"]}
        with ThreadPoolExecutor(8) as pool:
            done = list(pool.map(lambda n: chat(started[n % 2], ids["ab"[n % 3 == 0]][1]), range(60)))
        assert done == [200] * 60
        job = {"endpoint": "/v1/chat/completions",
               "body": {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}}
        assert call(started[1], "POST", "/v1/jobs", ids["a"][1], job)[0] in (200, 202)
        _settled(started, sum(row["requests"] for row in before.values()) + 61)
        for gateway in started:
            rows = {row["key"]: row for row in spend(gateway, "key")["data"]}
            for name, n in (("a", 41), ("b", 20)):
                key_id = ids[name][0]
                assert rows[key_id]["requests"] - before[key_id]["requests"] == n
                each = before[key_id]["nano_usd"] // before[key_id]["requests"]
                assert each > 0
                assert rows[key_id]["nano_usd"] == each * rows[key_id]["requests"]


def is_listening(gateway: Gateway) -> bool:
    """Whether any worker accepts connections."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", urlsplit(gateway.url).port)) == 0


def _settled(started: list[Gateway], n_requests: int) -> dict[str, Any]:
    """The sums by key once they have at least so many requests."""
    def have_come() -> bool:
        return bool(spend(started[0], "key")["total"]["requests"] >= n_requests)

    seconds_until(have_come, 60.0)
    return spend(started[0], "key")


def test_killed_gateway_loses_only_the_spend_of_the_last_seconds(tmp_path: Path) -> None:
    """SQLite: what was shown is there after `kill -9` of all workers, and what comes after it is added; nothing twice."""
    with gateways(tmp_path, 1, 2) as (one,):
        _, key = create(one, "ci")
        seconds_until(partial(all_answer, one, key, 200), WITHIN_S)
        for _ in range(20):
            assert chat(one, key) == 200
        seconds_until(lambda: spend(one)["total"]["requests"] >= 20 + IN_A_ROW)
        stored = spend(one)["total"]
        killed = one.pids()
        for pid in killed:
            os.kill(pid, signal.SIGKILL)
        seconds_until(lambda: len(one.pids()) >= len(killed) + 2)
        seconds_until(partial(is_listening, one))  # a worker writes `starting` before it listens
        after = spend(one)["total"]
        assert after["requests"] >= stored["requests"]
        seconds_until(lambda: chat(one, key) == 200, WITHIN_S)
        seconds_until(lambda: spend(one)["total"]["requests"] > after["requests"])
        assert spend(one)["total"]["requests"] <= after["requests"] + 2
    sums = run_cli(tmp_path / "0", "spend", "--store", "--config", "stayfast.yaml", "--json", "--by", "key,model")
    assert sums.returncode == 0, sums.stderr
    assert json.loads(sums.stdout)["total"]["requests"] > after["requests"]


def test_drained_gateway_loses_no_spend(tmp_path: Path) -> None:
    """SIGTERM right after the last answer: its cost is stored."""
    with gateways(tmp_path, 1, 2) as (one,):
        _, key = create(one, "ci")
        seconds_until(lambda: chat(one, key) == 200, WITHIN_S)
        n_ok = sum(chat(one, key) == 200 for _ in range(10))
        assert n_ok >= 1
    sums = run_cli(tmp_path / "0", "spend", "--store", "--config", "stayfast.yaml", "--json")
    assert json.loads(sums.stdout)["total"]["requests"] == n_ok + 1


def test_quota_of_a_key_counts_in_all_workers(tmp_path: Path) -> None:
    """Five a minute, by two workers: the sixth is 429 with the reason; another key of the tenant is not affected."""
    with gateways(tmp_path, 1, 2) as (one,):
        _, key = create(one, "few", quota={"requests_per_minute": 5})
        _, free = create(one, "free")
        seconds_until(lambda: call(one, "GET", "/v1/models", key)[0] == 200, WITHIN_S)
        seconds_until(partial(all_answer, one, free, 200), WITHIN_S)
        statuses = [chat(one, key) for _ in range(12)]
        assert statuses.count(200) in (5, 6)  # one may be refilled meanwhile
        assert statuses[-1] == 429
        status, error = call(one, "POST", "/v1/chat/completions", key, {
            "model": "m", "messages": [{"role": "user", "content": "hi"}]})
        assert (status, error["error"]["code"]) == (429, "rate_limit_exceeded")
        assert "this key on requests per minute" in error["error"]["message"]
        assert chat(one, free) == 200


def test_command_line_works_on_keys_with_and_without_a_gateway(tmp_path: Path) -> None:
    """Each action by the gateway, then by the store; a key of the one is served by the other at once."""
    with gateways(tmp_path, 1, 1) as (one,):
        by_gateway = ("--url", one.url, "--key-env", "OPS_KEY")
        for name, where in (("api", by_gateway), ("file", ("--store", "--config", "stayfast.yaml"))):
            cli = partial(run_cli, tmp_path / "0", "key")
            made = cli("create", "--tenant", "acme", "--name", name, "--scope", "routes:m", "--expires", "90d", "--quota",
                       "requests: 100/min", "--json", *where)
            assert made.returncode == 0, made.stderr
            key = json.loads(made.stdout)
            seconds_until(partial(answers, one, key["key"], 200), WITHIN_S)
            assert chat(one, key["key"], "other") == 403
            assert key["id"] in cli("list", *where).stdout
            assert "requests: 100/min" in cli("show", key["id"], *where).stdout
            rotated = cli("rotate", key["id"], "--grace", "1h", *where)
            assert rotated.stdout.startswith("sf-")
            seconds_until(partial(answers, one, rotated.stdout.strip(), 200), WITHIN_S)
            assert chat(one, key["key"]) == 200  # within its grace
            assert cli("revoke", key["id"], *where).stdout.strip() == f"{key['id']} is revoked"
            seconds_until(partial(answers, one, key["key"], 401), WITHIN_S)
            again = cli("rotate", key["id"], *where)
            assert (again.returncode, "revoked" in again.stderr) == (1, True)
            assert cli("create", "--tenant", "acme", "--name", "x", "--scope", "root", *where).returncode == 2
        changes = [(line["what"], line["name"], line["actor"]) for line in one.log("key_changed")]
        assert changes == [("created", "api", "ops"), ("rotated", "api", "ops"), ("revoked", "api", "ops")]
        assert key["key"] not in (tmp_path / "0" / "log").read_text()
