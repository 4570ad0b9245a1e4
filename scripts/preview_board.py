"""Draw a preview of the Grafana dashboard, for review and for docs/images. It imitates Grafana's panels.

    scripts/preview_board.py --prometheus http://127.0.0.1:9090 --minutes 15 --out docs/images/dashboard.png

Queries and layout come from the dashboard's file, data from a running Prometheus; headless Chromium renders the image.
"""

import argparse
import html
import json
import math
import subprocess
import tempfile
import time
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

BOARD = Path(__file__).parents[1] / "src" / "stayfast" / "observe" / "grafana.json"
CELL_W, CELL_H, GAP = 58, 34, 6
MAX_POINTS = 240
COLOURS = ("#73bf69", "#f2cc0c", "#5794f2", "#ff9830", "#b877d9", "#8ab8ff", "#fade2a", "#96d98d", "#ffb357", "#e24d42",
           "#1f78c1", "#ba43a9", "#705da0", "#508642")
SHADES = {
    "p50": ("#73bf69", "#37872d", "#96d98d", "#c8f2c2"), "p95": ("#ff9830", "#fa6400", "#ffcb7d", "#c4642d"),
    "p99": ("#f2495c", "#c4162a", "#ff9494", "#8f1d2c"), "promised": ("#d8d9da", "#a8a9aa", "#8e8f90"),
}
NAMED = {"green": "#73bf69", "orange": "#ff9830", "red": "#f2495c", "blue": "#5794f2"}
TURBO = ("#30123b", "#4145ab", "#4675ed", "#39a2fc", "#1bcfd4", "#24eca6", "#61fc6c", "#a4fc3b", "#d1e834", "#f3c63a",
         "#fe9b2d", "#f36315", "#d93806", "#b11901", "#7a0402")
STYLE = """
body{margin:0;background:#111217;color:#ccccdc;font:12px Inter,'DejaVu Sans',sans-serif}
h1{font-size:15px;font-weight:500;margin:0;padding:9px 12px;background:#181b1f;border-bottom:1px solid #2c3036}
h1 small{color:#8e8e9c;font-weight:400;margin-left:14px;font-size:11px}
.p{position:absolute;background:#181b1f;border:1px solid #25282e;border-radius:3px;overflow:hidden}
.p b{display:block;font-weight:500;padding:5px 8px 0;white-space:nowrap}
.r{position:absolute;font-size:13px;font-weight:500;padding:9px 4px}
.n{display:flex;justify-content:center;align-items:center;font-size:27px;font-weight:500}
.k{padding:0 8px;color:#9d9da8;font-size:10px;line-height:14px;overflow:hidden}
.k span{display:inline-block;margin-right:11px;white-space:nowrap}
.k i{display:inline-block;width:11px;height:3px;margin-right:4px;vertical-align:middle}
text{fill:#8e8e9c;font-size:9.5px;font-family:inherit}
"""


class Source:
    """A Prometheus server, queried over one time range."""

    def __init__(self, origin: str, minutes: float, until: float, route: str) -> None:
        self._origin = origin
        self._route = route
        self.until = until
        self.since = until - minutes * 60
        self.step = max(2.0, minutes * 60 / MAX_POINTS)
        self.n_points = round(minutes * 60 / self.step)

    def series(self, query: str) -> list[tuple[dict[str, str], dict[int, float]]]:
        """The series of a query: labels, and values by step number."""
        for name, value in {"$__rate_interval": f"{max(30, int(self.step * 4))}s", "$route": self._route, "$upstream": ".*",
                            "$job": ".*"}.items():
            query = query.replace(name, value)
        url = f"{self._origin}/api/v1/query_range?" + urllib.parse.urlencode(
            {"query": query, "start": self.since, "end": self.until, "step": self.step})
        with urllib.request.urlopen(url, timeout=60) as answer:
            rows = json.load(answer)["data"]["result"]
        found = []
        for row in rows:
            values = {round((at - self.since) / self.step): float(value) for at, value in row["values"]}
            found.append((row["metric"], {n: value for n, value in values.items() if math.isfinite(value)}))
        return sorted((series for series in found if series[1]), key=lambda series: sorted(series[0].items()))


