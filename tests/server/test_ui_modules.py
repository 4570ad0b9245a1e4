"""The modules of the page, one by one, in a real browser: the stream's parser, figures, units, the address."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from stayfast.core.snapshot import HEAT_BOUNDS_S
from tests.browser import open_tab
from tests.server.fakes import serving

DASH = "\N{EN DASH}"  # unknown
pytestmark = pytest.mark.sockets


def evaluate(folder: Path, *expressions: str) -> list[Any]:
    """The values of JavaScript expressions, in which `figures`, `live`, `units`, `address` are the page's modules."""

    async def main() -> list[Any]:
        async with asyncio.timeout(90), serving() as running, open_tab(folder) as tab:
            await tab.open(f"http://127.0.0.1:{running.port}/ui", "document.querySelector('main')")
            names = ("figures", "live", "units", "address")
            load = "; ".join(f"globalThis.{name} = await import('/ui/{name}.mjs')" for name in names)
            await tab.evaluate(f"(async () => {{ {load}; return true; }})()")
            return [await tab.evaluate(expression) for expression in expressions]

    return asyncio.run(main())


def test_parser_finds_events_however_the_stream_is_cut(tmp_path: Path) -> None:
    r"""Any cut, also between \r and \n; comments, unknown fields, data of several lines; an event without data is none."""
    stream = (": hi\n\nid: 7\r\nevent: frame\r\ndata: {\"a\":1}\r\n\r\ndata: x\ndata: y\nretry: 5\n\nevent: none\n\n"
              "data:z\n\n")
    expected = [{"event": "frame", "id": "7", "data": '{"a":1}'}, {"event": "message", "id": "7", "data": "x\ny"},
                {"event": "message", "id": "7", "data": "z"}]
    whole, cut = evaluate(
        tmp_path, f"live.makeParser().feed({json.dumps(stream)})",
        f"""(() => {{ const text = {json.dumps(stream)}, found = [];
            for (let at = 0; at <= text.length; at += 1) {{
              const parser = live.makeParser();
              const parts = [...parser.feed(text.slice(0, at)), ...parser.feed(text.slice(at))];
              found.push(JSON.stringify(parts));
            }}
            return [...new Set(found)]; }})()""")
    assert whole == expected
    assert [json.loads(each) for each in cut] == [expected]


def test_heat_rows_are_those_of_the_contract(tmp_path: Path) -> None:
    """The browser's bounds are those of `core.snapshot`; a percentile lies within the row of its request."""
    values_s = [0.011, 0.4, 0.5, 0.62, 1.0, 2.3, 7.7, 90.0]
    rows = [0] * (len(HEAT_BOUNDS_S) + 1)
    for value_s in values_s:
        rows[next(at for at, bound in enumerate(HEAT_BOUNDS_S) if value_s <= bound)] += 1
    bounds, found, none = evaluate(
        tmp_path, "figures.HEAT_BOUNDS_S", f"[0.01, 0.5, 0.99].map((share) => figures.percentileOf({rows}, share))",
        f"figures.percentileOf({[0] * len(rows)}, 0.5)")
    assert bounds == pytest.approx(HEAT_BOUNDS_S)
    assert none is None
    for share, value_s in zip((0.01, 0.5, 0.99), found, strict=True):
        exact = sorted(values_s)[min(len(values_s) - 1, int(share * len(values_s) - 1e-9))]
        assert exact / 2**0.5 <= value_s <= exact * 2**0.5


def test_slots_keep_gaps_and_lose_no_request(tmp_path: Path) -> None:
    """Frames of the history, live ones, and a hole between them; merged slots have the sum of their frames."""
    frames = [{"at": 1000.0 + at, "slot_s": 5, "routes": [{"route": "a", "n": 2, "heat": [[3, 2]]}]} for at in (5, 10)]
    routes = [{"route": "a", "n": 1, "heat": [[4, 1]]}, {"route": "b", "n": 1, "heat": [[4, 1]], "n_heat_failed": 1}]
    frames += [{"at": 1040.0 + at, "routes": routes} for at in range(10)]
    slots, merged = evaluate(
        tmp_path, f"figures.slotsOf({json.dumps(frames)}, 60, {{route: '', upstream: '', q: ''}}, 1050)",
        f"figures.mergeFrames({json.dumps(frames[2:6])})")
    assert [slot["at"] for slot in slots] == list(range(995, 1055, 5))
    assert [(slot["at"], slot["n"], slot["failed"]) for slot in slots if slot["n"]] == [
        (1000, 2, 0), (1005, 2, 0), (1040, 10, 5), (1045, 10, 5)]
    gaps = [slot["at"] for slot in slots if slot["isGap"]]
    assert gaps == [995, 1010, 1015, 1020, 1025, 1030, 1050]  # 1035: the first live frame covers its end
    assert (merged["at"], merged["slot_s"]) == (1045, 5)
    assert [(row["route"], row["n"], row["heat"]) for row in merged["routes"]] == [("a", 4, [[4, 4]]), ("b", 4, [[4, 4]])]


