// Jobs: the queue of durable work, by route, and the newest jobs.
import { html } from "../lib.mjs";
import { go } from "../address.mjs";
import { Empty, State, Table } from "../parts.mjs";
import { clock, count, percent, seconds, zone } from "../units.mjs";
import { AsText, Choice, Loaded, matches, right, usePolled, useSnapshot } from "./shared.mjs";

const STATES = { queued: "off", running: "unknown", completed: "good", failed: "bad", cancelled: "off", expired: "warn", dead: "bad" };
const LISTS = [["", "All"], ["queued,running", "Unfinished"], ["failed,expired", "Failed"], ["dead", "Dead"]];
const EXAMPLE = `curl http://127.0.0.1:8090/v1/jobs -H 'content-type: application/json' \\
  -d '{"endpoint": "/v1/chat/completions", "body": {"model": "MODEL", "messages": [{"role": "user", "content": "Hello!"}]}}'`;

const ROUTES = [
  { id: "route", title: "Route", render: (row) => row.route },
  right("queued", "Queued", (row) => count(row.queued ?? 0)),
  right("running", "Running", (row) => count(row.running ?? 0)),
  right("deferred", "Deferred", (row) => count(row.deferred ?? 0)),
  right("oldest", "Oldest", (row) => seconds(row.oldest_s ?? 0)),
  right("overdue", "Overdue", (row) => (row.overdue_s > 0 ? html`<${State} state="bad">${seconds(row.overdue_s)}<//>` : "–")),
  right("wait", "Wait p99", (row) => seconds(row.wait_s?.p99)),
  right("run", "Run p99", (row) => seconds(row.run_s?.p99)),
  right("batch", "Batch p50", (row) => seconds(row.batch_s?.p50)),
  right("deviation", "Deviation", (row) => percent(row.batch_deviation)),
  { id: "ended", title: "Ended, last hour", align: "wrap", render: (row) => Object.entries(row.n_ended ?? {}).map(([name, n]) => `${count(n)} ${name}`).join(", ") || "none" },
];

const at = (value) => (value ? clock(value, { withDate: true }) : "–");
const JOBS = [
  { id: "id", title: "Job", render: (row) => html`<code>${row.id}</code>` },
  { id: "state", title: "State", render: (row) => html`<${State} state=${STATES[row.status ?? row.state] ?? "unknown"}>${row.status ?? row.state}<//>` },
  { id: "model", title: "Model", render: (row) => row.model ?? row.route ?? "–" },
  { id: "tenant", title: "Tenant", render: (row) => row.tenant ?? "–" },
  { id: "created", title: "Created", render: (row) => at(row.created_at) },
  right("attempts", "Attempts", (row) => count(row.attempts ?? row.n_attempts ?? 0)),
  { id: "why", title: "Why", align: "wrap", render: (row) => row.why ?? "–" },
];

function Newest({ address, isPaused }) {
  const state = LISTS.some(([id]) => id === address.tab) ? address.tab : "";
  const path = `/admin/jobs?${new URLSearchParams({ limit: "50", ...(state ? { state } : {}) })}`;
  const held = usePolled(path, isPaused);
  return html`<section class="panel"><header><h2>Newest jobs</h2><${Choice} label="State" options=${LISTS} value=${state} onChoose=${(tab) => go({ tab })} /></header>
    <${Loaded} held=${held} path="/admin/jobs">${(answer) => {
      const rows = (answer.data ?? []).filter((row) => matches(address.q, row.id, row.model, row.tenant));
      return rows.length ? html`<${Table} caption=${`The newest first, times in ${zone()}; never their prompts or answers`} columns=${JOBS} rows=${rows}
        keyOf=${(row) => row.id} />` : html`<p class="note">No such job.</p>`;
    }}<//><${AsText} paths=${[path]} /></section>`;
}

export function View({ address, isPaused }) {
  const held = useSnapshot(isPaused);
  return html`<${Loaded} held=${held} path="/admin/snapshot">${(snapshot) => {
    const rows = (snapshot.jobs ?? []).filter((row) => (!address.route || row.route === address.route) && matches(address.q, row.route));
    return rows.length ? html`<section class="panel"><${Table} caption="Durable work by route" columns=${ROUTES} rows=${rows} keyOf=${(row) => row.route} /></section>`
      : html`<${Empty} title="No jobs in the queue" command=${EXAMPLE}><p>Here will appear for each route its queued and running jobs, the oldest of
        them, and how long batches take. A job is any request that the gateway accepts, stores and runs later:</p><//>`;
  }}<//><${Newest} address=${address} isPaused=${isPaused} /><${AsText} paths=${["/admin/snapshot", "/metrics"]} />`;
}