def format_value(value: float, unit: str) -> str:
    """Format a value in the panel's unit."""
    if unit == "s" and value:
        return f"{value:.3g} s" if value >= 1 else f"{value * 1000:.3g} ms" if value >= 1e-3 else f"{value * 1e6:.3g} µs"
    if unit == "percentunit":
        return f"{value * 100:.3g} %"
    around = {"s": ("", " s"), "currencyUSD": ("$", ""), "reqps": ("", " req/s"), "cps": ("", "/s")}
    prefix, suffix = around.get(unit, ("", ""))
    return f"{prefix}{value / 1000:.3g} K{suffix}" if value >= 10_000 else f"{prefix}{value:.3g}{suffix}"


def colour_at(value: float, steps: list[dict[str, Any]]) -> str:
    """The colour of the highest threshold at or below a value."""
    reached = [step["color"] for step in steps if step["value"] is None or value >= step["value"]]
    return NAMED[reached[-1]]


def lines_of(panel: dict[str, Any], source: Source) -> list[tuple[str, dict[int, float]]]:
    """The lines of a panel by name."""
    found = []
    for target in panel["targets"]:
        for labels, values in source.series(target["expr"]):
            name = target["legendFormat"]
            for label, value in labels.items():
                name = name.replace(f"{{{{{label}}}}}", value)
            found.append((name, values))
    return found


def round_up(top: float) -> float:
    """Round up to a round number."""
    if top <= 0:
        return 1.0
    power = 10 ** math.floor(math.log10(top))
    return float(next(step * power for step in (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10) if step * power >= top * 1.0001))


def frame(width: float, height: float, source: Source, labels: list[str]) -> str:
    """The grid, with a label for each line from the bottom to the top."""
    n = len(labels) - 1
    made = [f'<line x1="56" x2="{width - 8}" y1="{y}" y2="{y}" stroke="#25282e"/><text x="51" y="{y + 3}" '
            f'text-anchor="end">{label}</text>'
            for label, y in ((label, height - 16 - k * (height - 24) / n) for k, label in enumerate(labels))]
    for share in (0.05, 0.35, 0.65, 0.95):
        at = time.strftime("%H:%M:%S", time.gmtime(source.since + share * (source.until - source.since)))
        made.append(f'<text x="{56 + share * (width - 64)}" y="{height - 3}" text-anchor="middle">{at}</text>')
    return "".join(made)


def timeseries(panel: dict[str, Any], source: Source, width: float, height: float) -> str:
    """Lines, or stacked areas."""
    found = lines_of(panel, source)
    custom = panel["fieldConfig"]["defaults"]["custom"]
    is_stacked = custom["stacking"]["mode"] == "normal"
    below = dict.fromkeys(range(source.n_points + 1), 0.0)
    drawn, keys, tops = [], [], [0.0]
    for n, (name, own) in enumerate(found):
        lead = name.partition(" ")[0]
        alike = [other for other, _ in found if other.partition(" ")[0] == lead]
        shades = SHADES.get(lead)
        colour = shades[alike.index(name) % len(shades)] if shades else COLOURS[n % len(COLOURS)]
        is_line = lead == "promised"
        values = {at: below[at] + value for at, value in own.items() if at in below} if is_stacked else own
        drawn.append((colour, values, dict(below), is_line))
        if is_stacked:
            below.update(values)
        tops.append(max(values.values()))
        last = own[max(own)]
        keys.append(f'<span><i style="background:{colour}"></i>{html.escape(name)} '
                    f"{format_value(last, panel['fieldConfig']['defaults']['unit'])}</span>")
    n_key_lines = min(3, math.ceil(sum(len(name) + 14 for name, _ in found) / (width / 5.6))) if found else 1
    h = height - n_key_lines * 14 - 4
    top = round_up(max(tops))
    unit = panel["fieldConfig"]["defaults"]["unit"]

    def x(at: float) -> float:
        return 56 + at / source.n_points * (width - 64)

    def y(value: float) -> float:
        return h - 16 - value / top * (h - 24)

    paths = []
    for colour, values, base, is_line in reversed(drawn) if is_stacked else drawn:
        points = [f"{x(at):.1f},{y(value):.1f}" for at, value in sorted(values.items())]
        if is_stacked:
            back = [f"{x(at):.1f},{y(base[at]):.1f}" for at in sorted(values, reverse=True)]
            paths.append(f'<polygon points="{" ".join(points + back)}" fill="{colour}" fill-opacity=".35"/>')
        dash = ' stroke-dasharray="8 6"' if is_line else ""
        paths.append(f'<polyline points="{" ".join(points)}" fill="none" stroke="{colour}" stroke-width="1.4"{dash}/>')
    empty = "" if found else f'<text x="{width / 2}" y="{h / 2}" text-anchor="middle">No data yet</text>'
    grid = frame(width, h, source, [format_value(top * k / 4, unit) for k in range(5)])
    return (f'<svg width="{width}" height="{h}">{grid}{"".join(paths)}{empty}</svg>'
            f'<div class="k" style="max-height:{n_key_lines * 14}px">{"".join(keys)}</div>')


