// Fleet: the gateways that share state, the stores between them, and the workers of this one.
import { html } from "../lib.mjs";
import { Empty, State, Table } from "../parts.mjs";
import { bytes, clock, count, percent, seconds } from "../units.mjs";
import { AsText, Loaded, matches, right, usePolled, useSnapshot } from "./shared.mjs";

const EXAMPLE = "fleet:\n  url: ${REDIS_URL}   # redis://:password@host:6379/0, the same for all gateways";

const GATEWAYS = [
  { id: "id", title: "Gateway", render: (row) => html`${row.id}${row.answers ? " (this one)" : ""}` },
  { id: "host", title: "Host", render: (row) => row.host ?? "–" },
  { id: "seen", title: "Seen", render: (row) => html`<${State} state=${row.draining ? "warn" : row.seen_s_ago > 10 ? "bad" : "good"}>${
    row.draining ? "draining" : `${seconds(row.seen_s_ago)} ago`}<//>` },
  { id: "version", title: "Version", render: (row) => row.version ?? "–" },
  right("workers", "Workers", (row) => count(row.workers)),
  right("in_flight", "In flight", (row) => count(row.in_flight)),
  { id: "since", title: "Started", render: (row) => clock(row.since, { withDate: true }) },
  { id: "config", title: "Settings", render: (row) => html`<code>${row.config || "–"}</code>` },
  right("breakers", "Open breakers", (row) => count((row.breakers ?? []).length)),
];

const STORES = [
  { id: "name", title: "Store", render: (row) => row.name },
  { id: "kind", title: "Kind", render: (row) => row.kind },
  { id: "purposes", title: "For", render: (row) => (row.purposes ?? []).join(", ") || "–" },
  { id: "state", title: "State", align: "wrap", render: (row) => html`<${State} state=${row.is_open === false ? "bad" : "good"}>${row.is_open === false ? row.why_not || "closed" : "open"}<//>` },
  right("calls", "Calls", (row) => count(row.n_calls ?? 0)),
  right("failed", "Failed", (row) => percent(row.n_calls ? (row.n_failed ?? 0) / row.n_calls : null)),
  right("p99", "Call p99", (row) => seconds(row.call_s?.p99)),
  right("evicted", "Evicted", (row) => count(row.n_evicted)),
  right("memory", "Memory", (row) => percent(row.memory_ratio)),
];

const MACHINES = [
  { id: "worker", title: "Worker", render: (row) => String(row.worker ?? 0) },
  right("uptime", "Up", (row) => seconds(row.uptime_s)),
  right("cpu", "CPU", (row) => percent(row.cpu_ratio), "of a core"),
  right("throttled", "Throttled", (row) => percent(row.throttled_ratio)),
  right("rss", "Memory", (row) => bytes(row.rss_bytes)),
  right("growth", "Growth", (row) => (row.rss_growth_bytes_per_h === undefined || row.rss_growth_bytes_per_h === null ? "–" : `${bytes(row.rss_growth_bytes_per_h)}/h`)),
  right("lag", "Loop lag p99", (row) => seconds(row.loop_lag_s?.p99)),
  right("gc", "GC pause p99", (row) => seconds(row.gc_pause_s?.p99)),
  right("descriptors", "Descriptors", (row) => (row.max_descriptors ? `${count(row.descriptors ?? 0)} of ${count(row.max_descriptors)}` : "–")),
  right("lost", "Lost log lines", (row) => count(row.n_lost_lines ?? 0)),
];

function Gateways({ answer, q }) {
  const rows = (answer.data ?? []).filter((row) => matches(q, row.id, row.host, row.version));
  return html`<section class="panel"><${Table} caption="Gateways that share state" columns=${GATEWAYS} rows=${rows} keyOf=${(row) => row.id} />
    ${(answer.findings ?? []).map((line) => html`<p key=${line}><${State} state="warn">${line}<//></p>`)}</section>
    ${answer.why_alone && html`<${Empty} title="This gateway is alone" command=${EXAMPLE}><p>${answer.why_alone}</p><p>Gateways with one Redis or
      Valkey server share quotas, limits, breakers and purges, and appear here:</p><//>`}`;
}

export function View({ address, isPaused }) {
  const gateways = usePolled("/admin/gateways", isPaused), held = useSnapshot(isPaused);
  return html`<${Loaded} held=${gateways} path="/admin/gateways">${(answer) => html`<${Gateways} answer=${answer} q=${address.q} />`}<//>
    <${Loaded} held=${held} path="/admin/snapshot">${(snapshot) => html`
      ${snapshot.stores?.length > 0 && html`<section class="panel"><${Table} caption="Shared stores, last 5 minutes" columns=${STORES} rows=${snapshot.stores} keyOf=${(row) => row.name} /></section>`}
      ${snapshot.machines?.length > 0 && html`<section class="panel"><${Table} caption="Workers of this gateway, last 5 minutes" columns=${MACHINES} rows=${snapshot.machines} keyOf=${(row) => row.worker ?? 0} /></section>`}`}<//>
    <${AsText} paths=${["/admin/gateways", "/admin/snapshot", "/debug/state"]} />`;
}
