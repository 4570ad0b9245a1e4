// Now: what happens, where, and whether the promise holds.
import { html, endpoint, useEffect, useMemo, useState } from "../lib.mjs";
import { go, hrefOf } from "../address.mjs";
import { badnessOf, filterRows, linesOf, seriesOf, slotsOf, stateOf, totals } from "../figures.mjs";
import { HeatMap } from "../heat.mjs";
import { Empty, Sparkline, State, Table, Tile, stateOfSeverity } from "../parts.mjs";
import { bytes, clock, count, dollars, percent, rate, seconds } from "../units.mjs";

const WINDOWS = [["300", "5 min"], ["900", "15 min"], ["1800", "30 min"]];
const BREAKERS = { closed: "good", half_open: "warn", "half-open": "warn", open: "bad" };
const METRICS = "/metrics", STATE = "/debug/state", SNAPSHOT = "/admin/snapshot";

// id, name, value(totals), words(value), note(totals), endpoint with the same figure
const TILES = [
  ["p99", "First token p99", (all) => all.ttft?.p99 ?? null, seconds, METRICS], // of several routes there is none
  ["rps", "Requests", (all) => all.rps, (value) => `${rate(value)} /s`, METRICS],
  ["in_flight", "In flight", (all) => all.in_flight, count, STATE],
  ["waiting", "Queue", (all) => all.waiting, count, STATE],
  ["failed", "Failed", (all) => all.failed, percent, METRICS],
  ["late", "Over the promise", (all) => all.late, percent, METRICS],
  ["shed", "Shed", (all) => all.shed, percent, METRICS],
  ["hedged", "Hedged", (all) => all.hedged, percent, METRICS],
  ["cached", "From the cache", (all) => all.cached, percent, METRICS],
  ["tokens", "Output tokens", (all) => all.tokens, (value) => `${count(value)} /s`, METRICS],
  ["usd_per_h", "Cost", (all) => all.usd_per_h, (value) => `${dollars(value)}/h`, SNAPSHOT],
];

function Tiles({ frame, frames, filter, windowS, now, chosen }) {
  const all = totals(frame, filter);
  const series = useMemo(() => Object.fromEntries(TILES.map(([id, , value]) => [
    id, seriesOf(frames, windowS, (each) => value(totals(each, filter)), now)])),
  [frame?.n, frames.length, windowS, filter.route, filter.upstream, filter.q]);
  const shown = TILES.filter(([, , value]) => value(all) !== null);
  return html`<div class="tiles">${shown.map(([id, name, value, words, path]) => html`
    <${Tile} key=${id} name=${name} value=${words(value(all))} href=${endpoint(path)}>
      <button type="button" class="spark-button" aria-pressed=${chosen === id} aria-label=${`${name} over time`}
        onClick=${() => go({ tab: chosen === id ? "" : id })}><${Sparkline} values=${series[id].values} /></button><//>`)}</div>
    ${series[chosen] && html`<${History} id=${chosen} series=${series[chosen]} />`}`;
}

/** One tile's figure over the window, by the chart library, which is loaded when it is wanted first. */
function History({ id, series }) {
  const [Chart, setChart] = useState(null);
  useEffect(() => { import("../chart.mjs").then((module) => setChart(() => module.Chart)); }, []);
  const [, name, , words] = TILES.find((each) => each[0] === id);
  return Chart && html`<section class="panel"><${Chart} title=${name} times=${series.times} format=${words}
    series=${[{ name, values: series.values }]} /></section>`;
}

function Heat({ frame, frames, filter, windowS, now, theme }) {
  const slots = useMemo(() => slotsOf(frames, windowS, filter, now),
    [frame?.n, frames.length, windowS, filter.route, filter.upstream, filter.q, Math.floor(now / 5)]);
  const lines = useMemo(() => linesOf(slots), [slots]);
  const { routes } = filterRows(frame, filter);
  const promises = new Set(routes.map((each) => each.promise_s).filter((each) => each));
  const promise = !filter.upstream && promises.size === 1 ? [...promises][0] : null;
  const name = filter.upstream ? `upstream ${filter.upstream}` : filter.route ? `route ${filter.route}` : "all routes";
  return html`<section class="panel" aria-label="Time to the first token"><header><h2>Time to the first token, ${name}</h2>
    <span class="note">${SPAN}${promises.size > 1 && !filter.upstream ? " The routes have different promises: choose one." : ""}</span>
    <span class="choice" role="group" aria-label="Window">${WINDOWS.map(([value, words]) => html`<button type="button" key=${value}
      aria-pressed=${String(windowS) === value} onClick=${() => go({ window: value })}>${words}</button>`)}</span></header>
    <${HeatMap} slots=${slots} lines=${lines} promise=${promise} theme=${theme} name=${name} /></section>`;
}
const SPAN = "Slots of 5 s. Lines: last minute, to within a row of the map; the tables are exact to 1.1 %.";

const right = (id, title, render, unit = "") => ({ id, title, unit, align: "right", render });
const ROUTE_COLUMNS = [
  { id: "route", title: "Route", render: (row) => html`<${State} state=${stateOf(row)}>${row.route}<//>` },
  right("rps", "Requests", (row) => rate(row.rps ?? 0), "/s"),
  right("p50", "p50", (row) => seconds(row.ttft_s?.p50), "TTFT"),
  right("p95", "p95", (row) => seconds(row.ttft_s?.p95), "TTFT"),
  right("p99", "p99", (row) => seconds(row.ttft_s?.p99), "TTFT"),
  right("promise", "Promised", (row) => (row.promise_s ? `${row.promise_share ? `${percent(row.promise_share)} in ` : ""}${seconds(row.promise_s)}` : "–")),
  right("badness", "p99 / promised", (row) => (row.promise_s && row.ttft_s?.p99 ? `${(row.ttft_s.p99 / row.promise_s).toFixed(1)} ×` : "–")),
  right("late", "Late", (row) => percent(row.late_ratio ?? 0)),
  right("failed", "Failed", (row) => percent(row.failed_ratio ?? 0)),
  { ...right("shed", "Shed", (row) => percent(row.shed_ratio ?? 0)), isShown: (row) => row.shed_ratio },
  { ...right("degraded", "Degraded", (row) => percent(row.degraded_ratio ?? 0)), isShown: (row) => row.degraded_ratio },
  right("hedged", "Hedged", (row) => percent(row.hedged_ratio ?? 0)),
  right("cached", "Cached", (row) => percent(row.cached_ratio ?? 0)),
  right("e2e", "Whole p99", (row) => seconds(row.e2e_s?.p99)),
  right("tokens", "Output", (row) => count(row.output_tokens_per_s ?? 0), "tokens/s"),
  right("cost", "Cost", (row) => dollars(row.usd_per_h ?? 0), "/h"),
];

