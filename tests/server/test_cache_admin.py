"""/admin/cache and `stayfast cache stats|inspect|purge`: permissions, errors, and totals over several workers."""

import json
from pathlib import Path

import pytest
import uvloop

from stayfast.cli import main
from stayfast.cli.cache import format_stats
from stayfast.server.backend import PurgeFilter
from tests.server.cached_gateway import SETTINGS, ask, hit
from tests.server.fakes import FakeBackend, get, serving
from tests.server.gateway_process import running
from tests.server.keys import ADMIN, KEY, KEYS


def delete(path: str, *headers: str) -> bytes:
    """A DELETE."""
    return get(path, *headers).replace(b"GET", b"DELETE", 1)


@pytest.mark.sockets
def test_cache_admin_needs_admin_key() -> None:
    """401 without a key, 403 with any key, an answer with an admin's: gateways, caches, one answer, and purges."""
    async def run() -> None:
        async with serving(FakeBackend(KEYS)) as running_:
            client = await running_.connect()
            told = []
            for headers in ((), (f"x-api-key: {KEY}",), (f"x-api-key: {ADMIN}",)):
                for request in (get("/admin/gateways", *headers), get("/admin/traffic", *headers),
                                get("/admin/cache", *headers),
                                get(f"/admin/cache/{bytes(32).hex()}", *headers),
                                delete("/admin/cache?route=m&tag=a", *headers),
                                delete(f"/admin/cache/{bytes(32).hex()}", *headers)):
                    client.send(request)
                    told.append((await client.answer())[0])
            assert told == [401] * 6 + [403] * 6 + [200] * 6
            assert running_.backend.forgotten == [PurgeFilter("m", None, "a"), PurgeFilter(key=bytes(32))]

    uvloop.run(run())


@pytest.mark.sockets
@pytest.mark.parametrize(("request_", "status", "param"), [
    (delete("/admin/cache"), 400, "route"), (delete("/admin/cache?all=yes"), 400, "all"),
    (delete("/admin/cache?tenant="), 400, "tenant"), (delete("/admin/cache?route=m&tagg=a"), 400, "tagg"),
    (delete("/admin/cache?tag=a&tag=b"), 400, "tag"), (delete("/admin/cache?all=true&tag=a"), 400, "all"),
    (get("/admin/cache/nonsense"), 400, "key"), (get(f"/admin/cache/{'1' * 64}"), 404, "key"),
    (delete("/admin/cache/nonsense"), 400, "key"), (get("/admin/cache/"), 404, None)])
def test_cache_admin_invalid_parameters_are_400(request_: bytes, status: int, param: str | None) -> None:
    """A 4xx that names what is wrong, and nothing is forgotten."""
    async def run() -> None:
        async with serving() as running_:
            client = await running_.connect()
            client.send(request_)
            told, _, body = await client.answer()
            assert (told, json.loads(body)["error"]["param"]) == (status, param)
            assert not running_.backend.forgotten

    uvloop.run(run())