def stat(panel: dict[str, Any], source: Source, width: float, height: float) -> str:
    """One number with its history."""
    found = lines_of(panel, source)
    if not found:
        return f'<div class="n" style="height:{height}px;color:#6e6e78;font-size:16px">No data</div>'
    values = found[0][1]
    last, top = values[max(values)], max(values.values()) or 1.0
    defaults = panel["fieldConfig"]["defaults"]
    colour = colour_at(last, defaults["thresholds"]["steps"])
    points = " ".join(f"{at / source.n_points * width:.1f},{height - value / top * height * 0.4:.1f}"
                      for at, value in sorted(values.items()))
    return (f'<svg width="{width}" height="{height}" style="position:absolute;left:0;bottom:0"><polygon points="0,{height} '
            f'{points} {width},{height}" fill="{colour}" fill-opacity=".16"/></svg>'
            f'<div class="n" style="height:{height - 12}px;color:{colour}">{format_value(last, defaults["unit"])}</div>')


def bargauge(panel: dict[str, Any], source: Source, width: float, height: float) -> str:
    """A bar for each series."""
    found = lines_of(panel, source)
    defaults = panel["fieldConfig"]["defaults"]
    pitch = min(30.0, (height - 8) / max(1, len(found)))
    made = []
    for n, (name, values) in enumerate(found):
        last = values[max(values)]
        colour = colour_at(last, defaults["thresholds"]["steps"])
        share = min(1.0, max(0.01, last / defaults.get("max", 1.0)))
        y = 4 + n * pitch
        made.append(f'<text x="118" y="{y + pitch / 2 + 3}" text-anchor="end">{html.escape(name)}</text>'
                    f'<rect x="124" y="{y + 3}" width="{width - 196}" height="{pitch - 7}" fill="#22252b"/>'
                    f'<rect x="124" y="{y + 3}" width="{(width - 196) * share}" height="{pitch - 7}" fill="{colour}"/>'
                    f'<text x="{width - 66}" y="{y + pitch / 2 + 3}" style="fill:{colour}">'
                    f'{format_value(last, "percentunit")}</text>')
    return f'<svg width="{width}" height="{height}">{"".join(made)}</svg>'


