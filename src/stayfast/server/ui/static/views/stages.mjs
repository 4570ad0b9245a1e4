// Stages: where the time before the first token goes, at the p99 and at the p50.
import { html } from "../lib.mjs";
import { go, hrefOf } from "../address.mjs";
import { Empty, Table } from "../parts.mjs";
import { count, percent, seconds } from "../units.mjs";
import { AsText, Choice, Loaded, matches, right, usePolled, useSnapshot, useWidth } from "./shared.mjs";

export const STAGES = ["admit", "cache", "context", "route", "call", "relay", "settle"];
const WINDOWS = [["60", "1 min"], ["300", "5 min"], ["3600", "1 h"]];
const N_LINKED = 5;
const total = (stages) => Object.values(stages).reduce((sum, value) => sum + value, 0);
const ordered = (stages) => [...STAGES.filter((name) => name in stages), ...Object.keys(stages).filter((name) => !STAGES.includes(name))];

/** What the tail has more of than the middle, the largest first: [{stage, p50, p99, more}]. */
export function growthOf(row) {
  const p50 = row.stages_at_p50_s ?? {}, p99 = row.stages_at_p99_s ?? {};
  return ordered({ ...p50, ...p99 }).map((stage) => ({ stage, p50: p50[stage] ?? 0, p99: p99[stage] ?? 0,
    more: (p99[stage] ?? 0) - (p50[stage] ?? 0) })).sort((one, other) => other.more - one.more);
}

function Bars({ row }) {
  const [box, width] = useWidth();
  const bars = [["p50", row.stages_at_p50_s ?? {}], ["p99", row.stages_at_p99_s ?? {}]];
  const whole = Math.max(...bars.map(([, stages]) => total(stages)), 1e-9), left = 34, x = (width - left - 4) / whole;
  const label = bars.map(([name, stages]) => `${name}: ${ordered(stages).map((stage) => `${stage} ${seconds(stages[stage])}`).join(", ")}`).join("; ");
  return html`<div class="stack" ref=${box}><svg width=${width} height="62" role="img" aria-label=${label}>
    ${bars.map(([name, stages], at) => {
      let from = left;
      return html`<g key=${name}><text x="0" y=${at * 30 + 18}>${name}</text>${ordered(stages).map((stage) => {
        const size = stages[stage] * x, start = from;
        from += size;
        return size > 0.3 && html`<g key=${stage}><rect class=${`s-${stage}`} x=${start} y=${at * 30 + 2} width=${size} height="24"><title>${`${name} ${stage}: ${seconds(stages[stage])}`}</title></rect>
          ${size > stage.length * 7 + 8 && html`<text class="on" x=${start + 5} y=${at * 30 + 18}>${stage}</text>`}</g>`;
      })}</g>`;
    })}</svg></div>`;
}

/** The requests whose wait is nearest to the p99. */
export const nearest = (requests, p99S) => [...requests].sort((one, other) => Math.abs((one.ttft_ms ?? one.ms) - p99S * 1000)
  - Math.abs((other.ttft_ms ?? other.ms) - p99S * 1000)).slice(0, N_LINKED);

function Linked({ row, isPaused }) {
  const path = `/admin/requests?${new URLSearchParams({ which: "slowest", n: "100", route: row.route })}`;
  const held = usePolled(path, isPaused);
  const found = row.ttft_s?.p99 ? nearest(held.data?.data ?? [], row.ttft_s.p99) : [];
  if (!found.length) return null;
  return html`<p>Requests near the p99: ${found.map((each) => html`<a key=${each.request_id} class="chip" title=${each.request_id}
    href=${hrefOf({ view: "requests", tab: "slowest", route: row.route, request: each.request_id })}>${seconds((each.ttft_ms ?? each.ms) / 1000)}</a> `)}</p>`;
}

function Route({ row, isPaused }) {
  const growth = growthOf(row), [first] = growth;
  const p50 = total(row.stages_at_p50_s ?? {}), p99 = total(row.stages_at_p99_s ?? {});
  const columns = [
    { id: "stage", title: "Stage", render: (each) => html`<i class=${`swatch s-${each.stage}`} aria-hidden="true"></i>${each.stage}` },
    right("p50", "Near the p50", (each) => seconds(each.p50)), right("p99", "Near the p99", (each) => seconds(each.p99)),
    right("more", "More", (each) => (each.more > 0 ? `+ ${seconds(each.more)}` : seconds(each.more))),
    right("share", "Of what is more", (each) => (p99 > p50 && each.more > 0 ? percent(each.more / (p99 - p50)) : "–")),
    right("own50", "Its own p50", (each) => seconds(row.stages_s?.[each.stage]?.p50)),
    right("own99", "Its own p99", (each) => seconds(row.stages_s?.[each.stage]?.p99)),
    right("over", "Over its budget", (each) => count(row.over_stages?.[each.stage] ?? 0)),
  ];
  return html`<section class="panel" aria-label=${`Route ${row.route}`}><header><h2>${row.route}</h2>
      <span class="note">${count(row.n ?? 0)} requests; first token p50 ${seconds(row.ttft_s?.p50)}, p99 ${seconds(row.ttft_s?.p99)}</span></header>
    ${first && first.more > 0 && p99 > p50 && html`<p>The tail has <b>${seconds(p99 - p50)}</b> more than the middle, ${percent(first.more / (p99 - p50))} of it in <b>${first.stage}</b>.</p>`}
    <${Bars} row=${row} />
    <${Linked} row=${row} isPaused=${isPaused} />
    <details class="figures"><summary>Table</summary><${Table} caption=${`Stages of ${row.route}: mean over the requests near each percentile`}
      columns=${columns} rows=${growth} keyOf=${(each) => each.stage} /></details></section>`;
}

export function View({ address, isPaused }) {
  const held = useSnapshot(isPaused);
  const windowS = WINDOWS.some(([id]) => id === address.tab) ? address.tab : "300";
  return html`<p class="bar"><${Choice} label="Window" options=${WINDOWS} value=${windowS} onChoose=${(tab) => go({ tab })} />
      <span class="note">Mean time by stage over the requests near the p99 of the first token, not over all: the mean hides the tail.</span></p>
    <${Loaded} held=${held} path="/admin/snapshot">${(snapshot) => {
      const rows = (snapshot.traffic ?? []).filter((row) => !row.upstream && row.window_s === Number(windowS) && row.n
        && (!address.route || row.route === address.route) && matches(address.q, row.route))
        .sort((one, other) => total(other.stages_at_p99_s ?? {}) - total(one.stages_at_p99_s ?? {}));
      return rows.length ? rows.map((row) => html`<${Route} key=${row.route} row=${row} isPaused=${isPaused} />`)
        : html`<${Empty} title="No requests in this window"><p>Here will appear for each route how long each stage takes for a request near the
          p50 and near the p99: admission, cache, fitting the prompt, choosing the upstream, the call, the relay. What the second bar has more
          of is what to work on.</p><//>`;
    }}<//><${AsText} paths=${["/admin/snapshot", "/metrics"]} />`;
}