const BOUNDS = ["memory", "prefill", "decode", "gateway"]; // others need no attention
const isUnready = (row) => (row.breaker ?? "closed") === "closed" && (row.phase ?? "ready") !== "ready";
const breakerOf = (row) => (row.suspended_s > 0 || isUnready(row) ? "warn" : BREAKERS[row.breaker ?? "closed"] ?? "unknown");
const breakerWords = (row) => (row.suspended_s > 0 ? `suspended for ${seconds(row.suspended_s)}` : isUnready(row) ? row.phase
  : `breaker ${(row.breaker ?? "closed").replace("_", " ")}`);
const UPSTREAM_COLUMNS = [
  { id: "name", title: "Upstream", render: (row) => row.name },
  { id: "breaker", title: "Health", render: (row) => html`<${State} state=${breakerOf(row)}>${breakerWords(row)}<//>` },
  right("rps", "Requests", (row) => rate(row.rps ?? 0), "/s"),
  right("in_flight", "In flight / limit", (row) => `${count(row.in_flight ?? 0)} / ${row.limit === undefined || row.limit === null ? "none" : Math.floor(row.limit)}`),
  right("waiting", "Queue", (row) => count(row.waiting ?? 0)),
  right("p50", "p50", (row) => seconds(row.ttft_s?.p50), "TTFT"),
  right("p99", "p99", (row) => seconds(row.ttft_s?.p99), "TTFT"),
  right("failed", "Failed", (row) => percent(row.failed_ratio ?? 0)),
  right("stalls", "Stalls", (row) => rate(row.stalls_per_min ?? 0), "/min"),
  right("quota", "Quota left", (row) => percent(row.quota_left)),
  { id: "why", title: "Why", align: "wrap", render: (row) => [row.why, row.limit_why && `limit: ${row.limit_why}`, BOUNDS.includes(row.bound_by) && `engine bound by ${row.bound_by}`].filter(Boolean).join("; ") || "–" },
];

const places = (row) => [row.engine.running, row.engine.max_running].map((each) => count(each)).join(" / ");
const ENGINE_COLUMNS = [
  { id: "name", title: "Engine", render: (row) => row.name },
  right("slots", "Running / slots", places),
  right("hit", "Prompt from its cache", (row) => percent(row.engine.hit_ratio)),
  right("kv", "KV memory used", (row) => percent(row.engine.kv_used_ratio)),
  right("tokens", "Output", (row) => count(row.engine.tokens_per_s), "tokens/s"),
  right("prefill", "Prefill", (row) => count(row.engine.prefill_tokens_per_s), "tokens/s"),
  right("age", "Read", (row) => `${seconds(row.engine.age_s ?? 0)} ago`),
];

const byBadness = (one, other) => badnessOf(other) - badnessOf(one) || (other.rps ?? 0) - (one.rps ?? 0);

function Findings({ findings }) {
  if (!findings.length) return html`<p class="note">No findings. <a href=${hrefOf({ view: "doctor" })}>What the doctor checks</a></p>`;
  return html`<ul class="findings">${findings.map((each) => html`<li key=${each.id + each.where}>
    <${State} state=${stateOfSeverity(each.severity)}>${each.severity}<//> <b>${each.where}</b> ${each.summary}
    ${each.since ? html` <span class="note">since ${clock(each.since)}</span>` : ""} <a href=${hrefOf({ view: "doctor", tab: each.id })}
      aria-label=${`What to do about ${each.id}`}>${each.id}</a></li>`)}</ul>`;
}

