// The heat map of the time to the first token: time by log seconds on a canvas, with percentiles and the promise.
import { html, useEffect, useRef, useState } from "./lib.mjs";
import { HEAT_BOUNDS_S, SLOT_S } from "./figures.mjs";
import { Figures } from "./parts.mjs";
import { isDark } from "./theme.mjs";
import { clock, count, seconds, zone } from "./units.mjs";

const LEFT = 52, BOTTOM = 20, TOP = 14, RIGHT = 8;
// cividis: even in lightness, the same for red-green blind eyes
const SCALE = ["#00224e", "#123570", "#3b496c", "#575d6d", "#707173", "#8a8779", "#a59c74", "#c3b369", "#e1cc55", "#fee838"];
const TICKS_S = [0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100];

/** The colour of a count. Few requests are near the paper's lightness in both themes. */
const colourOf = (n, most, dark) => {
  const share = most > 1 ? Math.log(n) / Math.log(most) : 1;
  const at = Math.round(share * (SCALE.length - 1));
  return SCALE[dark ? at : SCALE.length - 1 - at];
};

/** The rows to draw: those with requests, the promise, and one more on each side. */
function extentOf(slots, lines, promise) {
  let low = Infinity, high = -Infinity;
  for (const slot of slots) {
    slot.rows?.forEach((n, row) => {
      if (n) {
        low = Math.min(low, row);
        high = Math.max(high, row);
      }
    });
  }
  if (promise) {
    const row = HEAT_BOUNDS_S.findIndex((bound) => promise <= bound);
    low = Math.min(low, row);
    high = Math.max(high, row < 0 ? HEAT_BOUNDS_S.length : row);
  }
  if (low > high) return [8, 20]; // no requests: 0.1 s to 10 s
  return [Math.max(0, low - 1), Math.min(HEAT_BOUNDS_S.length, Math.max(high, low + 5) + 1)];
}

function draw(canvas, { slots, lines, promise }) {
  const dark = isDark(), style = getComputedStyle(canvas), ratio = devicePixelRatio || 1;
  const width = canvas.clientWidth, height = canvas.clientHeight;
  if (!width || !height) return null;
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  pen.font = "11px system-ui, sans-serif";
  const colour = (name) => style.getPropertyValue(name).trim();
  const [low, high] = extentOf(slots, lines, promise);
  const wide = (width - LEFT - RIGHT) / slots.length, tall = (height - TOP - BOTTOM) / (high - low + 1);
  const xOf = (at) => LEFT + ((at - slots[0].at) / SLOT_S) * wide;
  const yOf = (value) => height - BOTTOM - (Math.log2(value / 0.01) * 2 - (low - 1)) * tall;
  const most = Math.max(1, ...slots.flatMap((slot) => slot.rows ?? []));

  drawGrid(pen, { slots, low, high, width, height, yOf, xOf, wide, colour });
  slots.forEach((slot) => {
    slot.rows?.forEach((n, row) => {
      if (!n) return;
      pen.fillStyle = colourOf(n, most, dark);
      pen.fillRect(xOf(slot.at), height - BOTTOM - (row - low + 1) * tall, Math.max(1, wide - 0.5), Math.max(1, tall - 0.5));
    });
    if (slot.failed) { // slow and failed are two things: a mark of its own above the map
      pen.fillStyle = colour("--bad");
      pen.fillText("×", xOf(slot.at) + wide / 2 - 3, TOP - 3);
    }
  });
  const stroke = (name, key, dash, thick) => {
    pen.setLineDash(dash);
    for (const [line, size] of [[colour("--sheet"), thick + 2], [colour(name), thick]]) {
      pen.strokeStyle = line;
      pen.lineWidth = size;
      pen.beginPath();
      let isOpen = false;
      for (const each of lines) {
        if (each[key] === null) {
          isOpen = false;
          continue;
        }
        pen[isOpen ? "lineTo" : "moveTo"](xOf(each.at) + wide / 2, Math.max(TOP, yOf(each[key])));
        isOpen = true;
      }
      pen.stroke();
    }
    pen.setLineDash([]);
  };
  stroke("--p50", "p50", [], 1.5);
  stroke("--p99", "p99", [5, 2], 2);
  if (promise) {
    pen.strokeStyle = colour("--promise");
    pen.lineWidth = 1.5;
    pen.setLineDash([2, 3]);
    pen.beginPath();
    pen.moveTo(LEFT, yOf(promise));
    pen.lineTo(width - RIGHT, yOf(promise));
    pen.stroke();
    pen.setLineDash([]);
  }
  return { low, tall, wide, height };
}

