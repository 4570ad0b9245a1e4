// Lines over time, by uPlot: gaps stay gaps, nothing is smoothed, the table has the same figures.
import { html, useEffect, useRef } from "./lib.mjs";
import { Figures } from "./parts.mjs";
import { clock, zone } from "./units.mjs";
import uPlot from "./vendor/uplot-1.6.32.mjs";

const DASHES = [[], [6, 3], [2, 3], [8, 3, 2, 3], [1, 2], [10, 4]]; // lines differ in their dashes as well as in colour
const COLOURS = ["--p50", "--p99", "--promise", "--good", "--warn", "--spark"];

/**
 * times: seconds since the epoch, ascending; series: [{name, values}] with null for a gap; format(value): with its unit;
 * title: what is drawn; isLog: a log scale, for latencies.
 */
export function Chart({ title, times, series, format, isLog = false, height = 180, theme }) {
  const box = useRef(null), plot = useRef(null);
  const shape = `${series.map((each) => each.name).join("|")} ${isLog} ${theme}`;
  const data = [times, ...series.map((each) => each.values.map((value) => (isLog && !(value > 0) ? null : value)))];
  useEffect(() => {
    if (!box.current) return undefined; // it has gone before the effect ran
    if (!document.getElementById("uplot-style")) {
      document.head.append(Object.assign(document.createElement("link"), { id: "uplot-style", rel: "stylesheet",
        href: new URL("./vendor/uplot-1.6.32.css", import.meta.url).href }));
    }
    const style = getComputedStyle(box.current), colour = (name) => style.getPropertyValue(name).trim();
    const axis = { stroke: colour("--soft"), grid: { stroke: colour("--rule"), width: 0.5 }, ticks: { show: false } };
    const made = new uPlot({ width: box.current.clientWidth, height, legend: { live: true },
      cursor: { drag: { x: false, y: false } },
      scales: { x: { time: true }, y: isLog ? { distr: 3 } : { range: (_, low, high) => [Math.min(0, low), high > 0 ? high * 1.05 : 1] } },
      axes: [{ ...axis, values: (_, ticks) => ticks.map((tick) => clock(tick).slice(0, 5)) },
        { ...axis, size: 74, values: (_, ticks) => ticks.map((tick) => (tick === null ? "" : format(tick))) }],
      series: [{ label: zone(), value: (_, at) => clock(at) }, ...series.map((each, at) => ({
        label: each.name, stroke: colour(COLOURS[at % COLOURS.length]), dash: DASHES[at % DASHES.length], width: 1.5,
        spanGaps: false, points: { show: false }, value: (_, value) => format(value) }))],
    }, data, box.current);
    plot.current = made;
    const observer = new ResizeObserver(() => made.setSize({ width: box.current.clientWidth, height }));
    observer.observe(box.current);
    return () => {
      observer.disconnect();
      made.destroy();
      plot.current = null;
    };
  }, [shape]);
  useEffect(() => { plot.current?.setData(data); });
  const columns = [{ title: `time (${zone()})`, of: (row) => clock(times[row], { withDate: true }) },
    ...series.map((each) => ({ title: each.name, of: (row) => each.values[row] ?? "" }))];
  return html`<figure><figcaption>${title}</figcaption><div ref=${box} role="img" aria-label=${`${title}. The table has the same figures.`} />
    <${Figures} name=${title.toLowerCase().replaceAll(/[^a-z0-9]+/g, "-")} columns=${columns}
      rows=${times.map((_, at) => at).filter((at) => series.some((each) => each.values[at] !== null))} /></figure>`;
}
