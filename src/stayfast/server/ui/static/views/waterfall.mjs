// One request as a picture: stages, attempts as parallel lanes, the first token, stalls, steps, the deadline.
import { html } from "../lib.mjs";
import { Figures, State } from "../parts.mjs";
import { clock, count, dollars, seconds, zone } from "../units.mjs";
import { useWidth } from "./shared.mjs";

const ROW = 34, BAR = 12, TOP = 22, MARGIN = 10;
const ms = (value) => seconds(value === null || value === undefined ? null : value / 1000);
export const STATE_OF = { ok: "good", degraded: "warn", client_left: "off", rejected: "warn", failed: "bad" };

/** Ticks at round instants: at most `most` of them, in milliseconds. */
export function ticksOf(whole, most) {
  const rough = whole / Math.max(1, most);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough) ?? rough;
  return Array.from({ length: Math.floor(whole / step) + 1 }, (_, at) => at * step);
}

/** The rows of the picture: {kind, depth, words, began, ended, first, stalls, allowance, isOver, isLost}. */
export function rowsOf(fall) {
  const whole = scaleOf(fall);
  const rows = (fall.stages ?? []).map((stage) => {
    const hasBudget = stage.allowance_ms > 0 && stage.began_ms + stage.allowance_ms < 0.99 * (fall.deadline_ms ?? Infinity);
    const end = stage.began_ms + stage.allowance_ms;
    return { kind: "stage", depth: 0, began: stage.began_ms, ended: stage.began_ms + stage.spent_ms, isOver: stage.is_over,
      allowance: hasBudget && end <= whole ? end : null,
      words: `${stage.stage}: ${ms(stage.spent_ms)}${hasBudget || stage.is_over ? ` of ${ms(stage.allowance_ms)}` : ""}${stage.is_over ? ", over its budget" : ""}` };
  });
  (fall.attempts ?? []).forEach((lane, at) => {
    const role = lane.is_hedge ? "hedge" : "attempt";
    rows.push({ kind: lane.is_hedge ? "hedge" : "attempt", depth: 0, began: lane.began_ms, ended: lane.ended_ms,
      first: lane.first_token_ms ?? null, stalls: lane.stalls ?? [], isLost: lane.is_lost, isFailed: Boolean(lane.fault),
      words: `${at + 1} ${role} at ${lane.upstream}: ${endOf(lane)}` });
    for (const step of lane.steps ?? []) {
      rows.push({ kind: "step", depth: 1 + (step.depth ?? 0), began: step.began_ms, ended: step.began_ms + step.spent_ms,
        isOver: step.is_over, words: `${step.step}: ${ms(step.spent_ms)}${step.how === "ok" ? "" : `, ${step.how}`}${
          step.detail ? ` (${step.detail})` : ""}` });
    }
  });
  return rows;
}

function endOf(lane) {
  const first = lane.first_token_ms === undefined || lane.first_token_ms === null ? [] : [`first token after ${
    ms(lane.first_token_ms - lane.began_ms)}`];
  const end = lane.fault ? [`${lane.fault}${lane.upstream_status ? ` ${lane.upstream_status}` : ""}`]
    : lane.is_lost ? ["lost the race"] : lane.outcome === "success" ? [] : [lane.outcome];
  const tokens = lane.output_tokens ? [`${count(lane.output_tokens)} tokens`] : [];
  const stalls = lane.stalls?.length ? [`${lane.stalls.length} ${lane.stalls.length === 1 ? "stall" : "stalls"}`] : [];
  return [...first, ...end, ...tokens, ...stalls].join(", ") || ms(lane.ended_ms - lane.began_ms);
}

/** The scale ends with the request; with its deadline where that is near. */
const scaleOf = (fall) => Math.max(fall.ms, fall.deadline_ms && fall.deadline_ms < 1.5 * fall.ms ? fall.deadline_ms : 0, 0.001);

function Bar({ row, x, y }) {
  const from = x(row.began), width = Math.max(2, x(row.ended) - from);
  const of = (began, ended, name) => html`<rect class=${name} x=${x(began)} y=${y} height=${BAR} width=${Math.max(2, x(ended) - x(began))} />`;
  if (row.kind === "stage" || row.kind === "step") {
    return html`${row.allowance && html`<path class="allowance" d=${`M${x(row.allowance)} ${y - 2}v${BAR + 4}`} />`}
      <rect class=${`${row.kind}${row.isOver ? " over" : ""}`} x=${from} y=${y} height=${BAR} width=${width} />`;
  }
  const first = row.first ?? row.ended;
  return html`<rect class=${`waiting${row.isFailed ? " failed" : ""}`} x=${from} y=${y} height=${BAR} width=${Math.max(2, x(first) - from)} />
    ${row.first !== null && of(first, row.ended, `answering ${row.kind}${row.isLost ? " lost" : ""}`)}
    ${row.stalls.map((stall) => of(stall.at_ms, stall.at_ms + stall.ms, "stall"))}
    ${row.first !== null && html`<path class="first" d=${`M${x(first) - 5} ${y - 3}h10l-5 8z`} />`}`;
}

