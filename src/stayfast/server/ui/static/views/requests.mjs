// Requests: the slowest, the last and the notable ones, with filters; one of them as a waterfall.
import { html, endpoint, useEffect, useRef } from "../lib.mjs";
import { go, hrefOf } from "../address.mjs";
import { Empty, State, Table, useJson } from "../parts.mjs";
import { clock, count, dollars, seconds, zone } from "../units.mjs";
import { AsText, Choice, Loaded, Select, matches, right, usePolled } from "./shared.mjs";
import { STATE_OF, Waterfall } from "./waterfall.mjs";

const LISTS = [["slowest", "Slowest"], ["all", "Last"], ["notable", "Slow or failed"]];
const OUTCOMES = ["ok", "degraded", "client_left", "failed", "rejected"];
const N_LISTED = 100;
const ms = (value) => seconds(value === undefined || value === null ? null : value / 1000);

const COLUMNS = [
  { id: "ended_at", title: "Ended", render: (row) => html`<a href=${hrefOf({ request: row.request_id })} title=${row.request_id}>${clock(row.ended_at)}</a>` },
  { id: "outcome", title: "Result", render: (row) => html`<${State} state=${STATE_OF[row.outcome] ?? "unknown"}>${row.status} ${row.outcome}<//>` },
  right("ttft", "First token", (row) => ms(row.ttft_ms)),
  right("ms", "Whole", (row) => ms(row.ms)),
  { id: "route", title: "Route", render: (row) => row.route ?? row.model ?? "–" },
  { id: "upstream", title: "Upstream", render: (row) => row.upstream ?? "–" },
  right("attempts", "Attempts", (row) => `${row.n_attempts ?? 0}${row.is_hedged ? " hedged" : ""}`),
  right("input", "In", (row) => (row.input_tokens ? `${count(row.input_tokens)}${row.cached_tokens ? ` (${count(row.cached_tokens)} cached)` : ""}` : "–"), "tokens"),
  right("output", "Out", (row) => count(row.output_tokens), "tokens"),
  right("cost", "Cost", (row) => dollars(row.cost_usd)),
  { id: "cache", title: "Cache", render: (row) => row.cache ?? "–" },
  { id: "verdict", title: "In words", align: "wrap", render: (row) => row.verdict },
];

/** The path of the list that the address describes. */
export function listPath(address) {
  const query = new URLSearchParams({ which: LISTS.some(([id]) => id === address.tab) ? address.tab : "slowest", n: N_LISTED });
  for (const name of ["route", "upstream", "outcome"]) if (address[name]) query.set(name, address[name]);
  return `/admin/requests?${query}`;
}

function One({ id }) {
  const path = `/admin/requests/${encodeURIComponent(id)}`;
  const held = useJson(path);
  const head = useRef(null);
  useEffect(() => head.current?.focus({ preventScroll: false }), [id]);
  return html`<section class="panel" aria-labelledby="request-title"><header><h2 id="request-title" tabindex="-1" ref=${head}>Request <code>${id}</code></h2>
      <a class="close" href=${hrefOf({ request: "" })}>close (Esc)</a></header>
    ${held.status === 404 ? html`<p class="error" role="alert">This request is not in memory: it has expired, or never was here. Each worker
      remembers <code>recent.size</code> requests.</p>`
    : html`<${Loaded} held=${held} path=${path}>${(fall) => html`<${Waterfall} fall=${fall} /><p class="note">In a terminal: <code>stayfast explain ${fall.request_id}</code>. As text: <a href=${endpoint(path)}>${path}</a></p>`}<//>`}</section>`;
}

function List({ address, isPaused }) {
  const path = listPath(address);
  const held = usePolled(path, isPaused);
  const rows = (held.data?.data ?? []).filter((row) => matches(address.q, row.route, row.upstream, row.model, row.request_id, row.verdict));
  const isFiltered = ["route", "upstream", "outcome", "q"].some((name) => address[name]);
  const which = LISTS.find(([id]) => id === address.tab) ?? LISTS[0];
  const names = (of) => [...new Set((held.data?.data ?? []).map(of).filter(Boolean))].sort();
  return html`<section class="panel"><header><h2>Requests</h2>
      <${Choice} label="Which requests" options=${LISTS} value=${which[0]} onChoose=${(id) => go({ tab: id })} />
      <${Select} label="Route" all="all" options=${names((row) => row.route)} value=${address.route} onChoose=${(route) => go({ route })} />
      <${Select} label="Upstream" all="all" options=${names((row) => row.upstream)} value=${address.upstream} onChoose=${(upstream) => go({ upstream })} />
      <${Select} label="Result" all="all" options=${OUTCOMES} value=${address.outcome} onChoose=${(outcome) => go({ outcome })} /></header>
    <${Loaded} held=${held} path="/admin/requests">${() => (rows.length
      ? html`<${Table} caption=${`${which[1]} requests in memory, ${rows.length} shown, times in ${zone()}`} columns=${COLUMNS} rows=${rows}
          keyOf=${(row) => row.request_id} selected=${address.request} onSelect=${(row) => go({ request: row.request_id })} />`
      : isFiltered ? html`<p class="note">No request in memory matches the filters.
          <button type="button" onClick=${() => go({ route: "", upstream: "", outcome: "", q: "" })}>remove them</button></p>`
      : html`<${Empty} title="No requests yet"><p>Here will appear each finished request: what it waited for, where, how often it was tried
          and what it cost. Choose one to see its time as a waterfall: stages, attempts side by side, the first token, stalls.</p><//>`)}<//>
    <${AsText} paths=${[path]} /></section>`;
}

export function View({ address, isPaused }) {
  return html`${address.request && html`<${One} key=${address.request} id=${address.request} />`}
    <${List} address=${address} isPaused=${isPaused} />`;
}