def purge_by_key(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What `x-cache` tells of a hit is what `explain` tells, and all that it takes to have it forgotten, once."""
    said = [ask(url, "other", "three") for _ in range(12)]
    assert said[-1] == "hit"
    main(["explain", "three", "--url", url])
    told = capsys.readouterr().out
    key = told.partition("stayfast cache purge --key ")[2].partition(" ")[0]
    assert key in hit(url, "other", "three")
    assert main(["cache", "inspect", key, "--url", url]) == 0
    assert main(["cache", "purge", "--key", key, "--url", url]) == 0
    assert main(["cache", "inspect", key, "--url", url]) == 1
    capsys.readouterr()
    assert main(["cache", "purge", "--key", key, "--url", url]) == 5
    assert capsys.readouterr().err == "stayfast cache purge: no answer with this key\n"
    assert main(["cache", "purge", "--key", "nonsense", "--url", url]) == 1
    assert "64 hexadecimal digits" in capsys.readouterr().err


@pytest.mark.sockets
def test_cache_admin_covers_all_workers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Statistics add up, a key from `explain` is found wherever it is kept, and what is purged is gone everywhere."""
    with running(tmp_path, 2, SETTINGS) as gateway:
        results = [ask(gateway.url, "m", "one") for _ in range(12)]
        assert set(results) == {"miss", "hit"}
        n_hits = results.count("hit")
        ask(gateway.url, "other", "two", "news")
        of = ["--url", gateway.url, "--json"]
        assert main(["cache", "stats", *of]) == 0
        told = {route["route"]: route for route in json.loads(capsys.readouterr().out)["data"]}
        assert told["m"]["requests"] == {"hit": n_hits, "miss": 12 - n_hits}
        assert told["m"]["kinds"]["exact"]["hit_ratio"] == pytest.approx(n_hits / 12, abs=1e-4)
        assert told["m"]["kinds"]["exact"]["saved_usd"] > 0
        assert told["m"]["kinds"]["exact"]["saved_s"] > 0
        assert (told["m"]["store"]["n_entries"], told["other"]["store"]["n_entries"]) == (12 - n_hits, 1)
        assert main(["explain", "two", *of]) == 0
        waterfall = json.loads(capsys.readouterr().out)
        assert waterfall["cache"] == "miss"
        key = waterfall["cache_key"]
        for _ in range(4):
            assert main(["cache", "inspect", key, *of]) == 0
            kept = json.loads(capsys.readouterr().out)
            assert (kept["route"], kept["tags"], kept["finish_reason"]) == ("other", ["news"], "stop")
            assert "two" not in json.dumps(kept)
        assert main(["cache", "purge", "--tag", "news", "--route", "m", *of]) == 5
        said = capsys.readouterr()
        assert json.loads(said.out) == {"forgotten": 0, "gone": []}
        assert said.err == "stayfast cache purge: no stored answer of route m and tag news\n"
        assert main(["cache", "purge", "--tag", "news", "--url", gateway.url]) == 0
        assert capsys.readouterr() == ("1 answer deleted\n", "")
        assert main(["cache", "inspect", key, *of]) == 1
        assert main(["cache", "purge", "--route", "mm", *of]) == 5
        assert "no route mm with a cache; routes with one: m, other\n" in capsys.readouterr().err
        purge_by_key(gateway.url, capsys)
        assert main(["cache", "purge", "--all", *of]) == 0
        assert json.loads(capsys.readouterr().out)["forgotten"] == 12 - n_hits
        assert main(["cache", "purge", "--all", "--url", gateway.url]) == 5
        assert capsys.readouterr() == ("0 answers deleted\n", "stayfast cache purge: no stored answers\n")
        assert ask(gateway.url, "m", "one") == "miss"
    assert main(["cache", "stats", *of]) == 2
    assert "cannot reach" in capsys.readouterr().err


def test_cache_inspect_command_empty_key_is_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    """Nobody is asked for it."""
    assert main(["cache", "inspect", ""]) == 2
    assert "`stayfast explain REQUEST-ID` prints it" in capsys.readouterr().err


def test_cache_purge_command_needs_a_condition(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is forgotten by a command without words, nor by one that says both."""
    assert main(["cache", "purge"]) == 2
    assert main(["cache", "purge", "--all", "--route", "m"]) == 2
    assert main(["cache", "purge", "--all", "--key", "1" * 64]) == 2
    assert main(["cache", "purge", "--tag", "a", "--key", "1" * 64]) == 2
    assert "--all" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main(["cache", "purge", "--tag", "a", "--tag", "b"])
    assert "--tag is given twice" in capsys.readouterr().err


def test_cache_stats_command_prints_table() -> None:
    """A line for each kind that is in use, with the bounds of what may be wrong, and what is no column below."""
    store = {"kind": "memory", "n_entries": 7, "n_bytes": 4096, "why_not": ""}
    plain = {"hits": 3, "hit_ratio": 0.3, "saved_s": 1.25, "saved_usd": 0.5}
    semantic = {"hits": 1, "hit_ratio": 0.1, "saved_s": 4000.0, "saved_usd": 0.25}
    shown = format_stats([
        {"route": "faq", "store": store, "requests": {"hit": 3, "coalesced": 2}, "kinds": {"exact": plain,
                                                                                          "semantic": semantic},
         "error": {"likely": 0.005, "low": 0.001, "high": 0.0123}},
        {"route": "x", "store": {**store, "why_not": "suspended"}, "requests": {}, "error": None,
         "kinds": {"exact": {**plain, "hits": 0, "hit_ratio": None}, "semantic": {**semantic, "hits": 0}}}])
    lines = shown.splitlines()
    assert [line.split()[:4] for line in lines[1:4]] == [["faq", "exact", "3", "30.0%"], ["faq", "semantic", "1", "10.0%"],
                                                         ["x", "exact", "0", "-"]]
    assert "0.50% (0.10% to 1.23%)" in lines[2]
    assert lines[-2:] == ["faq: 2 coalesced", "x: store unreachable: suspended"]
    assert "No route has a cache" in format_stats([])


@pytest.mark.parametrize(("state", "said"), [
    ("shadow", "y: semantic in shadow, no hits served yet: 12 labels; a tenant needs 300, of right and wrong"),
    ("live", "y: semantic live with 12 labels; 40 questions remembered; audits: 1 right, 2 wrong, of 4 started"),
    ("fixed", "y: semantic with a fixed threshold, without an error bound; 40 questions"),
    ("off", "y: semantic off: no embedder"), ("waiting", "y: semantic waiting for its embedder")])
def test_cache_stats_of_semantic_cache_without_hits(state: str, said: str) -> None:
    """It has its line, and its state below."""
    kind = {"hits": 0, "hit_ratio": None, "saved_s": 0.0, "saved_usd": 0.0}
    semantic: dict[str, object] = {"state": state, "workers": {state: 1}, "labels": 12, "min_labels": 300, "questions": 40,
                                   "audits": {"begun": 4, "right": 1, "wrong": 2}}
    route = {"route": "y", "store": {"kind": "memory", "n_entries": 0, "n_bytes": 0, "why_not": ""}, "requests": {},
             "error": None, "kinds": {"exact": kind, "semantic": kind}, "semantic": semantic}
    lines = format_stats([route]).splitlines()
    assert [line.split()[:3] for line in lines[1:3]] == [["y", "exact", "0"], ["y", "semantic", "0"]]
    assert lines[-1].startswith(said)
    semantic["workers"] = {"other": 1, state: 2}
    assert f" (workers: 1 other, 2 {state}); 40 questions" in format_stats([route])
