// Tenants: who uses the gateway, and who suffers.
import { html } from "../lib.mjs";
import { Empty, Table } from "../parts.mjs";
import { count, dollars, percent, seconds } from "../units.mjs";
import { AsText, Loaded, matches, right, useSnapshot } from "./shared.mjs";

const EXAMPLE = `server:
  keys: {my-app: "sha256:..."}   # stayfast key my-app
tenants:
  my-app: {weight: 2}`;
const least = (left) => (left && Object.keys(left).length ? Object.entries(left).sort((one, other) => one[1] - other[1])[0] : null);

const COLUMNS = [
  { id: "name", title: "Tenant", render: (row) => row.name || "(no key)" },
  { id: "tier", title: "Tier", render: (row) => row.tier || "–" },
  right("n", "Requests", (row) => count(row.n ?? 0)),
  right("running", "Running", (row) => count(row.running ?? 0)),
  right("waiting", "Waiting", (row) => count(row.waiting ?? 0)),
  right("p50", "p50", (row) => seconds(row.ttft_s?.p50), "TTFT"),
  right("p99", "p99", (row) => seconds(row.ttft_s?.p99), "TTFT"),
  right("failed", "Failed", (row) => percent(row.n ? (row.n_failed ?? 0) / row.n : null)),
  right("shed", "Shed", (row) => percent(row.n ? (row.n_shed ?? 0) / row.n : null)),
  right("input", "Prompt p99", (row) => count(row.input_tokens?.p99), "tokens"),
  right("tokens", "Tokens", (row) => count(row.n_tokens ?? 0)),
  right("cost", "Cost", (row) => dollars(row.cost_usd ?? 0)),
  { id: "left", title: "Scarcest limit", render: (row) => {
    const found = least(row.left);
    return found ? `${found[0]}: ${percent(found[1])} left` : "none";
  } },
];

export function View({ address, isPaused }) {
  const held = useSnapshot(isPaused);
  return html`<${Loaded} held=${held} path="/admin/snapshot">${(snapshot) => {
    const every = snapshot.tenants ?? [], rows = every.filter((row) => matches(address.q, row.name, row.tier));
    if (!every.length) {
      return html`<${Empty} title="No requests of tenants in the last 5 minutes" command=${EXAMPLE}><p>Here will appear for each key its requests,
        its waits, its tokens and cost, and how much of its limits is left. A tenant is the name of a key; without keys all requests
        are of one tenant.</p><//>`;
    }
    return rows.length ? html`<section class="panel"><${Table} caption="Tenants, last 5 minutes, the largest first" columns=${COLUMNS}
        rows=${rows} keyOf=${(row) => row.name} /></section>` : html`<p class="note">No tenant matches the filter.</p>`;
  }}<//><${AsText} paths=${["/admin/snapshot", "/metrics"]} />`;
}