function Zero({ frame }) {
  const model = frame?.routes?.[0]?.route ?? "MODEL";
  const curl = `curl -N ${new URL("v1/chat/completions", endpoint("/")).href} \\
  -H 'content-type: application/json' \\
  -d '{"model": ${JSON.stringify(model)}, "stream": true,
       "messages": [{"role": "user", "content": "Hello!"}]}'`;
  return html`<${Empty} title="No requests yet" command=${curl}><p>Here will appear: the time to the first token of each request as a
    heat map, with p50, p99 and the promise; requests, queue, failures, hedges, cache and cost; each route and each upstream with
    its breaker and its limit, the worst first; and what the doctor finds. All of it is of the last half hour, in memory.
    Send a request (with keys, add <code>-H "authorization: Bearer $KEY"</code>):</p><//>`;
}

export function View({ address, live, frame, frames, isPaused, theme }) {
  const [hovered, setHovered] = useState(null);
  const filter = { route: address.route, upstream: address.upstream, q: address.q, ...hovered };
  const windowS = WINDOWS.some(([value]) => value === address.window) ? Number(address.window) : 900;
  const now = isPaused && frame ? frame.at : Math.max(frame?.at ?? 0, live.silence() ? (frame?.at ?? 0) + live.silence() : 0);
  if (!frame) return html`<p class="note">Waiting for the first frame of <a href=${endpoint("/admin/live")}>/admin/live</a> …</p>`;
  const isIdle = !frames.some((each) => each.routes?.some((route) => route.n || route.rps) || each.upstreams?.some((one) => one.in_flight));
  if (isIdle) return html`<${Zero} frame=${frame} /><${Findings} findings=${frame.findings ?? []} />`;
  const { routes, upstreams } = filterRows(frame, address);
  const choose = (name) => (row) => go({ route: "", upstream: "", [name]: address[name] === (row.route ?? row.name) ? "" : row.route ?? row.name });
  const common = { frame, frames, filter, windowS, now };
  const isEmpty = !routes.length && !upstreams.length;
  return html`
    <${Chips} address=${address} />
    <${Tiles} ...${common} filter=${address} chosen=${address.tab} />
    <${Heat} ...${common} theme=${theme} />
    ${isEmpty && html`<p class="note">No route or upstream matches the filter.</p>`}
    <section class="panel" onMouseLeave=${() => setHovered(null)}><${Table} caption="Routes, last minute, the worst first: p99 over its promise"
      columns=${ROUTE_COLUMNS.filter((column) => !column.isShown || routes.some(column.isShown))}
      rows=${[...routes].sort(byBadness)} keyOf=${(row) => row.route} onSelect=${choose("route")}
      selected=${address.route} onHover=${(row) => setHovered(row && { route: row.route, upstream: "", q: "" })} /></section>
    <section class="panel" onMouseLeave=${() => setHovered(null)}><${Table} caption="Upstreams, last minute, the worst first"
      columns=${UPSTREAM_COLUMNS} rows=${[...upstreams].sort(byBadness)} keyOf=${(row) => row.name} onSelect=${choose("upstream")}
      selected=${address.upstream} onHover=${(row) => setHovered(row && { upstream: row.name, route: "", q: "" })} /></section>
    ${upstreams.some((row) => row.engine) && html`<section class="panel"><${Table} caption="Self-hosted engines, by their own metrics, last minute"
      columns=${ENGINE_COLUMNS} rows=${upstreams.filter((row) => row.engine)} keyOf=${(row) => row.name} /></section>`}
    <section class="panel"><h2>Findings</h2><${Findings} findings=${frame.findings ?? []} /></section>
    <${Machine} frame=${frame} />`;
}

function Machine({ frame }) {
  const n = frame.n_workers ?? 1, has = (value) => value !== undefined && value !== null;
  const words = [`${n} ${n === 1 ? "worker" : "workers"}`, `CPU ${has(frame.cpu_ratio) ? `${frame.cpu_ratio.toFixed(2)} cores` : "–"}`,
    `memory ${frame.rss_bytes ? bytes(frame.rss_bytes) : "–"}`, `loop lag p99 ${seconds(frame.loop_lag_p99_s ?? 0)}`];
  if (frame.jobs_queued || frame.jobs_running) {
    words.push(`jobs ${count(frame.jobs_queued ?? 0)} queued, ${count(frame.jobs_running ?? 0)} running`);
  }
  return html`<p class="note">${words.join(", ")}. As text: ${[METRICS, STATE, SNAPSHOT].map((path) => html`<a key=${path}
    href=${endpoint(path)}>${path}</a> `)}</p>`;
}

function Chips({ address }) {
  const names = ["route", "upstream", "q"].filter((name) => address[name]);
  return names.length > 0 && html`<p class="chips">${names.map((name) => html`<button type="button" key=${name}
    onClick=${() => go({ [name]: "" })} aria-label=${`Remove the filter ${name}`}>${name === "q" ? "text" : name} <b>${address[name]}</b> ×</button>`)}</p>`;
}