def heatmap(panel: dict[str, Any], source: Source, width: float, height: float) -> str:
    """Counts by bucket and time."""
    rows = sorted((float(labels["le"]), values) for labels, values in source.series(panel["targets"][0]["expr"]))
    cells: list[tuple[float, dict[int, float]]] = []
    before: dict[int, float] = {}
    for le, values in rows:
        cells.append((le, {at: max(0.0, value - before.get(at, 0.0)) for at, value in values.items()}))
        before = values
    used = [n for n, (_, values) in enumerate(cells) if max(values.values(), default=0) > 1e-9]
    if not used:
        return ""
    cells = cells[max(0, used[0] - 1):used[-1] + 2]
    top = max(max(values.values(), default=0) for _, values in cells)
    pitch, column, point = (height - 24) / len(cells), 4, (width - 64) / source.n_points
    made = []
    for n, (_, values) in enumerate(cells):
        for at in range(0, source.n_points, column):
            here = [values[k] for k in range(at, at + column) if k in values]
            share = (sum(here) / len(here) / top) ** 0.5 if here else 0.0
            if share > 0.02:
                colour = TURBO[min(len(TURBO) - 1, int(share * len(TURBO)))]
                made.append(f'<rect x="{56 + at * point:.1f}" y="{height - 16 - (n + 1) * pitch:.1f}" '
                            f'width="{column * point - 1:.1f}" height="{pitch - 1:.1f}" fill="{colour}"/>')
    every = max(1, math.ceil(len(cells) / 8))
    labels = "".join(f'<text x="51" y="{height - 16 - (n + 1) * pitch + 3:.1f}" text-anchor="end">'
                     f'{format_value(le, "s")}</text>'
                     for n, (le, _) in enumerate(cells) if n % every == 0 and math.isfinite(le))
    return f'<svg width="{width}" height="{height}">{frame(width, height, source, ["", ""])}{"".join(made)}{labels}</svg>'


DRAW = {"timeseries": timeseries, "stat": stat, "bargauge": bargauge, "heatmap": heatmap}


def unfold(panels: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The panels with all rows unfolded, each below the one before."""
    shown: list[dict[str, Any]] = []
    added = 0
    for panel in panels:
        at = {**panel["gridPos"], "y": panel["gridPos"]["y"] + added}
        inner = panel.get("panels", [])
        shown.append({**panel, "gridPos": at, "panels": []})
        moved = [{**one, "gridPos": {**one["gridPos"], "y": one["gridPos"]["y"] + added}} for one in inner]
        shown += moved
        if moved:
            added += max(one["gridPos"]["y"] + one["gridPos"]["h"] for one in moved) - at["y"] - 1
    return shown


def page(panels: list[dict[str, Any]], title: str, source: Source) -> tuple[str, int, int]:
    """Panels as HTML, and its size in pixels."""
    made, bottom = [], 0
    for panel in panels:
        at = panel["gridPos"]
        x, y = at["x"] * CELL_W + GAP, at["y"] * CELL_H + 38
        w, h = at["w"] * CELL_W - GAP, at["h"] * CELL_H - GAP
        bottom = max(bottom, y + h)
        if panel["type"] == "row":
            folded = f" ({len(panel['panels'])} panels)" if panel.get("panels") else ""
            made.append(f'<div class="r" style="left:{x}px;top:{y}px">{html.escape(panel["title"])}{folded}</div>')
            continue
        inside = DRAW[panel["type"]](panel, source, w, h - 24)
        made.append(f'<div class="p" style="left:{x}px;top:{y}px;width:{w}px;height:{h}px">'
                    f"<b>{html.escape(panel['title'])}</b>{inside}</div>")
    title = f'{title}<small>preview by scripts/preview_board.py, not Grafana</small>'
    return f"<style>{STYLE}</style><h1>{title}</h1>{''.join(made)}", 24 * CELL_W + 2 * GAP, bottom + GAP


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prometheus", default="http://127.0.0.1:9090")
    parser.add_argument("--board", type=Path, default=BOARD)
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--ago", type=float, default=0.0, help="minutes before now at which the range ends")
    parser.add_argument("--route", default=".*", help="the board's variable, a regular expression")
    parser.add_argument("--unfold", action="store_true", help="draw the panels of folded rows, too")
    parser.add_argument("--out", type=Path, default=Path("preview.png"), help="a .png or .html")
    given = parser.parse_args()
    source = Source(given.prometheus, given.minutes, time.time() - given.ago * 60, given.route)
    board = json.loads(given.board.read_text())
    panels = unfold(board["panels"]) if given.unfold else board["panels"]
    text, width, height = page(panels, board["title"], source)
    if given.out.suffix == ".html":
        given.out.write_text(text)
        return
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "board.html").write_text(f"<!doctype html><meta charset=utf-8>{text}")
        subprocess.run(["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
                        f"--window-size={width},{height}", f"--screenshot={given.out.resolve()}",
                        f"file://{folder}/board.html"], check=True, capture_output=True)


if __name__ == "__main__":
    main()
