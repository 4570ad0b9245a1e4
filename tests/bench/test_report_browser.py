"""The page in a real browser. Skipped without one: apt-get install chromium."""

import re
from pathlib import Path
from random import Random

from stayfast.lab.load.stats import MeasuredRun
from stayfast.lab.report.compare import CompareConfig, compare_runs
from stayfast.lab.report.html.page import render_page
from tests.bench.synthetic import Scenario, result
from tests.browser import shown

HOVER = """<script>
for (const [name, x, y] of [["line", .5, .5], ["heat", .3, .75]]) {
  const figure = [...document.querySelectorAll("figure")].find((one) => {
    const holder = one.querySelector(":scope > script");
    return holder && JSON.parse(holder.textContent).kind === name;
  });
  const frame = figure.querySelector("svg.chart").getBoundingClientRect();
  figure.querySelector("svg.chart").dispatchEvent(new PointerEvent("pointermove",
    {clientX: frame.left + frame.width * x, clientY: frame.top + frame.height * y}));
  const said = document.createElement("output");
  said.textContent = name + "|" + [...document.querySelector(".tip").children].map((row) => row.textContent).join("|");
  document.body.append(said);
}</script>"""


def rendered(html: str, folder: Path) -> tuple[str, list[str]]:
    """The document after its script has run, and the browser's console output."""
    path = folder / "report.html"
    path.write_text(html, encoding="utf-8")
    return shown(path.as_uri(), folder)


def test_page_renders_without_console_messages(tmp_path: Path) -> None:
    """Every chart has its lines, the script found them, and the policy (no network) was not violated."""
    runs = [MeasuredRun(result(Scenario(n=600), label=label)) for label in ("</script>direct", "gateway")]
    comparison = compare_runs(runs[0], runs[1], Random(1), CompareConfig(n_replicates=100))
    document, console = rendered(render_page(runs, comparison), tmp_path)
    assert console == []
    n_hovered = document.count('class="rule"')
    assert n_hovered == len(re.findall(r'<script type="application/json">', document)) >= 14
    assert len(re.findall(r'<svg[^>]*class="chart"', document)) == n_hovered + 1 + 2 * 2  # intervals; stages and waterfalls
    assert re.findall(r'<path d=""', document) == []


def test_page_hover_shows_values(tmp_path: Path) -> None:
    """For curves the rank and the values, for heat maps the bin, the row and the count."""
    html = render_page([MeasuredRun(result(Scenario(n=600)))])
    without_policy = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", html)
    document, console = rendered(without_policy.replace("</body>", HOVER + "</body>"), tmp_path)
    assert console == []
    curve, heat = re.findall(r"<output>(.*?)</output>", document)
    assert re.fullmatch(r"line\|p[0-9.]+\|ttft_sched  [0-9.]+ m?s\|ttft  [0-9.]+ m?s", curve)
    assert re.fullmatch(r"heat\|from [0-9:. s]+\|[0-9.]+ m?s to [0-9.]+ m?s\|([0-9]+|no) requests?", heat)


def test_page_policy_blocks_network_requests(tmp_path: Path) -> None:
    html = render_page([MeasuredRun(result(Scenario(n=20)))])
    _, console = rendered(html.replace("</main>", '<img src="http://127.0.0.1:9/x.png"></main>'), tmp_path)
    assert any("Content Security Policy" in line for line in console)


def test_page_fits_a_phone(tmp_path: Path) -> None:
    """Nothing but the tables and wide charts inside their cards is wider than the screen."""
    path = tmp_path / "report.html"
    path.write_text(render_page([MeasuredRun(result(Scenario(n=600), label="a-rather-long-name-of-a-gateway"))]), "utf-8")
    fits = "document.readyState === 'complete' && document.documentElement.scrollWidth === 390 && innerWidth === 390"
    document, console = shown(path.as_uri(), tmp_path, fits, width=390)
    assert console == []
    assert 'class="meaning"' in document
