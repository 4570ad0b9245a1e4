// Caches: what the routes' own caches and the providers' prompt caches save.
import { html } from "../lib.mjs";
import { Empty, State, Table, Tile } from "../parts.mjs";
import { bytes, count, dollars, percent, seconds } from "../units.mjs";
import { AsText, Loaded, matches, right, useSnapshot } from "./shared.mjs";
import { endpoint } from "../lib.mjs";

const sum = (rows, of) => rows.reduce((total, row) => total + (of(row) ?? 0), 0);
const hits = (row) => (row.n_exact ?? 0) + (row.n_semantic ?? 0) + (row.n_coalesced ?? 0);
export const hitRatio = (row) => (row.n_lookups ? hits(row) / row.n_lookups : null);
const STATES = { live: "good", shadow: "warn", waiting: "warn", fixed: "warn", off: "off" };
const EXAMPLE = "routes:\n  MODEL: {upstreams: [NAME], cache: {mode: exact}}";

const OWN = [
  { id: "route", title: "Route", render: (row) => row.route },
  { id: "mode", title: "Mode", render: (row) => row.mode },
  right("lookups", "Lookups", (row) => count(row.n_lookups ?? 0)),
  right("ratio", "Without a call", (row) => percent(hitRatio(row))),
  right("exact", "Exact", (row) => count(row.n_exact ?? 0)),
  right("semantic", "Semantic", (row) => count(row.n_semantic ?? 0)),
  right("coalesced", "Shared calls", (row) => count(row.n_coalesced ?? 0)),
  right("bypassed", "Bypassed", (row) => count(row.n_bypassed ?? 0)),
  right("entries", "Answers", (row) => count(row.n_entries)),
  right("bytes", "Size", (row) => bytes(row.n_bytes)),
  right("evicted", "Evicted", (row) => count(row.n_evicted)),
  right("saved_usd", "Saved", (row) => dollars(row.saved_usd ?? 0)),
  right("saved_s", "Saved", (row) => seconds(row.saved_s ?? 0), "time"),
  { id: "state", title: "Semantic", render: (row) => (row.semantic_state
    ? html`<${State} state=${STATES[row.semantic_state] ?? "unknown"}>${row.semantic_state}<//>` : "–") },
  right("error", "Wrong, at most", (row) => percent(row.error_most)),
];

const PROVIDERS = [
  { id: "route", title: "Route", render: (row) => row.route },
  { id: "upstream", title: "Upstream", render: (row) => row.upstream },
  right("input", "Input", (row) => count(row.n_input_tokens ?? 0), "tokens"),
  right("cached", "Read from its cache", (row) => count(row.n_cached_tokens ?? 0), "tokens"),
  right("ratio", "Share", (row) => percent(row.n_input_tokens ? (row.n_cached_tokens ?? 0) / row.n_input_tokens : null)),
];

export function View({ address, isPaused }) {
  const held = useSnapshot(isPaused);
  return html`<${Loaded} held=${held} path="/admin/snapshot">${(snapshot) => {
    const rows = (snapshot.caches ?? []).filter((row) => (!address.route || row.route === address.route) && matches(address.q, row.route));
    const prompts = (snapshot.traffic ?? []).filter((row) => row.upstream && row.window_s === 3600 && row.n_input_tokens
      && (!address.route || row.route === address.route) && matches(address.q, row.route, row.upstream));
    const lookups = sum(rows, (row) => row.n_lookups);
    return html`${rows.length > 0 ? html`<div class="tiles">
        <${Tile} name="Without a call" value=${percent(lookups ? sum(rows, hits) / lookups : null)} note=${`of ${count(lookups)} lookups in an hour`} href=${endpoint("/admin/cache")} />
        <${Tile} name="Saved" value=${dollars(sum(rows, (row) => row.saved_usd))} note="in an hour" href=${endpoint("/admin/cache")} />
        <${Tile} name="Stored" value=${bytes(sum(rows, (row) => row.n_bytes))} note=${`${count(sum(rows, (row) => row.n_entries))} answers`} href=${endpoint("/admin/cache")} /></div>
      <section class="panel"><${Table} caption="Response caches by route, last hour" columns=${OWN} rows=${rows} keyOf=${(row) => row.route} /></section>`
    : html`<${Empty} title="No route has a response cache" command=${EXAMPLE}><p>Here will appear how many requests each cache answers without a
        call, what that saves, and how sure a semantic cache is. A route gets one by its settings:</p><//>`}
    ${prompts.length > 0 && html`<section class="panel"><${Table} caption="Prompt caches of the providers, last hour" columns=${PROVIDERS}
      rows=${prompts} keyOf=${(row) => `${row.route} ${row.upstream}`} /></section>`}`;
  }}<//><${AsText} paths=${["/admin/cache", "/admin/snapshot", "/metrics"]} />`;
}