function Picture({ fall }) {
  const [box, width] = useWidth();
  const rows = rowsOf(fall), whole = scaleOf(fall), height = TOP + rows.length * ROW + 6;
  const x = (at) => MARGIN + (Math.min(Math.max(at, 0), whole) / whole) * (width - 2 * MARGIN);
  const ticks = ticksOf(whole, Math.floor(width / 90));
  const hasDeadline = fall.deadline_ms && fall.deadline_ms <= whole;
  const lines = ticks.map((at) => `M${x(at)} ${TOP - 4}V${height}`).join("");
  return html`<div class="waterfall" ref=${box}><svg width=${width} height=${height} role="img"
      aria-label=${`Waterfall of ${seconds(fall.ms / 1000)}: ${rows.map((row) => row.words).join("; ")}`}>
    <defs><pattern id="stalled" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">
      <rect width="6" height="6" class="stall-ground" /><path d="M0 0V6" class="stall-line" /></pattern></defs>
    <path class="grid" d=${lines} />
    ${ticks.map((at) => html`<text key=${at} class="tick" x=${x(at)} y="12" text-anchor=${at === 0 ? "start" : x(at) > width - 40 ? "end" : "middle"}>${ms(at)}</text>`)}
    ${rows.map((row, at) => html`<g key=${at} class=${row.kind} data-lane=${row.kind}><title>${row.words}</title>
      <text x=${MARGIN + row.depth * 14} y=${TOP + at * ROW + 12}>${clip(row.words, (width - 2 * MARGIN) / 6.6)}</text>
      <${Bar} row=${row} x=${x} y=${TOP + at * ROW + 17} /></g>`)}
    ${fall.ttft_ms !== undefined && fall.ttft_ms !== null && html`<path class="ttft" d=${`M${x(fall.ttft_ms)} ${TOP - 4}V${height}`}><title>first token of the request: ${ms(fall.ttft_ms)}</title></path>`}
    ${hasDeadline && html`<path class="deadline" d=${`M${x(fall.deadline_ms)} ${TOP - 4}V${height}`}><title>deadline: ${ms(fall.deadline_ms)}</title></path>`}
  </svg></div>`;
}

const clip = (text, most) => (text.length > most ? `${text.slice(0, Math.max(1, Math.floor(most) - 1))}…` : text);

const KEYS = [["stage", "stage"], ["waiting", "waiting"], ["answering", "answering"], ["hedge", "hedge answering"],
  ["stall", "stalled"], ["allowance", "budget of a stage"], ["ttft", "first token"], ["deadline", "deadline"]];

/** The whole of one request. fall: the JSON of /admin/requests/{id}. */
export function Waterfall({ fall }) {
  const facts = [["Route", fall.route ?? fall.model], ["Upstream", fall.upstream], ["First token", ms(fall.ttft_ms)], ["Whole", ms(fall.ms)],
    ["Deadline", fall.deadline_ms ? ms(fall.deadline_ms) : null], ["Queue", fall.queue_ms ? ms(fall.queue_ms) : null],
    ["Gateway's own time", fall.own_ms === undefined ? null : ms(fall.own_ms)], ["Per token", fall.tpot_ms ? ms(fall.tpot_ms) : null],
    ["Longest pause", fall.gap_max_ms ? ms(fall.gap_max_ms) : null], ["Cost", fall.cost_usd === undefined ? null : dollars(fall.cost_usd)],
    ["Cache", fall.cache], ["Tenant", fall.tenant], ["Model", fall.model], ["API", `${fall.api}${fall.stream ? ", stream" : ""}`],
    ["Ended", `${clock(fall.ended_at, { withDate: true })} ${zone()}`], ["Trace", fall.trace_id]].filter(([, value]) => value);
  const isFar = fall.deadline_ms && fall.deadline_ms > scaleOf(fall);
  return html`
    <p><${State} state=${STATE_OF[fall.outcome] ?? "unknown"}>${fall.status} ${fall.outcome}<//> <b>${fall.verdict?.[0]}</b></p>
    <${Picture} fall=${fall} />
    <p class="legend note">${KEYS.map(([name, words]) => html`<span key=${name} class="key"><svg width="16" height="12" aria-hidden="true">
      <${Sample} name=${name} /></svg> ${words}</span> `)}${isFar && html`<span>deadline ${ms(fall.deadline_ms)}: beyond the scale</span>`}</p>
    <h3>What happened</h3><ol class="verdict">${(fall.verdict ?? []).map((line, at) => html`<li key=${at}>${line}</li>`)}</ol>
    <dl class="facts">${facts.map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>
    <${Figures} name="waterfall" rows=${rowsOf(fall).reverse()} columns=${[
      { title: "What", of: (row) => row.words }, { title: "Kind", of: (row) => row.kind },
      { title: "Began (ms)", of: (row) => row.began }, { title: "Ended (ms)", of: (row) => row.ended },
      { title: "First token (ms)", of: (row) => row.first ?? "" }]} />`;
}

function Sample({ name }) {
  if (name === "allowance" || name === "ttft" || name === "deadline") return html`<path class=${name} d="M8 0V12" />`;
  return html`<rect class=${name === "hedge" ? "answering hedge" : name === "answering" ? "answering attempt" : name} width="15" height="11" x=".5" y=".5" />`;
}