function drawGrid(pen, { slots, low, high, width, height, yOf, xOf, wide, colour }) {
  pen.fillStyle = colour("--hatch");
  for (const slot of slots) if (slot.isGap) pen.fillRect(xOf(slot.at), TOP, wide + 0.5, height - TOP - BOTTOM);
  pen.strokeStyle = colour("--rule");
  pen.lineWidth = 0.5;
  pen.fillStyle = colour("--soft");
  pen.textAlign = "right";
  for (const tick of TICKS_S) {
    const y = yOf(tick);
    if (y < TOP || y > height - BOTTOM) continue;
    pen.beginPath();
    pen.moveTo(LEFT, y);
    pen.lineTo(width - RIGHT, y);
    pen.stroke();
    pen.fillText(seconds(tick).replace(".00", "").replace(".0", ""), LEFT - 5, y + 4);
  }
  pen.textAlign = "center";
  const span = slots.length * SLOT_S, room = Math.max(2, Math.floor((width - LEFT) / 90));
  const step = [60, 120, 300, 600].find((each) => span / each <= room) ?? 1800;
  for (const slot of slots) {
    if (slot.at % step === 0) pen.fillText(clock(slot.at).slice(0, 5), Math.min(width - 18, xOf(slot.at)), height - 5);
  }
  pen.textAlign = "left";
}

/** The map with its legend and the table of the same figures. slots, lines: of figures.mjs; promise: seconds or null. */
export function HeatMap({ slots, lines, promise, theme, name }) {
  const canvas = useRef(null), drawn = useRef(null);
  const [point, setPoint] = useState("");
  const paint = () => { drawn.current = canvas.current && draw(canvas.current, { slots, lines, promise }); };
  useEffect(paint);
  useEffect(() => {
    const observer = new ResizeObserver(paint);
    observer.observe(canvas.current);
    const scheme = matchMedia("(prefers-color-scheme: dark)");
    scheme.addEventListener("change", paint);
    return () => {
      observer.disconnect();
      scheme.removeEventListener("change", paint);
    };
  }, []);
  const move = (event) => {
    const at = drawn.current;
    if (!at) return;
    const slot = slots[Math.floor((event.offsetX - LEFT) / at.wide)];
    const row = at.low + Math.floor((at.height - BOTTOM - event.offsetY) / at.tall);
    if (!slot || event.offsetY < TOP || row < at.low) setPoint("");
    else if (slot.isGap) setPoint(`${clock(slot.at)}: no data`);
    else {
      const bound = HEAT_BOUNDS_S[row];
      const range = bound ? `${seconds(bound / Math.SQRT2)} to ${seconds(bound)}` : `over ${seconds(HEAT_BOUNDS_S.at(-1))}`;
      setPoint(`${clock(slot.at)}, ${range}: ${count(slot.rows[row] ?? 0)} of ${count(slot.n)} requests${
        slot.failed ? `, ${slot.failed} without a first token` : ""}`);
    }
  };
  const last = lines.findLast((each) => each.p50 !== null);
  const columns = [
    { title: `from (${zone()})`, of: (row) => clock(row.at, { withDate: true }) }, { title: "requests", of: (row) => row.n },
    { title: "without a first token", of: (row) => row.failed }, { title: "p50 (s)", of: (row) => row.p50?.toPrecision(3) ?? "" },
    { title: "p99 (s)", of: (row) => row.p99?.toPrecision(3) ?? "" },
  ];
  const rows = slots.map((slot, at) => ({ ...slot, p50: lines[at].p50, p99: lines[at].p99 })).filter((row) => !row.isGap);
  return html`<figure class="heat">
    <canvas ref=${canvas} role="img" onMouseMove=${move} onMouseLeave=${() => setPoint("")}
      aria-label=${`Time to the first token, ${name}, from ${clock(slots[0].at)} to ${clock(slots.at(-1).at)}: ${
        last ? `p50 ${seconds(last.p50)}, p99 ${seconds(last.p99)} in the last minute` : "no requests"}. The table has the same figures.`} />
    <figcaption><span class="key"><i class="line p50" />p50</span> <span class="key"><i class="line p99" />p99, last minute</span>
      ${promise ? html` <span class="key"><i class="line promise" />promised ${seconds(promise)}</span>` : ""}
      <span class="key"><i class="mark">×</i>no first token</span> <span class="key"><i class="box" />no data</span>
      <span class="key"><i class="ramp" />few to many requests</span>
      <span class="point">${point}</span></figcaption>
    <${Figures} name="ttft" columns=${columns} rows=${rows} /></figure>`;
}