def test_live_frames_are_merged_when_they_are_old(tmp_path: Path) -> None:
    """Half an hour of frames is a few hundred objects, and no request is lost."""
    [n_frames, n_requests, kinds, span] = evaluate(tmp_path, """(() => {
        const made = new live.Live({ now: () => 0 });
        const routes = [{ route: 'a', n: 1, heat: [[3, 1]] }];
        for (let n = 1; n <= 1800; n += 1) made.take({ at: 5000 + n, n, gateway: 'g', routes });
        const sum = made.frames.reduce((total, frame) => total + frame.routes[0].n, 0);
        return [made.frames.length, sum, made.frames.filter((frame) => !frame.slot_s).length,
          made.frames.at(-1).at - made.frames[0].at]; })()""")[0]
    assert n_requests == 1800
    assert n_frames <= 1800 / 5 + 40
    assert 30 <= kinds <= 36
    assert span == pytest.approx(1800, abs=10)


def test_figures_have_units(tmp_path: Path) -> None:
    """Nothing is rounded to a wrong zero; unknown is a dash."""
    cases = {
        "units.seconds": {0: "0 s", 0.00042: "420 µs", 0.0042: "4.20 ms", 0.35: "350 ms", 0.9996: "1.00 s", 1.236: "1.24 s",
                          61.7: "61.7 s", 200: "3 min 20 s", 7500: "2 h 5 min", 273_600: "3 d 4 h", None: DASH},
        "units.percent": {0: "0 %", 0.0004: "0.04 %", 0.0312: "3.1 %", 0.996: "100 %", 0.5: "50 %", None: DASH},
        "units.bytes": {0: "0 B", 999: "999 B", 20_000: "20.0 kB", 1.5e9: "1.50 GB", None: DASH},
        "units.count": {0: "0", 1234: "1,234", 12_345: "12.3 k", 2e6: "2.00 M", None: DASH},
        "units.dollars": {0: "0 USD", 0.00123: "0.0012 USD", 3.5: "3.50 USD", None: DASH},
    }
    for (name, pairs), shown in zip(cases.items(), evaluate(tmp_path, *(
            f"{json.dumps(list(pairs))}.map({name})" for name, pairs in cases.items())), strict=True):
        assert dict(zip(pairs, shown, strict=True)) == pairs, name


def test_address_is_read_and_written_alike(tmp_path: Path) -> None:
    """Names with any character survive; unknown parameters and defaults are left out."""
    read, written, odd = evaluate(
        tmp_path, "address.readAddress('#/requests?route=a%26b&window=300&evil=1')",
        "address.writeAddress({...address.DEFAULTS, view: 'now', route: 'a&b=ü #', window: '900'})",
        "address.readAddress(address.writeAddress({...address.DEFAULTS, view: 'now', route: 'a&b=ü #'})).route")
    assert (read["view"], read["route"], read["window"], read["paused"]) == ("requests", "a&b", "300", "")
    assert "evil" not in read
    assert (written, odd) == ("#/now?route=a%26b%3D%C3%BC+%23", "a&b=ü #")


def test_worst_rows_come_first(tmp_path: Path) -> None:
    """By p99 over the promise; rows without a promise follow."""
    rows = [{"route": "slow", "ttft_s": {"p99": 40}}, {"route": "kept", "ttft_s": {"p99": 0.5}, "promise_s": 1},
            {"route": "broken", "ttft_s": {"p99": 0.4}, "promise_s": 0.1}, {"route": "idle"}]
    worst_first = "sort((one, other) => figures.badnessOf(other) - figures.badnessOf(one))"
    [names] = evaluate(tmp_path, f"{json.dumps(rows)}.{worst_first}.map((row) => row.route)")
    assert names == ["broken", "kept", "slow", "idle"]
